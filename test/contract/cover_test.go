package contract_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/plane"
)

// fruitless are routes that never succeed, or whose answer is another file.
var fruitless = map[string]string{
	"GET /openapi.json":                          "docs/openapi.json is its answer",
	"GET /images/{type}/{image}/archive":         "its answer is an archive: see e2e.TestImageTravels",
	"GET /platform/history":                      "its numbers are those of the host: see e2e.TestHistory",
	"GET /platform/doctor":                       "its findings are those of the host: see e2e.TestConsoleDoctor",
	"GET /platform/users":                        "it has the users of all conversations: see control.TestWorkspacesAreCreatedByRight",
	"DELETE /platform/nodes/{node}":              "its node has to be stopped: see roster.TestRemove",
	"POST /platform/nodes/settle":                "it needs restored records: see roster.TestRestored",
	"POST /sandboxes/{name}/move":                "it needs a second node: see roster.TestMove",
	"POST /pending-image-shares/{share}/accept":  "no share needs an answer",
	"POST /pending-image-shares/{share}/decline": "no share needs an answer",
}

// faultless are routes that have no errors of their own.
var faultless = map[string]string{
	"GET /login/verify":                           "it asks for the code that is missing",
	"GET /openapi.json":                           "it has no input",
	"GET /health":                                 "it has no input",
	"GET /oauth/jwks":                             "it has no input",
	"GET /drives/jwks.json":                       "it has no input",
	"GET /.well-known/openid-configuration":       "it has no input",
	"GET /.well-known/oauth-authorization-server": "it has no input",
}

// TestEveryRouteHasTranscripts is made from the route table, so that a new route
// cannot be forgotten.
func TestEveryRouteHasTranscripts(t *testing.T) {
	t.Parallel()
	type route struct{ method, pattern string }
	good, bad := map[route]bool{}, map[route]bool{}
	routes := plane.Describe()
	for _, tr := range load(t) {
		for _, e := range tr.exchanges {
			path, _, _ := strings.Cut(e.target, "?")
			rt, ok := routes.RouteOf(e.method, "/v0"+path)
			if !ok {
				continue // it shows that there is none, or is for a sandbox
			}
			switch key, status := (route{rt.Method, rt.Pattern}), e.status(); {
			case status >= 400:
				bad[key] = true
			case status >= 200:
				good[key] = true
			}
		}
	}
	for _, rt := range routes.Routes() {
		t.Run(rt.Method+" "+rt.Pattern, func(t *testing.T) {
			key, text := route{rt.Method, rt.Pattern}, rt.Method+" "+rt.Pattern
			if !good[key] && fruitless[text] == "" {
				t.Error("no transcript shows a success")
			}
			if !bad[key] && faultless[text] == "" {
				t.Error("no transcript shows an error")
			}
		})
	}
}

// elsewhere are the errors that requests alone do not bring about, with the
// tests that do.
var elsewhere = map[string]string{
	"internal":                 "httpx.TestErrorsSurviveTheWire",
	"unprocessable":            "httpx.TestErrorsSurviveTheWire", // of the sandbox API
	"timeout":                  "httpx.TestErrorsSurviveTheWire",
	"INTERNAL_ERROR":           "edge.TestErrorsOfTheNode",
	"WORKLOAD_TIMEOUT":         "edge.TestErrorsOfTheNode",
	"WORKLOAD_FAILED":          "edge.TestErrorsOfTheNode",
	"RATE_LIMITED":             "edge.TestErrorsOfTheNode",
	"REQUEST_ENTITY_TOO_LARGE": "edge.TestBodiesAreBounded",
}

// documented are the rows of the tables of errors in docs/api/errors.md.
var documented = regexp.MustCompile("(?m)^\\| `(\\w+)`(?:, `(\\w+)`)? \\| [45]\\d{2}\\b")

// TestEveryErrorHasATranscript is made from the documentation.
func TestEveryErrorHasATranscript(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/api/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, tr := range load(t) {
		for _, e := range tr.exchanges {
			all.WriteString(e.answer)
		}
	}
	rows := documented.FindAllStringSubmatch(string(raw), -1)
	if len(rows) < 20 {
		t.Fatalf("docs/api/errors.md has %d errors in its tables", len(rows))
	}
	for _, row := range rows {
		for _, name := range row[1:] {
			if name == "" || elsewhere[name] != "" {
				continue
			}
			if !strings.Contains(all.String(), `"error": "`+name+`"`) && !strings.Contains(all.String(), `"code": "`+name+`"`) {
				t.Errorf("no transcript shows the error %s", name)
			}
		}
	}
}
