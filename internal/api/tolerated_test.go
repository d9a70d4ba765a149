package api_test

import (
	"net/http"
	"strings"
	"testing"

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
