package store_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

var (
	reads = regexp.MustCompile(`(?:SCAN|SEARCH) sandboxes.*`)
	index = regexp.MustCompile(`SEARCH sandboxes USING (?:COVERING )?INDEX (\w+)`)
)

// TestListsUseIndexes asks SQLite how it would find sandboxes: what a list costs
// must not grow with the records that it does not have. PostgreSQL decides by
// what it has counted.
func TestListsUseIndexes(t *testing.T) {
	t.Parallel()
	s := database{t, filepath.Join(t.TempDir(), "doze.db"), filepath.Join(t.TempDir(), "key")}.open(t)
	const byUID = "sqlite_autoindex_sandboxes_1"
	const present = int(doze.Failed-doze.Pending+1) - 1 // all phases but terminated
	some := []string{"failed", "running", "failed"}     // which are two
	search := []string{"sandboxes_created", byUID}      // the first ones; and what the index of pieces has
	for name, test := range map[string]struct {
		q    listing.Query
		want []string // in the order of the plan
	}{
		// Those that have ended may be many, and newer: no list reads over them.
		"what is there":             {listing.Query{}, append([]string{byUID}, slices.Repeat([]string{"sandboxes_phase_created"}, present)...)},
		"what is there, by name":    {listing.Query{Sort: listing.NameUp}, append([]string{byUID}, slices.Repeat([]string{"sandboxes_phase_name"}, present)...)},
		"all":                       {listing.Query{Terminated: true}, []string{"sandboxes_created"}},
		"a search":                  {listing.Query{Text: "x"}, search},
		"a search, by name":         {listing.Query{Text: "x", Sort: listing.NameUp}, []string{"sandboxes_name", byUID}},
		"a search in phases":        {listing.Query{Text: "x", Phases: some, Terminated: true}, search},
		"a search, the last page":   {listing.Query{Text: "x", Tail: true}, search},
		"an external id":            {listing.Query{ExternalID: "x"}, []string{"sandboxes_external_id"}},
		"an external id in a phase": {listing.Query{ExternalID: "x", Phases: some}, []string{"sandboxes_external_id"}},
		"phases":                    {listing.Query{Phases: some}, []string{byUID, "sandboxes_phase_created", "sandboxes_phase_created"}},
		"phases, the last page":     {listing.Query{Phases: some, Tail: true}, []string{byUID, "sandboxes_phase_created", "sandboxes_phase_created"}},
		"phases, by name":           {listing.Query{Phases: some, Sort: listing.NameDown}, []string{byUID, "sandboxes_phase_name", "sandboxes_phase_name"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.q.Workspace, test.q.Limit = "w", 50
			plan, err := s.Plan(t.Context(), test.q)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, step := range reads.FindAllString(plan, -1) {
				if found := index.FindStringSubmatch(step); found != nil {
					step = found[1]
				}
				got = append(got, step)
			}
			if !slices.Equal(test.want, got) {
				t.Errorf("want %q\n%s", test.want, plan)
			}
		})
	}
}
