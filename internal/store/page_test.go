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

// TestListOfLabels: each label is compared whole and in its case, in any domain.
func TestListOfLabels(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		for name, labels := range map[string]map[string]string{
			"both":  {"team": "a", "env": "test"},
			"team":  {"team": "a"},
			"upper": {"team": "A"},
			"more":  {"team": "ab", "xteam": "a"},
			"odd":   {`a."b'c`: `%_=$\`, "1": "", "é/x": "ü"},
			"none":  nil,
			"env":   {"env": "test"},
		} {
			insert(t, s, name, func(sb *store.Sandbox) {
				sb.Metadata.Labels = labels
				sb.Metadata.DisplayName = "team"
				sb.Spec.Runtime.Envs = []doze.Env{{Name: "team", Value: new("a")}}
			})
		}
		for name, tt := range map[string]struct {
			q    listing.Query
			want []string
		}{
			"one":             {listing.Query{Labels: []listing.Label{label("team", "a")}}, []string{"both", "team"}},
			"two":             {listing.Query{Labels: []listing.Label{label("team", "a"), label("env", "test")}}, []string{"both"}},
			"another case":    {listing.Query{Labels: []listing.Label{label("team", "A")}}, []string{"upper"}},
			"another key":     {listing.Query{Labels: []listing.Label{label("Team", "a")}}, nil},
			"a part":          {listing.Query{Labels: []listing.Label{label("tea", "a")}}, nil},
			"one key, twice":  {listing.Query{Labels: []listing.Label{label("team", "a"), label("team", "A")}}, nil},
			"odd":             {listing.Query{Labels: []listing.Label{label(`a."b'c`, `%_=$\`), label("1", ""), label("é/x", "ü")}}, []string{"odd"}},
			"with a text":     {listing.Query{Text: "both", Labels: []listing.Label{label("team", "a")}}, []string{"both"}},
			"with phases":     {listing.Query{Phases: []string{"pending"}, Labels: []listing.Label{label("team", "a")}}, []string{"both", "team"}},
			"in other phases": {listing.Query{Phases: []string{"running"}, Labels: []listing.Label{label("team", "a")}}, nil},
			"with ended ones": {listing.Query{Terminated: true, Labels: []listing.Label{label("env", "test")}}, []string{"both", "env"}},
		} {
			tt.q.Workspace, tt.q.Sort, tt.q.Limit = "w", listing.NameUp, 1
			if diff := cmp.Diff(tt.want, walk(t, s, tt.q)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})
}

func label(key, value string) listing.Label { return listing.Label{Key: key, Value: value} }

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
