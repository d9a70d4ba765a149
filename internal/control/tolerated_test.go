package control

import (
	"net/http"
	"strings"
	"testing"
)

// TestToleratedMembers: each row of the table is needed, says why, and lets its
// members through at their place alone.
func TestToleratedMembers(t *testing.T) { //nolint:paralleltest // it changes the table
	whole := tolerated
	defer func() { tolerated = whole }()
	for _, row := range whole {
		method := row.method
		if method == "" {
			method = http.MethodPost
		}
		if row.why == "" {
			t.Errorf("%v: nobody says why", row.paths)
		}
		for _, path := range row.paths {
			var body any = 1
			names := strings.Split(path, ".")
			for i := range names {
				body = map[string]any{names[len(names)-1-i]: body}
			}
			tree, _ := body.(map[string]any)
			tolerated = whole
			if p := strangers(method, row.of, tree); len(p) > 0 {
				t.Errorf("%s of %s: %v", path, row.of, p)
			}
			if p := strangers(method, row.of, map[string]any{"other": tree}); len(p) != 1 {
				t.Errorf("other.%s of %s: %v", path, row.of, p)
			}
			tolerated = nil
			if p := strangers(method, row.of, tree); len(p) != 1 {
				t.Errorf("%s of %s is known without the table: %v", path, row.of, p)
			}
		}
	}
}
