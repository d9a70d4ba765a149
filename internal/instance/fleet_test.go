package instance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
)

// TestComeHome: a fleet becomes a platform of one process only when all is on the node of the
// data directory. Who refuses says what is where.
func TestComeHome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		others []string      // nodes besides ours
		places []store.Place // "ours" is the node of the directory
		image  string        // a tag leads to it
		says   string        // empty: it works
	}{
		"no fleet":               {},
		"alone":                  {others: []string{}},
		"another node":           {others: []string{"other"}, says: "other has nothing"},
		"it has a volume":        {others: []string{"other"}, places: []store.Place{{Kind: "volume", ID: "v", Node: "other", Epoch: 1}}, says: "other has 1 of the kind volume"},
		"forgotten with places":  {others: []string{}, places: []store.Place{{Kind: "image", ID: "i", Node: "gone", Epoch: 1}}, says: "gone has 1 of the kind image"},
		"an image of elsewhere":  {others: []string{}, image: doze.BuiltPrefix + "mine", places: []store.Place{{Kind: "image", ID: doze.BuiltPrefix + "mine", Node: "ours", Epoch: 1}}, says: "does not have the image " + doze.BuiltPrefix + "mine"},
		"an image of a registry": {others: []string{}, image: "docker.io/library/debian@sha256:0"},
		"a builder is a cache":   {others: []string{}, places: []store.Place{{Kind: "builder", ID: "w", Node: "gone", Epoch: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := settings.Settings{Data: t.TempDir(), Run: t.TempDir(), Cgroup: "doze-none"}
			if err := comeHome(t.Context(), s, DatabaseFile(s.Data)); doze.Public(err).Kind != doze.Conflict || !strings.Contains(err.Error(), "seal.key") {
				t.Errorf("without the keys of control: %v", err)
			}
			id, err := NodeID(s.Data)
			if err != nil {
				t.Fatal(err)
			}
			cipher, err := seal.Open(SealFile(s.Data))
			if err != nil {
				t.Fatal(err)
			}
			st, err := store.Open(t.Context(), DatabaseFile(s.Data), cipher)
			if err != nil {
				t.Fatal(err)
			}
			var errs []error
			if c.others != nil {
				for _, n := range append(c.others, id) {
					_, err := st.PutNode(t.Context(), n, store.NodeBody{}, time.Now())
					errs = append(errs, err)
				}
				errs = append(errs, st.SetSetting(t.Context(), store.HomeNode, "before"))
			}
			for _, p := range c.places {
				if p.Node == "ours" {
					p.Node = id
				}
				errs = append(errs, st.PutPlace(t.Context(), p))
			}
			if c.image != "" {
				errs = append(errs, st.InsertWorkspace(t.Context(), doze.Workspace{ID: "w", Name: "w"}))
				_, err := st.ChangeImage(t.Context(), "w", "mine", func(i *doze.Image) error {
					i.Spec.Tags = []doze.ImageTag{{Name: "latest", Image: c.image}}
					return nil
				})
				errs = append(errs, err)
			}
			if err := errors.Join(append(errs, st.Close(), os.WriteFile(filepath.Join(s.Data, "leased"), nil, 0o600))...); err != nil {
				t.Fatal(err)
			}
			err = comeHome(t.Context(), s, DatabaseFile(s.Data))
			_, leased := os.Stat(filepath.Join(s.Data, "leased"))
			switch {
			case c.says == "" && (err != nil || leased == nil):
				t.Errorf("%v, and the mark of leases: %v", err, leased)
			case c.says != "" && (doze.Public(err).Kind != doze.Conflict || !strings.Contains(err.Error(), c.says) || leased != nil):
				t.Errorf("%v, want %q; the mark of leases: %v", err, c.says, leased)
			}
		})
	}
}
