package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/store"
)

// walk returns the names of a list, page by page.
func walk(t *testing.T, s *store.Store, q listing.Query) (names []string) {
	t.Helper()
	for {
		page, err := s.List(t.Context(), q, epoch)
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page.Records {
			names = append(names, sb.Metadata.Name)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return names
		}
	}
}

// TestListOfPhases: whatever the phases, it is the list of all without the others,
// in the same order.
func TestListOfPhases(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		paths := map[string][]doze.Trigger{
			"pending": nil, "starting": {doze.Placed}, "failed": {doze.Broke}, "deleting": {doze.Delete},
		}
		phase := map[string]string{}
		for i := range 12 {
			name := fmt.Sprintf("n%02d", i*5%12)
			phase[name] = []string{"pending", "starting", "failed", "deleting"}[i%4]
			sb := insert(t, s, name, func(sb *store.Sandbox) {
				sb.Metadata.CreatedAt.Time = epoch.Add(time.Duration(i/5) * time.Second) // some at once
			})
			apply(t, s, sb.UID, paths[phase[name]]...)
		}
		for _, sort := range []listing.Sort{listing.NewestFirst, listing.OldestFirst, listing.NameUp, listing.NameDown} {
			all := walk(t, s, listing.Query{Workspace: "w", Sort: sort, Limit: 100})
			if len(all) != len(phase) {
				t.Fatalf("%s: %q", sort, all)
			}
			for _, phases := range [][]string{{"failed"}, {"pending", "failed", "failed", "running"}, {"deleting", "starting", "pending"}, {"running"}, {}} {
				var want []string
				for _, name := range all {
					if slices.Contains(phases, phase[name]) {
						want = append(want, name)
					}
				}
				q := listing.Query{Workspace: "w", Sort: sort, Limit: 2, Phases: phases}
				if diff := cmp.Diff(want, walk(t, s, q)); diff != "" {
					t.Errorf("%s of %q: %s", sort, phases, diff)
				}
				q.Tail = true
				if diff := cmp.Diff(want[max(len(want)-q.Limit, 0):], walk(t, s, q)); diff != "" {
					t.Errorf("the end of %s of %q: %s", sort, phases, diff)
				}
			}
		}
	})
}
