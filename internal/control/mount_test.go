package control_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestMountsAreOfTheSandboxAPI: what we answer in the place of an agent is as the
// agent's answers are, also for who asks nothing but whether he may, or whether
// there is such a route.
func TestMountsAreOfTheSandboxAPI(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Ctl.ServeMounts(w, r, fleet.Upstream{Workspace: "main", Name: "a", UID: "u"}, r.URL.Path)
	}))
	defer srv.Close()
	for name, test := range map[string]struct {
		method, path string
		status       int
		body         string
	}{
		"options":           {"OPTIONS", "/drives/mount", 204, ""},
		"options of one":    {"OPTIONS", "/drives/mount/mnt/x", 204, ""},
		"head":              {"HEAD", "/drives/mount", 200, ""},
		"head with a slash": {"HEAD", "/drives/mount/", 200, ""},
		"head of one":       {"HEAD", "/drives/mount/mnt/x", 404, ""},
		"all":               {"GET", "/drives/mount", 200, `{"mounts":[]}` + "\n"},
		"one":               {"GET", "/drives/mount/mnt/x", 404, `{"error":"there is no GET of this path"}` + "\n"},
		"a mistake":         {"POST", "/drives/mount", 400, `{"error":"driveName is required; mountPath is required"}` + "\n"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), test.method, srv.URL+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); resp.StatusCode != test.status || string(body) != test.body || err != nil {
			t.Errorf("%s: status %d: %q, %v", name, resp.StatusCode, body, err)
		}
		for _, header := range []string{
			"Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers", "Cache-Control", "Pragma", "Expires", "X-Content-Type-Options",
		} {
			if resp.Header.Get(header) == "" {
				t.Errorf("%s: it has no %s", name, header)
			}
		}
	}
}
