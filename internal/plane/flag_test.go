package plane_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestFlags: what is neither true nor false is said, not ignored.
func TestFlags(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	// A flag is refused wherever it stands, so one row each is enough.
	where := map[string]string{
		"countResources":   "GET /workspaces/main",
		"createIfNotExist": "POST /sandboxes",
		"follow":           "GET /builds/none/logs",
		"skip-build":       "POST /images",
		"force":            "POST /sandboxes/a/previews",
		"show_secrets":     "GET /sandboxes/a",
		"showTerminated":   "GET /sandboxes",
		"upload":           "PUT /sandboxes/a",
		"platform":         "GET /audit",
		"withReason":       "POST /workspaces/availability",
	}
	for _, name := range api.Flags() {
		t.Run(name, func(t *testing.T) {
			method, path, ok := strings.Cut(where[name], " ")
			if !ok {
				t.Fatal("the test has no route that reads it")
			}
			for _, v := range []string{"yes", "1", "0", "1x", "True", "", "true "} {
				e := planetest.Want[map[string]any](p, 400, method, path+"?"+name+"="+url.QueryEscape(v), "{}")
				if says := e["message"].(string); !strings.HasPrefix(says, name+" is ") || !strings.Contains(says, "true or false") {
					t.Errorf("%q: %s", v, says)
				}
			}
			planetest.Want[any](p, 400, method, path+"?"+name+"=true&"+name+"=no", "{}")
			if w := p.Do(method, path+"?"+name+"=false", `{"name":"b"}`); w.Code == 400 && strings.Contains(w.Body.String(), name) {
				t.Errorf("false: %d %s", w.Code, w.Body)
			}
		})
	}
	e := planetest.Want[map[string]any](p, 400, "GET", "/sandboxes?limit=x&sort=foo&status=bar&showTerminated=maybe", "")
	for _, says := range []string{"showTerminated is", "limit must", "sort must", "status has"} {
		if message, _ := e["message"].(string); !strings.Contains(message, says) {
			t.Errorf("%q is not in %v", says, e)
		}
	}
	if all := planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", ""); len(all) > 2 { // that of false
		t.Errorf("%d sandboxes", len(all))
	}
}
