package plane_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestLabelsFilterLists: each list whose resources have labels can be filtered by them,
// in its two forms.
func TestLabelsFilterLists(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	for path, body := range map[string]string{
		"/sandboxes":        `{"metadata":{"name":"NAME","labels":{"team":"TEAM"}}}`,
		"/volumes":          `{"metadata":{"name":"NAME","labels":{"team":"TEAM"}}}`,
		"/drives":           `{"metadata":{"name":"NAME","labels":{"team":"TEAM"}}}`,
		"/policies":         `{"metadata":{"name":"NAME","labels":{"team":"TEAM"}},"spec":{"type":"maxToken","resourceTypes":["model"],"maxTokens":{"total":1,"granularity":"day","step":1}}}`,
		"/volume_templates": `{"metadata":{"name":"NAME","labels":{"team":"TEAM"}},"spec":{"defaultSize":32}}`,
		"/customdomains":    `{"metadata":{"name":"NAME.example","labels":{"team":"TEAM"}}}`,
		"/workspaces":       `{"name":"NAME","labels":{"team":"TEAM"}}`,
	} {
		for name, team := range map[string]string{"one": "a", "two": "b"} {
			planetest.Want[any](p, http.StatusOK, "POST", path, strings.NewReplacer("NAME", name, "TEAM", team).Replace(body))
		}
		for _, version := range []string{"2026-04-16", "2026-04-28"} {
			for query, counts := range map[string][2]int{
				"labels=team=a": {1, 0}, "labels=team%3Db": {0, 1}, "labels=team=a&labels=team=b": {0, 0}, "labels=x=": {0, 0},
			} {
				w := p.Do("GET", path+"?"+query, "", "Blaxel-Version", version)
				if w.Code != http.StatusOK {
					t.Errorf("%s?%s: %d %s", path, query, w.Code, w.Body)
				}
				for i, name := range []string{`"name":"one`, `"name":"two`} {
					if n := strings.Count(w.Body.String(), name); n != counts[i] {
						t.Errorf("%s?%s in %s has %s %d times: %s", path, query, version, name, n, w.Body)
					}
				}
			}
		}
		for query, says := range map[string]string{
			"labels=team": "labels has \\\"team\\\"; it must be key=value", "labels==a": "it must be key=value", "labels=": "it must be key=value",
			strings.Repeat("labels=a=b&", 65): "labels is there 65 times; at most 64 are allowed",
		} {
			if w := p.Do("GET", path+"?"+query, ""); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%s?%s: %d %s", path, query, w.Code, w.Body)
			}
		}
	}
}
