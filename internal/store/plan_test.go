package store_test

import (
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// TestPlan: a record of an earlier version, which has no plan, is read with that of
// the platform.
func TestPlan(t *testing.T) {
	onBoth(t, func(d database) {
		s, ctx := d.open(d.t), d.t.Context()
		workspaces(d.t, s, "main")
		meta := doze.Metadata{Name: "a", Workspace: "main"}
		_, err := s.PutVolumeTemplate(ctx, "main", "a", func(t *doze.VolumeTemplate, _ bool) error {
			t.Metadata = meta
			return nil
		}, nil)
		for _, err := range []error{
			err, s.InsertVolume(ctx, store.Volume{ID: "v", Volume: doze.Volume{Metadata: meta}}), s.FinishVolume(ctx, "v"), s.InsertDrive(ctx, store.Drive{ID: "d", Drive: doze.Drive{Metadata: meta}}),
			s.InsertPolicy(ctx, doze.Policy{Metadata: meta}), s.InsertSecret(ctx, doze.Secret{Metadata: meta}),
		} {
			if err != nil {
				d.t.Fatal(err)
			}
		}
		plans := map[string]string{}
		read := func(noun string, m doze.Metadata, err error) {
			d.t.Helper()
			if err != nil {
				d.t.Fatal(noun, err)
			}
			plans[noun] = m.Plan
		}
		volume, err := s.Volume(ctx, "main", "a")
		read("volume", volume.Metadata, err)
		drive, err := s.Drive(ctx, "main", "a")
		read("drive", drive.Metadata, err)
		template, err := s.VolumeTemplate(ctx, "main", "a")
		read("template", template.Metadata, err)
		policy, err := s.Policy(ctx, "main", "a")
		read("policy", policy.Metadata, err)
		secret, err := s.Secret(ctx, "main", "a")
		read("secret", secret.Metadata, err)
		for noun, plan := range plans {
			if plan != doze.Plan {
				d.t.Errorf("a %s has the plan %q", noun, plan)
			}
		}
	})
}
