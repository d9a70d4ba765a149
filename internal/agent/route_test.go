package agent

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agentapi"
)

// api is what the agent promises to serve, apart from the table.
const api = `
GET|POST|PUT|DELETE|PATCH /
GET /openapi.json
GET /health
POST /upgrade
POST /environment/reload
GET|PUT|DELETE /filesystem/{path...}
GET|PUT|DELETE /filesystem/tree/{path...}
GET /filesystem-multipart
POST /filesystem-multipart/initiate/{path...}
PUT /filesystem-multipart/{id}/part
GET /filesystem-multipart/{id}/parts
POST /filesystem-multipart/{id}/complete
DELETE /filesystem-multipart/{id}/abort
GET /filesystem-find/{path...}
GET /filesystem-search/{path...}
GET /filesystem-content-search/{path...}
GET /watch/filesystem/{path...}
GET|POST /process
GET|DELETE /process/{id}
DELETE /process/{id}/kill
GET /process/{id}/logs
GET /process/{id}/logs/stream
POST|DELETE /process/{id}/stdin
GET /network/process/{id}/ports
POST|DELETE /network/process/{id}/monitor
PUT /network/tunnel/config
DELETE /network/tunnel
GET /terminal
GET /terminal/ws
POST /archive/export
GET /archive/status
POST /archive/resume
PUT /codegen/fastapply/{path...}
GET /codegen/reranking/{path...}
GET|POST /mcp
GET /doze/keepalive
GET /doze/logs
GET /doze/logs/new
GET|POST /doze/image
POST /doze/files
POST /doze/identity
POST /doze/variables
POST /doze/quiesce
POST /doze/wake
POST /doze/stop
POST /doze/drives
GET|DELETE /doze/drives/{id}
GET /doze/loopback/{id}
GET /ssh
`

func TestTableIsComplete(t *testing.T) {
	t.Parallel()
	var want, got []string
	for line := range strings.Lines(strings.TrimSpace(api)) {
		methods, pattern, _ := strings.Cut(strings.TrimSpace(line), " ")
		for m := range strings.SplitSeq(methods, "|") {
			want = append(want, m+" "+pattern)
		}
	}
	for _, rt := range anybody.routes() {
		got = append(got, rt.Method+" "+rt.Pattern)
		// Each row can be reached: no row before it takes its requests.
		sample := strings.NewReplacer("{id}", "x", "{path...}", "x").Replace(rt.Pattern)
		if first, _ := anybody.routes().Match(rt.Method, sample, sample); first == nil || first.Pattern != rt.Pattern {
			t.Errorf("%s %s is not served by its own row", rt.Method, rt.Pattern)
		}
		if rt.Serve == nil {
			t.Errorf("%s %s has no handler", rt.Method, rt.Pattern)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the table has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestNodeCalls: the agent serves what its node may ask, and nothing else below
// the prefix of the node.
func TestNodeCalls(t *testing.T) {
	t.Parallel()
	for _, c := range agentapi.Calls {
		if !slices.ContainsFunc(anybody.routes(), func(rt route.Route) bool { return rt.Method == c.Method && rt.Pattern == c.Path }) {
			t.Errorf("a node asks %s %s, which has no row", c.Method, c.Path)
		}
	}
	for _, rt := range anybody.routes() {
		known := slices.ContainsFunc(agentapi.Calls, func(c agentapi.Call) bool { return rt.Method == c.Method && rt.Pattern == c.Path })
		if strings.HasPrefix(rt.Pattern, agentapi.Prefix) && !known {
			t.Errorf("%s %s is for the node, and agentapi does not have it", rt.Method, rt.Pattern)
		}
	}
}

func TestTransport(t *testing.T) {
	t.Parallel()
	a := New(Config{Env: []string{"WORKDIR=" + t.TempDir(), "PATH=/usr/bin:/bin"}, LogDir: t.TempDir() + "/logs", UploadDir: t.TempDir() + "/uploads"})
	serve := func(method, target string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		a.server.ServeHTTP(w, httptest.NewRequest(method, target, nil))
		return w
	}
	missing := func(method, path string) string {
		return `{"error":"no such path, or it does not take ` + method + `: ` + path + `"}` + "\n"
	}
	tests := map[string]struct {
		method, target string
		status         int
		body           string
	}{
		"options":          {"OPTIONS", "/any/thing", 204, ""},
		"options, known":   {"OPTIONS", "/process", 204, ""},
		"unknown":          {"GET", "/nope", 404, missing("GET", "/nope")},
		"wrong method":     {"DELETE", "/health", 404, missing("DELETE", "/health")},
		"port":             {"GET", "/port/3000/x", 404, missing("GET", "/port/3000/x")},
		"no slash":         {"GET", "/filesystem", 404, missing("GET", "/filesystem")},
		"head":             {"HEAD", "/process/none", 200, ""},
		"head of a file":   {"HEAD", "/filesystem/none", 200, ""},
		"head of the root": {"HEAD", "/", 404, missing("HEAD", "/")},
		"head of mcp":      {"HEAD", "/mcp", 404, missing("HEAD", "/mcp")},
		"mcp stream":       {"GET", "/mcp", 405, `{"error":"send messages with POST"}` + "\n"},
		"mcp session":      {"DELETE", "/mcp", 404, missing("DELETE", "/mcp")},
		"codegen":          {"GET", "/codegen/reranking/x", 400, `{"error":"codegen tools are not configured: they need a service outside of the sandbox"}` + "\n"},
		"head, no get":     {"HEAD", "/doze/wake", 404, missing("HEAD", "/doze/wake")},
		"no socket":        {"GET", "/terminal/ws", 400, `{"error":"this is a WebSocket; connect with a client for those"}` + "\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(test.method, test.target)
			if w.Code != test.status || w.Body.String() != test.body {
				t.Errorf("status %d: %q", w.Code, w.Body)
			}
			for key, want := range map[string]string{
				"Access-Control-Allow-Origin":  "*",
				"Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, HEAD, OPTIONS",
				"Access-Control-Allow-Headers": "Content-Type, Authorization",
				"Cache-Control":                "no-cache, no-store, must-revalidate",
				"Pragma":                       "no-cache",
				"Expires":                      "0",
				"X-Content-Type-Options":       "nosniff",
			} {
				if got := w.Header().Get(key); got != want {
					t.Errorf("%s: %q", key, got)
				}
			}
			if test.status == 404 && w.Header().Get("Content-Type") != "application/json; charset=utf-8" {
				t.Errorf("Content-Type %q", w.Header().Get("Content-Type"))
			}
		})
	}
}

// TestNeverRedirects: a path is what it is; clients build theirs with doubled,
// escaped and trailing slashes and dots, and not all of them follow.
func TestNeverRedirects(t *testing.T) {
	t.Parallel()
	a := New(Config{Env: []string{"WORKDIR=" + t.TempDir(), "PATH=/usr/bin:/bin"}, LogDir: t.TempDir() + "/logs", UploadDir: t.TempDir() + "/uploads"})
	paths := []string{
		"/", "//", "///", "/.", "/..", "//health", "/health/", "/health//", "/./health", "/process/", "//process", "/process//", "/process/x/",
		"/process//kill", "/process/x/logs/", "/process/../health", "/process/%2E%2E/health", "/filesystem", "/filesystem/", "/filesystem//",
		"/filesystem//tmp", "/filesystem/tmp/", "/filesystem/../tmp", "/filesystem%2Ftmp", "/filesystem/%2Ftmp%2F", "/filesystem/tree", "/filesystem/tree/",
		"/filesystem/tree//tmp", "/filesystem/tree/tmp/", "/terminal", "/terminal/", "/terminal/ws/", "/index.html",
		"/filesystem-find//tmp/doze-none", "/filesystem-search%2Ftmp%2Fdoze-none", "/filesystem-multipart/", "/filesystem-multipart//parts", "/filesystem-multipart/initiate//tmp/x",
		"/watch/filesystem//tmp/doze-none", "/network/process/1/ports/", "/network/process//ports", "/mcp/", "//mcp", "/archive/status/", "/codegen/reranking//x", "/filesystem/index.html",
	}
	for _, path := range paths {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
			if method == "DELETE" && strings.HasPrefix(path, "/filesystem") {
				continue // it would
			}
			w := httptest.NewRecorder()
			a.server.ServeHTTP(w, httptest.NewRequest(method, "http://sandbox"+path, strings.NewReader("{}")))
			if w.Code >= 300 && w.Code < 400 || w.Header().Get("Location") != "" {
				t.Errorf("%s %s: status %d, location %q", method, path, w.Code, w.Header().Get("Location"))
			}
		}
	}
}
