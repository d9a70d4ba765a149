package api_test

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/plane"
)

// TestToleratedMembers: each row of the tables is needed, says why, and lets its
// members through at their place alone.
func TestToleratedMembers(t *testing.T) {
	t.Parallel()
	whole := plane.Describe()
	none, rows := whole.Intolerant(), whole.Tolerated()
	for _, row := range rows {
		checkTolerated(t, whole, none, row)
	}
	if len(rows) == 0 {
		t.Error("nothing is tolerated")
	}
}

func checkTolerated(t *testing.T, whole, none *api.Server, row api.Tolerated) {
	t.Helper()
	method := row.Method
	if method == "" {
		method = http.MethodPost
	}
	if row.Why == "" {
		t.Errorf("%v: nobody says why", row.Paths)
	}
	for _, path := range row.Paths {
		var body any = 1
		names := strings.Split(path, ".")
		for i := range names {
			body = map[string]any{names[len(names)-1-i]: body}
		}
		tree, _ := body.(map[string]any)
		if p := whole.Strange(method, row.Of, tree); len(p) > 0 {
			t.Errorf("%s of %s: %v", path, row.Of, p)
		}
		if p := whole.Strange(method, row.Of, map[string]any{"other": tree}); len(p) != 1 {
			t.Errorf("other.%s of %s: %v", path, row.Of, p)
		}
		if p := none.Strange(method, row.Of, tree); len(p) != 1 {
			t.Errorf("%s of %s is known without the table: %v", path, row.Of, p)
		}
	}
}

// TestToleratedMembersAreDocumented: the page of what has no effect has each row of the
// tables as not read, and no other.
func TestToleratedMembersAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/api/ignored.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, row := range plane.Describe().Tolerated() {
		for _, path := range row.Paths {
			want = append(want, row.Of.Name()+"."+path)
		}
	}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, " | ")
		if len(cells) == 3 && cells[1] == "not read" {
			for i, span := range strings.Split(cells[0], "`") {
				if name, _, _ := strings.Cut(span, "."); i%2 == 1 && !inside[name] {
					got = append(got, span)
				}
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members that are not read (-tables +docs):\n%s", diff)
	}
}

// inside are the requests of the API inside a sandbox, which has no such table.
var inside = map[string]bool{"UpgradeRequest": true, "UploadPartRequest": true}
