package store_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// takers insert one more of what each quota of the records counts.
var takers = map[string]func(t *testing.T, s *store.Store, workspace, name string) error{
	doze.QuotaSandboxes: func(t *testing.T, s *store.Store, workspace, name string) error {
		t.Helper()
		sb := store.Sandbox{UID: store.NewID(), LastUsed: epoch}
		sb.Metadata = doze.Metadata{Name: name, Workspace: workspace, CreatedAt: doze.Time{Time: epoch}}
		_, err := s.InsertSandbox(t.Context(), sb, doze.Placed)
		return err
	},
	doze.QuotaVolumes:     takeVolume,
	doze.QuotaVolumesSize: takeVolume,
	doze.QuotaSnapshots: func(t *testing.T, s *store.Store, workspace, name string) error {
		t.Helper()
		n := store.Snapshot{UID: "a"}
		n.ID, n.Name, n.Workspace = store.NewID(), name, workspace
		return s.InsertSnapshot(t.Context(), n)
	},
	doze.QuotaDisk: takeVolume,
	doze.QuotaKeys: func(t *testing.T, s *store.Store, workspace, name string) error {
		t.Helper()
		return s.InsertAPIKey(t.Context(), store.APIKey{APIKey: doze.APIKey{ID: workspace + name}, Workspace: workspace})
	},
}

// takeVolume takes one megabyte.
func takeVolume(t *testing.T, s *store.Store, workspace, name string) error {
	t.Helper()
	v := store.Volume{ID: store.NewID()}
	v.Metadata = doze.Metadata{Name: name, Workspace: workspace}
	v.Spec.Size = 1
	return s.InsertVolume(t.Context(), v)
}

// TestNoQuotaIsExceeded has many callers at a time take the last place of each
// quota: one of them gets it.
func TestNoQuotaIsExceeded(t *testing.T) {
	if diff := cmp.Diff(slices.Sorted(slices.Values(store.Counted)), slices.Sorted(maps.Keys(takers))); diff != "" {
		t.Errorf("quotas of the records, and those that this test takes: %s", diff)
	}
	const limit, callers = 5, 20
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		workspaces(t, s, "w", "other")
		for quota, take := range takers {
			t.Run(quota, func(t *testing.T) {
				before, err := s.Used(t.Context(), "w", quota)
				if err != nil {
					t.Fatal(err)
				}
				for i := range limit - 1 {
					if err := take(t, s, "w", fmt.Sprint(quota, i)); err != nil {
						t.Fatal(err)
					}
				}
				most := before + limit
				if _, err := s.SetLimits(t.Context(), "w", map[string]*int64{quota: &most}); err != nil {
					t.Fatal(err)
				}
				errs := make([]error, callers)
				var all sync.WaitGroup
				for i := range errs {
					all.Go(func() { errs[i] = take(t, s, "w", fmt.Sprint(quota, "last", i)) })
				}
				all.Wait()
				won := 0
				for _, err := range errs {
					if err == nil {
						won++
						continue
					}
					want := map[string]any{"quota": quota, "used": most, "limit": most}
					if e := doze.Public(err); e.Name != doze.NameQuotaExceeded || e.Kind != doze.Exhausted || !cmp.Equal(e.Fields, want) {
						t.Errorf("refused as %v with %v", err, e.Fields)
					}
				}
				if n, err := s.Used(t.Context(), "w", quota); won != 1 || n != most || err != nil {
					t.Errorf("%d callers got the last place, and %d of %d are used, %v", won, n, most, err)
				}
				if err := take(t, s, "other", quota); err != nil {
					t.Errorf("in another workspace: %v", err)
				}
				if _, err := s.SetLimits(t.Context(), "w", map[string]*int64{quota: nil}); err != nil {
					t.Fatal(err)
				}
				if err := take(t, s, "w", quota+"more"); err != nil {
					t.Errorf("with the default again: %v", err)
				}
			})
		}
	})
}

func TestLimits(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		s.SetDefaultLimits(doze.Limits{doze.QuotaVolumes: 0})
		workspaces(t, s, "w")
		if err := takeVolume(t, s, "w", "v"); kind(err) != doze.Exhausted {
			t.Errorf("over the default of the platform: %v", err)
		}
		_, err := s.SetLimits(t.Context(), "w", map[string]*int64{doze.QuotaVolumes: new(int64(1)), doze.QuotaVolumesSize: new(int64(5))})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(takeVolume(t, s, "w", "v"), finishVolumes(t, s)); err != nil {
			t.Fatal(err)
		}
		grow := func(size doze.Megabytes) error {
			_, err := s.ChangeVolume(t.Context(), "w", "v", func(v *store.Volume) error { v.Spec.Size = size; return nil })
			return err
		}
		if err := grow(6); kind(err) != doze.Exhausted {
			t.Errorf("a volume that grows beyond the limit: %v", err)
		}
		if err := grow(5); err != nil {
			t.Errorf("a volume that grows to the limit: %v", err)
		}
		got, err := s.Limits(t.Context())
		want := map[string]doze.Limits{"w": {doze.QuotaVolumes: 1, doze.QuotaVolumesSize: 5}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
		if _, err := s.SetLimits(t.Context(), "nowhere", nil); kind(err) != doze.NotFound {
			t.Errorf("in no workspace: %v", err)
		}
		v, err := s.DeleteVolume(t.Context(), "w", "v")
		if err != nil {
			t.Fatal(v, err)
		}
		if _, err := s.DeleteWorkspace(t.Context(), "w"); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Limits(t.Context()); len(got) > 0 || err != nil {
			t.Errorf("of a workspace that is deleted: %v, %v", got, err)
		}
	})
}

func finishVolumes(t *testing.T, s *store.Store) error {
	t.Helper()
	ids, err := s.UnfinishedVolumes(t.Context())
	for _, id := range ids {
		if err == nil {
			err = s.FinishVolume(t.Context(), id)
		}
	}
	return err
}

func workspaces(t *testing.T, s *store.Store, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := s.InsertWorkspace(t.Context(), doze.Workspace{ID: name, Name: name}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEgressDays(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		for _, day := range []struct {
			date  string
			bytes map[string]int64
		}{
			{"2026-01-30", map[string]int64{"w": 1 << 40, "x": 2}},
			{"2026-01-31", map[string]int64{"w": 3}},
			{"2026-01-31", map[string]int64{"w": 4}},
		} {
			if err := s.SetEgress(t.Context(), day.date, day.bytes); err != nil {
				t.Fatal(err)
			}
		}
		got := map[string]int64{}
		err := s.Egress(t.Context(), func(workspace, day string, bytes int64) { got[workspace+" "+day] = bytes })
		if diff := cmp.Diff(map[string]int64{"w 2026-01-31": 4}, got); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
	})
}
