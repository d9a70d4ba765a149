package agent

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agentapi"
)

// api is what the agent promises to serve, apart from the table.
const api = `
GET|POST|PUT|DELETE|PATCH /
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
POST /doze/files
POST /doze/identity
POST /doze/quiesce
POST /doze/wake
POST /doze/stop
POST /doze/drives
GET|DELETE /doze/drives/{id}
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
	for _, rt := range routes {
		got = append(got, rt.method+" "+rt.pattern)
		// Each row can be reached: no row before it takes its requests.
		sample := strings.NewReplacer("{id}", "x", "{path...}", "x").Replace(rt.pattern)
		if first, _ := match(rt.method, sample, sample); first == nil || first.pattern != rt.pattern {
			t.Errorf("%s %s is not served by its own row", rt.method, rt.pattern)
		}
		if rt.serve == nil {
			t.Errorf("%s %s has no handler", rt.method, rt.pattern)
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
		if !slices.ContainsFunc(routes, func(rt route) bool { return rt.method == c.Method && rt.pattern == c.Path }) {
			t.Errorf("a node asks %s %s, which has no row", c.Method, c.Path)
		}
	}
	for _, rt := range routes {
		known := slices.ContainsFunc(agentapi.Calls, func(c agentapi.Call) bool { return rt.method == c.Method && rt.pattern == c.Path })
		if strings.HasPrefix(rt.pattern, agentapi.Prefix) && !known {
			t.Errorf("%s %s is for the node, and agentapi does not have it", rt.method, rt.pattern)
		}
	}
}

func TestTransport(t *testing.T) {
	t.Parallel()
	a := New(Config{Env: []string{"WORKDIR=" + t.TempDir(), "PATH=/usr/bin:/bin"}, LogDir: t.TempDir() + "/logs", UploadDir: t.TempDir() + "/uploads"})
	serve := func(method, target string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, httptest.NewRequest(method, target, nil))
		return w
	}
	const missing = `{"error":"there is no such path, or it does not take this method"}` + "\n"
	tests := map[string]struct {
		method, target string
		status         int
		body           string
	}{
		"options":          {"OPTIONS", "/any/thing", 204, ""},
		"options, known":   {"OPTIONS", "/process", 204, ""},
		"unknown":          {"GET", "/nope", 404, missing},
		"wrong method":     {"DELETE", "/health", 404, missing},
		"port":             {"GET", "/port/3000/x", 404, missing},
		"no slash":         {"GET", "/filesystem", 404, missing},
		"head":             {"HEAD", "/process/none", 200, ""},
		"head of a file":   {"HEAD", "/filesystem/none", 200, ""},
		"head of the root": {"HEAD", "/", 404, missing},
		"head of mcp":      {"HEAD", "/mcp", 404, missing},
		"mcp stream":       {"GET", "/mcp", 405, `{"error":"send messages with POST"}` + "\n"},
		"mcp session":      {"DELETE", "/mcp", 404, missing},
		"codegen":          {"GET", "/codegen/reranking/x", 400, `{"error":"codegen tools are not configured: they need a service outside of the sandbox"}` + "\n"},
		"head, no get":     {"HEAD", "/doze/wake", 404, missing},
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
			if test.body == missing && w.Header().Get("Content-Type") != "application/json; charset=utf-8" {
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
			a.ServeHTTP(w, httptest.NewRequest(method, "http://sandbox"+path, strings.NewReader("{}")))
			if w.Code >= 300 && w.Code < 400 || w.Header().Get("Location") != "" {
				t.Errorf("%s %s: status %d, location %q", method, path, w.Code, w.Header().Get("Location"))
			}
		}
	}
}

func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	func() {
		defer recovered(w, httptest.NewRequest(http.MethodGet, "/", nil))
		panic("a bug")
	}()
	if w.Code != 500 || w.Body.Len() != 0 {
		t.Errorf("status %d: %q", w.Code, w.Body)
	}
}

func TestPrepareRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, content string) {
		if err := os.MkdirAll(root+name[:strings.LastIndex(name, "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/etc/hosts", "1.2.3.4 mine") // is kept
	write("/etc/resolv.conf", "")       // is filled
	write("/proc/net/route", "Iface\tDestination\tGateway\nlo\t0000007F\t00000000\neth0\t00000000\t0100A8C0\n")
	prepareRoot(root, "box", nameservers(root, nil))
	if got := nameservers(root, []string{"A=b", "DOZE_NAMESERVERS=9.9.9.9,1.1.1.1"}); got != "nameserver 9.9.9.9\nnameserver 1.1.1.1\n" {
		t.Errorf("named by the host: %q", got)
	}
	for name, want := range map[string]string{
		"/etc/hostname":    "box\n",
		"/etc/hosts":       "1.2.3.4 mine\n127.0.1.1\tbox\n",
		"/etc/resolv.conf": "nameserver 192.168.0.1\n",
	} {
		if got, err := os.ReadFile(root + name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}

	n := &names{root: root, host: "box", resolv: nameservers(root, nil)}
	write("/etc/hostname", "chosen\n") // by the user: it is kept
	n.change("copy", environ{"DOZE_NAMESERVERS=9.9.9.9"})
	for name, want := range map[string]string{
		"/etc/hostname":    "chosen\n",
		"/etc/hosts":       "1.2.3.4 mine\n127.0.1.1\tcopy\n",
		"/etc/resolv.conf": "nameserver 9.9.9.9\n",
	} {
		if got, err := os.ReadFile(root + name); err != nil || string(got) != want {
			t.Errorf("in a copy, %s: %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]os.FileMode{
		"/tmp": os.ModeDir | os.ModeSticky | 0o777, "/run": os.ModeDir | 0o755, "/var/log": os.ModeDir | 0o755,
	} {
		if info, err := os.Stat(root + name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
