package contract_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent"
)

// fruitlessInside are routes of a sandbox that never succeed.
var fruitlessInside = map[string]string{
	"GET /openapi.json":                "docs/openapi-sandbox.json is its answer",
	"GET /mcp":                         "there is no stream of messages",
	"PUT /network/tunnel/config":       "sandboxes have no tunnels",
	"DELETE /network/tunnel":           "sandboxes have no tunnels",
	"PUT /codegen/fastapply/{path...}": "nobody who generates code is asked",
	"GET /codegen/reranking/{path...}": "nobody who generates code is asked",
}

// faultlessInside are routes of a sandbox that have no errors of their own.
var faultlessInside = map[string]string{
	"GET /":                     "it has no input",
	"POST /":                    "it has no input",
	"PUT /":                     "it has no input",
	"DELETE /":                  "it has no input",
	"PATCH /":                   "it has no input",
	"GET /openapi.json":         "it has no input",
	"GET /health":               "it has no input",
	"POST /upgrade":             "whatever it is asked for, it does nothing",
	"GET /filesystem-multipart": "it has no input",
	"GET /process":              "it has no input",
	"GET /terminal":             "it has no input",
	"GET /archive/status":       "it has no input",
	"POST /archive/resume":      "it fails while an export runs: TestExport of cmd/doze-agent",
}

// TestEveryRouteInsideHasTranscripts is made from the route table of the agent,
// so that a new route cannot be forgotten.
func TestEveryRouteInsideHasTranscripts(t *testing.T) {
	t.Parallel()
	good, bad := map[agent.Route]bool{}, map[agent.Route]bool{}
	for _, tr := range load(t) {
		for _, e := range tr.exchanges {
			path, _, _ := strings.Cut(strings.TrimPrefix(e.target, "{box}"), "?")
			rt, ok := agent.RouteOf(e.method, path)
			if !ok || !tr.inside() {
				continue // it shows that there is none
			}
			if e.status() < 400 {
				good[rt] = true
			} else {
				bad[rt] = true
			}
		}
	}
	for _, rt := range agent.Routes() {
		t.Run(rt.Method+" "+rt.Pattern, func(t *testing.T) {
			text := rt.Method + " " + rt.Pattern
			if !good[rt] && fruitlessInside[text] == "" {
				t.Error("no transcript shows a success")
			}
			if !bad[rt] && faultlessInside[text] == "" {
				t.Error("no transcript shows an error")
			}
		})
	}
}
