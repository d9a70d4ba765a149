package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/quota"
)

// gate is a node whose sandboxes are all one real server.
type gate struct {
	backend string
	dial    dialer
	wakes   atomic.Int32
	err     error // instead of an answer

	mu      sync.Mutex
	seen    []string      // guarded by mu; uid:port
	held    int           // guarded by mu
	changed chan struct{} // guarded by mu; closed and replaced when held changes
}

func (g *gate) hold(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held += n
	close(g.changed)
	g.changed = make(chan struct{})
}

// awaitHeld waits until n requests hold a sandbox.
func (g *gate) awaitHeld(t *testing.T, n int) {
	t.Helper()
	late := time.After(patience)
	for {
		g.mu.Lock()
		held, changed := g.held, g.changed
		g.mu.Unlock()
		if held == n {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%d requests hold a sandbox, want %d", held, n)
		}
	}
}

// Dial implements [edge.Gate].
func (g *gate) Dial(ctx context.Context, uid string, port uint16) (net.Conn, error) {
	g.wakes.Add(1)
	g.mu.Lock()
	g.seen = append(g.seen, fmt.Sprintf("%s:%d", uid, port))
	g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	c, err := g.dial(ctx, "tcp", g.backend)
	if err != nil {
		return nil, err
	}
	g.hold(1)
	return &heldConn{c.(*net.TCPConn), func() { g.hold(-1) }}, nil
}

// heldConn is a connection that holds a sandbox until it is closed.
type heldConn struct {
	*net.TCPConn

	release func()
}

func (h *heldConn) Close() error {
	h.release()
	return h.TCPConn.Close()
}

func (g *gate) Transport(uid string, port uint16) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		g.wakes.Add(1)
		g.mu.Lock()
		g.seen = append(g.seen, fmt.Sprintf("%s:%d", uid, port))
		g.mu.Unlock()
		if g.err != nil {
			return nil, g.err
		}
		tr := &http.Transport{
			DisableCompression: true, DisableKeepAlives: true, ExpectContinueTimeout: 5 * time.Second,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return g.dial(ctx, "tcp", g.backend) },
		}
		g.hold(1)
		resp, err := tr.RoundTrip(r)
		if err != nil {
			g.hold(-1)
			return nil, err
		}
		resp.Body = hold(resp.Body, func() { g.hold(-1) })
		return resp, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type held struct {
	io.ReadWriteCloser
	release func()
}

type heldBody struct {
	io.ReadCloser
	release func()
}

func (h held) Close() error     { defer h.release(); return h.ReadWriteCloser.Close() }
func (h heldBody) Close() error { defer h.release(); return h.ReadCloser.Close() }

func hold(b io.ReadCloser, release func()) io.ReadCloser {
	release = sync.OnceFunc(release)
	if rw, ok := b.(io.ReadWriteCloser); ok {
		return held{rw, release}
	}
	return heldBody{b, release}
}

// world is an edge in front of one backend, with two tenants.
type world struct {
	*Edge
	gate    *gate
	addr    string // of the edge
	second  string // where previews are by path
	dial    dialer
	revoked sync.Map
	quotas  *quota.Book
}

const (
	host = "sbx-web-acme.eu-1.localhost"
	// patience is what may take so long only where something is broken.
	patience = 30 * time.Second
)

func newWorld(t *testing.T, backend http.Handler) *world {
	t.Helper()
	return medium{t: t}.newWorld(backend)
}

func (m medium) newWorld(backend http.Handler) *world {
	t := m.t
	t.Helper()
	var handlers sync.WaitGroup // the server does not wait for those of WebSockets
	t.Cleanup(handlers.Wait)
	back := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		backend.ServeHTTP(w, r)
	}))
	behind := m.carry(back)
	back.Start()
	t.Cleanup(back.Close)
	w := &world{quotas: quota.New(quota.Options{}), gate: &gate{backend: back.Listener.Addr().String(), dial: behind, changed: make(chan struct{})}}
	dir := fleet.NewDirectory()
	for _, r := range []fleet.Upstream{
		{UID: "u-acme-web", Workspace: "acme", Name: "web", Enabled: true},
		{UID: "u-corp-web", Workspace: "corp", Name: "web", Enabled: true},
		{UID: "u-corp-only", Workspace: "corp", Name: "only", Enabled: true},
		{UID: "u-acme-one", Workspace: "acme", Name: "q-e", Enabled: true}, // these two have one host
		{UID: "u-e-acme-one", Workspace: "e-acme", Name: "q", Enabled: true},
		{UID: "u-acme-two", Workspace: "acme", Name: "r-e", Enabled: true}, // and this one that of a sandbox that is gone
		{UID: "u-acme-off", Workspace: "acme", Name: "off"},
		{UID: "u-acme-dead", Workspace: "acme", Name: "dead", Enabled: true, Failed: true},
		{UID: "u-acme-unbuilt", Workspace: "acme", Name: "unbuilt", Enabled: true, Failed: true, Why: "the build failed: no such file"},
		{UID: "u-acme-built", Workspace: "acme", Name: "built", Enabled: true, Building: true},
	} {
		dir.Put(r)
	}
	previews := fleet.NewPreviews()
	for _, p := range testPreviews() {
		previews.Put(p)
	}
	previews.PutDomain(fleet.Domain{Name: "shop.example", Workspace: "acme"})
	w.Edge = New(Config{Addresses: addresses(t, ""), Directory: dir, Previews: previews, Gate: w.gate, Authenticate: w.login, Enter: w.quotas.Enter, Tickets: access.NewTickets()})
	front := httptest.NewUnstartedServer(w.Edge)
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	w.dial = m.carry(front)
	front.Start()
	w.addr = front.Listener.Addr().String()
	if !m.pipes {
		previews := httptest.NewUnstartedServer(w.Previews())
		previews.Config.Protocols = front.Config.Protocols
		previews.Start()
		t.Cleanup(previews.Close)
		w.second = previews.Listener.Addr().String()
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- w.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ran; front.Close() })
	return w
}

// login takes the keys acme and corp, weak, which may only look, and both, which
// is in two workspaces.
func (w *world) login(r *http.Request) (access.Caller, error) {
	token, err := access.Token(r)
	if err != nil {
		return access.Caller{}, err
	}
	_, gone := w.revoked.Load(token)
	scopes := map[string][]string{"acme": {"admin"}, "corp": {"sandboxes:control"}, "weak": {"sandboxes:get"}, "both": {"admin"}}[token]
	if gone || scopes == nil {
		return access.Caller{}, doze.Errorf(doze.Unauthenticated, "the API key is not valid")
	}
	if r.URL.Query().Has("workspace") {
		return access.Caller{}, doze.Errorf(doze.Forbidden, "another workspace")
	}
	workspace := strings.NewReplacer("weak", "acme", "both", "acme").Replace(token)
	c := access.Caller{Sub: "sub-" + token, SubType: "user", Workspace: workspace, Roles: map[string]string{workspace: doze.RoleAdmin}, Scopes: scopes, Key: "id-" + token}
	if token == "both" {
		c.Roles["e-acme"] = doze.RoleMember
	}
	if asked := r.Header.Get("X-Blaxel-Workspace"); asked != "" {
		c.Workspace, c.Chosen = asked, true
	}
	return c, nil
}

// do sends a request with a key, or without one, to a host of the edge, or
// without a host to where previews are by path.
func (w *world) do(t *testing.T, method, host, path, key string, body io.Reader, header ...string) *http.Response {
	t.Helper()
	addr := w.addr
	if host == "" {
		addr = w.second
	}
	return w.doAt(t, addr, method, host, path, key, body, header...)
}

func (w *world) doAt(t *testing.T, addr, method, host, path, key string, body io.Reader, header ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := w.transport().RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (w *world) transport() *http.Transport {
	return &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: 5 * time.Second, DialContext: w.dial}
}

// socket opens a WebSocket.
func (w *world) socket(t *testing.T, host, path string) *websocket.Conn {
	t.Helper()
	c, _, err := websocket.Dial(t.Context(), "http://"+w.addr+path, &websocket.DialOptions{Host: host, HTTPClient: &http.Client{Transport: w.transport()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseNow() })
	return c
}

// platformError reads the body of an error that must be of the platform.
func platformError(t *testing.T, resp *http.Response) map[string]any {
	t.Helper()
	var b struct{ Error map[string]any }
	if err := json.NewDecoder(resp.Body).Decode(&b); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"action", "code", "do_not", "docs_url", "message", "origin", "retryable", "status", "timestamp"} {
		if _, ok := b.Error[k]; !ok {
			t.Errorf("the body has no %s", k)
		}
	}
	if b.Error["code"] != resp.Header.Get("X-Blaxel-Error-Code") || resp.Header.Get("X-Blaxel-Source") != "platform" ||
		b.Error["status"] != float64(resp.StatusCode) || b.Error["origin"] != "platform" {
		t.Errorf("status %d, header %v, body %v", resp.StatusCode, resp.Header, b.Error)
	}
	return b.Error
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWhoMayEnterWhat(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") }))
	cases := map[string]struct {
		host, path, key string
		status          int
		code            string
		uid             string
	}{
		"own, by host":          {host, "/", "acme", 200, "", "u-acme-web:8080"},
		"own, by path":          {"x", "/run/acme/sandboxes/web/health", "acme", 200, "", "u-acme-web:8080"},
		"other tenant, own":     {"sbx-web-corp.eu-1.localhost", "/", "corp", 200, "", "u-corp-web:8080"},
		"port":                  {host, "/port/3000/x", "acme", 200, "", "u-acme-web:3000"},
		"query of the sandbox":  {host, "/port/3000/?workspace=x", "acme", 200, "", "u-acme-web:3000"},
		"port without rest":     {host, "/port/3000", "acme", 200, "", "u-acme-web:3000"},
		"terminal token":        {host, "/terminal/ws?token=acme", "", 200, "", "u-acme-web:8080"},
		"foreign, by host":      {"sbx-only-corp.eu-1.localhost", "/", "acme", 404, workloadNotFound, ""},
		"foreign, by path":      {"x", "/run/corp/sandboxes/only/", "acme", 404, workloadNotFound, ""},
		"foreign, same name":    {"x", "/run/corp/sandboxes/web/", "acme", 404, workloadNotFound, ""},
		"unknown":               {"sbx-nope-acme.eu-1.localhost", "/", "acme", 404, workloadNotFound, ""},
		"not an address":        {"x", "/run/", "acme", 404, workloadNotFound, ""},
		"failed":                {"sbx-dead-acme.eu-1.localhost", "/", "acme", 409, workloadFailed, ""},
		"failed build":          {"sbx-unbuilt-acme.eu-1.localhost", "/", "acme", 409, workloadFailed, ""},
		"being built":           {"sbx-built-acme.eu-1.localhost", "/", "acme", 503, workloadDisabled, ""},
		"disabled":              {"sbx-off-acme.eu-1.localhost", "/", "acme", 404, workloadDisabled, ""},
		"no credential":         {host, "/", "", 401, authRequired, ""},
		"bad credential":        {host, "/", "guess", 401, authFailed, ""},
		"no scope":              {host, "/", "weak", 403, forbidden, ""},
		"no scope, not there":   {"sbx-nope-acme.eu-1.localhost", "/", "weak", 404, workloadNotFound, ""},
		"token elsewhere":       {host, "/health?token=acme", "", 401, authRequired, ""},
		"token on a port":       {host, "/port/3000/terminal/ws?token=acme", "", 401, authRequired, ""},
		"private":               {host, "/doze/freeze", "acme", 404, routeNotFound, ""},
		"private, encoded":      {host, "/%2Fdoze/freeze", "acme", 404, routeNotFound, ""},
		"private, by the port":  {host, "/port/8080/doze/freeze", "acme", 404, routeNotFound, ""},
		"private on other port": {host, "/port/3000/doze/x", "acme", 200, "", "u-acme-web:3000"},
		"port 0":                {host, "/port/0/", "acme", 400, badRequest, ""},
		"port 65536":            {host, "/port/65536/", "acme", 400, badRequest, ""},
		"port +1":               {host, "/port/+1/", "acme", 400, badRequest, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w.gate.seen = nil
			resp := w.do(t, http.MethodGet, c.host, c.path, c.key, nil)
			if resp.StatusCode != c.status {
				t.Fatalf("status %d, want %d", resp.StatusCode, c.status)
			}
			if c.code != "" && platformError(t, resp)["code"] != c.code {
				t.Errorf("code %s, want %s", resp.Header.Get("X-Blaxel-Error-Code"), c.code)
			}
			if diff := cmp.Diff(strings.Fields(c.uid), w.gate.seen, cmp.Transformer("len", func(s []string) string { return fmt.Sprint(s) })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestUnbuilt: a sandbox without an image says when to come back, or why it has none.
func TestUnbuilt(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	resp := w.do(t, http.MethodGet, "sbx-built-acme.eu-1.localhost", "/", "acme", nil)
	e := platformError(t, resp)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != buildingRetry || e["retryable"] != true {
		t.Errorf("being built: %d %v %v", resp.StatusCode, resp.Header, e)
	}
	resp = w.do(t, http.MethodGet, "sbx-unbuilt-acme.eu-1.localhost", "/", "acme", nil)
	e = platformError(t, resp)
	if resp.StatusCode != http.StatusConflict || e["message"] != "the sandbox is failed: the build failed: no such file" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("failed: %d %v %v", resp.StatusCode, resp.Header, e)
	}
}

// TestOneHostOfTwo: a host that may be that of several sandboxes leads to the one
// in the workspace that is named, or that there is, and else to none.
func TestOneHostOfTwo(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") }))
	const one, two = "sbx-q-e-acme.eu-1.localhost", "sbx-r-e-acme.eu-1.localhost"
	for name, c := range map[string]struct {
		host, key, workspace string
		status               int
		uid                  string
	}{
		"of one workspace":           {one, "acme", "", 200, "u-acme-one:8080"},
		"of two":                     {one, "both", "", 400, ""},
		"of two, the first is named": {one, "both", "acme", 200, "u-acme-one:8080"},
		"of two, the other is named": {one, "both", "e-acme", 200, "u-e-acme-one:8080"},
		"the other one is left":      {two, "both", "", 200, "u-acme-two:8080"},
		"what is named is gone":      {two, "both", "e-acme", 404, ""},
		"another one is named":       {host, "both", "e-acme", 200, "u-acme-web:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			w.gate.seen = nil
			var header []string
			if c.workspace != "" {
				header = []string{"X-Blaxel-Workspace", c.workspace}
			}
			if resp := w.do(t, http.MethodGet, c.host, "/", c.key, nil, header...); resp.StatusCode != c.status {
				t.Errorf("status %d, want %d", resp.StatusCode, c.status)
			}
			if got := strings.Join(w.gate.seen, " "); got != c.uid {
				t.Errorf("it is %q, want %q", got, c.uid)
			}
		})
	}
}

func TestAForeignSandboxLooksLikeNone(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	var bodies []string
	for _, path := range []string{"/run/corp/sandboxes/only/", "/run/corp/sandboxes/nope/", "/run/none/sandboxes/nope/", "/run/acme/sandboxes/nope/"} {
		resp := w.do(t, http.MethodGet, "x", path, "acme", nil)
		b := platformError(t, resp)
		delete(b, "timestamp")
		resp.Header.Del("X-Request-Id")
		resp.Header.Del("Date")
		resp.Header.Del("Content-Length") // timestamps differ in length
		bodies = append(bodies, fmt.Sprint(resp.StatusCode, resp.Header, b))
	}
	if len(slices.Compact(bodies)) != 1 {
		t.Errorf("they differ:\n%s", strings.Join(bodies, "\n"))
	}
}

func TestHostsThatOnlyLookLikeASandboxs(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	for name, host := range map[string]string{
		"another region":    "sbx-web-acme.mars.localhost",
		"another domain":    "sbx-web-acme.eu-1.example.com",
		"no domain":         "sbx-web-acme",
		"nobody's preview":  "sbx-web.preview.example.com",
		"no name":           "sbx-.eu-1.localhost",
		"a host and a path": "sbx-web-acme.mars.localhost:80",
	} {
		for _, path := range []string{"/health", "/v0/sandboxes", "/run/acme/sandboxes/web/health", "/preview/x/"} {
			for _, key := range []string{"", "acme"} {
				t.Run(name+path+key, func(t *testing.T) {
					resp := w.do(t, http.MethodGet, host, path, key, nil)
					b := platformError(t, resp)
					if resp.StatusCode != http.StatusNotFound || b["code"] != routeNotFound || b["retryable"] != false {
						t.Errorf("%d %v", resp.StatusCode, b)
					}
				})
			}
		}
	}
	if n := w.gate.wakes.Load(); n > 0 {
		t.Errorf("%d requests woke a sandbox", n)
	}
}

func TestBadRequestsWakeNothing(t *testing.T) {
	w := newWorld(t, http.NotFoundHandler())
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	bad := []struct{ method, host, path, key string }{
		{"GET", host, "/", ""},
		{"POST", host, "/process", "guess"},
		{"GET", host, "/terminal/ws?token=guess", ""},
		{"OPTIONS", host, "/process", ""},
		{"GET", "sbx-web-corp.eu-1.localhost", "/", "acme"},
		{"GET", "sbx-off-acme.eu-1.localhost", "/", "acme"},
		{"DELETE", host, "/", "weak"},
		{"GET", host, "/doze/x", "acme"},
		{"GET", host, "/port/x/", "acme"},
		{"GET", "y", "/run/../../etc", "acme"},
	}
	for i := range 1000 {
		b := bad[i%len(bad)]
		r, err := http.NewRequestWithContext(t.Context(), b.method, "http://"+w.addr+b.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = b.host
		if b.key != "" {
			r.Header.Set("X-Blaxel-Authorization", "Bearer "+b.key)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode < 400 && b.method != http.MethodOptions {
			t.Errorf("%v: %d", b, resp.StatusCode)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	if n := w.gate.wakes.Load(); n != 0 {
		t.Errorf("%d wakes", n)
	}
}

func TestCredentialsStayOutside(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Blaxel-Source", "platform")
		w.Header().Add("Set-Cookie", "doze_session=stolen")
		w.Header().Add("Set-Cookie", "app=1")
		io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s\n", r.Method, r.RequestURI)
		r.Header.Write(w)
		r.Trailer.Write(w)
	}))
	raw := "POST /terminal/ws?a=1&token=hunter2&b HTTP/1.1\r\nHost: " + host + "\r\nConnection: close, X-Blaxel-Subject-Id\r\n" +
		"X-Blaxel-Authorization: Bearer acme\r\nAuthorization: Bearer hunter2\r\nProxy-Authorization: hunter2\r\n" +
		"X-Blaxel-Subject-Id: hunter2\r\nX_Blaxel_Subject_Type: hunter2\r\nX-Subject-Id: hunter2\r\nX-Blaxel-Preview-Token: hunter2\r\n" +
		"X-Forwarded-For: hunter2\r\nX-Forwarded-User: hunter2\r\nX-Forwarded-Host: hunter2\r\nForwarded: for=hunter2\r\nX-Real-IP: hunter2\r\nX-Request-Id: hunter2\r\n" +
		"Cookie: app=kept; __Host-doze_session=hunter2; b=2\r\n" +
		"Trailer: Authorization, X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"1\r\nx\r\n0\r\nAuthorization: hunter2\r\nX-Sum: good\r\n\r\n"
	conn, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, raw)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, resp)
	if strings.Contains(got, "hunter2") || strings.Contains(got, "Bearer") {
		t.Errorf("the sandbox sees:\n%s", got)
	}
	for _, want := range []string{
		"POST /terminal/ws?a=1&b\n", "X-Blaxel-Subject-Id: sub-acme\r\n", "X-Blaxel-Subject-Type: user\r\n", "X-Request-Id: ",
		"X-Forwarded-For: 127.0.0.1\r\n", "X-Forwarded-Proto: https\r\n", "X-Forwarded-Host: " + host + "\r\n", "Cookie: app=kept; b=2\r\n", "X-Sum: good\r\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	if resp.Header.Get("X-Blaxel-Source") != "" || !slices.Equal(resp.Header["Set-Cookie"], []string{"app=1"}) {
		t.Errorf("the sandbox speaks for the platform: %v", resp.Header)
	}
}

// TestCredentialsInAQuery: what opens a sandbox is taken out, and what does not
// is the caller's own.
func TestCredentialsInAQuery(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "sees "+r.RequestURI) }))
	const page = "the page of the edge"
	for _, param := range []string{"token", "Token", "%74oken", "api_key", "apiKey", "access_token", "key", "jwt", "bl_preview_token"} {
		isToken := strings.HasSuffix(strings.ToLower(param), "oken") && len(param) <= len("%74oken")
		for path, opens := range map[string]bool{
			"/terminal": false, "/terminal/": false, "/terminal/ws": isToken, // a page takes tickets only
			"/": false, "/health": false, "/terminals": false, "/terminal/ws/x": false, "/x/terminal": false, "/filesystem/terminal": false, "/process": false, "/mcp": false,
			"/drives/mount": false, "/port/8080/terminal": false, "/port/3000/": false, "/port/3000/terminal": false, "/port/3000/terminal/ws": false,
		} {
			t.Run(path+"?"+param, func(t *testing.T) {
				sent := path + "?a=1&" + param + "=acme&b"
				alone := w.do(t, http.MethodGet, host, sent, "", nil)
				if opened := alone.StatusCode == http.StatusOK; opened != opens {
					t.Fatalf("alone it opens: %t (%d)", opened, alone.StatusCode)
				}
				// Beside another credential it is the sandbox's unless it is one, too.
				want := "sees " + strings.TrimPrefix(strings.TrimPrefix(sent, "/port/8080"), "/port/3000")
				if isToken && strings.HasPrefix(strings.TrimPrefix(path, "/port/8080"), "/terminal") {
					want = "sees " + strings.TrimPrefix(path, "/port/8080") + "?a=1&b"
				}
				got := text(t, w.do(t, http.MethodGet, host, sent, "acme", nil))
				if strings.HasSuffix(got, "</html>\n") {
					got = page
				}
				if isToken && slices.Contains([]string{"/terminal", "/terminal/", "/port/8080/terminal"}, path) {
					want = page
				}
				if got != want {
					t.Errorf("it %.80s, want %s", got, want)
				}
			})
		}
	}
}

// TestThePageOfATerminal: an address with a ticket opens a page that the sandbox
// has no hand in, and that keeps the ticket.
func TestThePageOfATerminal(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "by the sandbox") }))
	ticket := w.ticket(t, "acme", "web")
	resp := w.do(t, http.MethodGet, host, "/terminal?token="+ticket+"&sessionId=x", "", nil, "Sec-Fetch-Dest", "document")
	if got := text(t, resp); resp.StatusCode != http.StatusOK || !strings.Contains(got, "</html>") || strings.Contains(got, "acme") || strings.Contains(got, ticket) || w.gate.wakes.Load() != 0 {
		t.Errorf("status %d, %d wakes: %.80s", resp.StatusCode, w.gate.wakes.Load(), got)
	}
	for name, want := range map[string]string{"Referrer-Policy": "no-referrer", "Cache-Control": "no-cache, no-store, must-revalidate", "Content-Type": "text/html; charset=utf-8"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := text(t, w.do(t, http.MethodGet, host, "/terminal", "acme", nil)); got != "by the sandbox" {
		t.Errorf("without a token in its address it is %.80s", got)
	}
	if resp := w.do(t, http.MethodGet, host, "/terminal?token=guess", "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", resp.StatusCode)
	}
}

// TestBytesAreExact compares request lines on raw sockets, since every HTTP
// library has its own idea of a path.
func TestBytesAreExact(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			rd := bufio.NewReader(conn)
			line, _ := rd.ReadString('\n')
			for h := ""; h != "\r\n"; {
				if h, err = rd.ReadString('\n'); err != nil {
					break
				}
			}
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			conn.Close()
			lines <- line
		}
	})
	defer served.Wait()
	defer ln.Close()

	w := newWorld(t, http.NotFoundHandler())
	w.gate.backend = ln.Addr().String()
	for _, want := range []string{
		"/", "/filesystem/%2Ftmp%2Fa%20b%2Fc.txt", "/filesystem//tmp//b", "/filesystem%2Ftmp/a.txt", "//filesystem/x", "///", "/a/../b/./c", "/a/..%2f..%2Fb",
		"/%7euser/%7E", "/a?b=1&b=%zz;c&&=", "/a?", "/a??", "/?x=/../y//z", "/a;b=c/d,e:f@g!$'()*+", `/a"b<c>^d|e{f}` + "`", "/h\xc3\xa9", "/a#b", "/%",
	} {
		if want == "/%" {
			continue // no server reads it; the fuzz target has it
		}
		for _, prefix := range []string{"", "/run/acme/sandboxes/web", "/port/3000", "/run/acme/sandboxes/web/port/3000"} {
			conn, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			at := host
			if strings.HasPrefix(prefix, "/run") {
				at = "doze.example.com"
			}
			fmt.Fprintf(conn, "GET %s%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer acme\r\nConnection: close\r\n\r\n", prefix, want, at)
			answer, _ := io.ReadAll(conn)
			conn.Close()
			if !bytes.HasPrefix(answer, []byte("HTTP/1.1 204")) {
				t.Fatalf("%s%s: %s", prefix, want, answer)
			}
			if got := <-lines; got != "GET "+want+" HTTP/1.1\r\n" {
				t.Errorf("%s%s arrived as %q", prefix, want, got)
			}
		}
	}
}

func TestStreamsAreDuplex(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex()
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusOK)
		rc.Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			w.Write(buf[:n])
			rc.Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("X-Sum", "good")
	})
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	for name, tr := range map[string]*http.Transport{"HTTP/1.1": {}, "HTTP/2": {Protocols: h2c}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, echo)
			defer tr.CloseIdleConnections()
			up, in := io.Pipe()
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.addr+"/", up)
			r.Host = host
			r.Header.Set("Authorization", "Bearer acme")
			resp, err := tr.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			buf := make([]byte, 100)
			for i := range 10 {
				sent := fmt.Sprintf("message %d", i)
				io.WriteString(in, sent)
				n, err := resp.Body.Read(buf)
				if err != nil || string(buf[:n]) != sent {
					t.Fatalf("sent %q, got %q, %v", sent, buf[:n], err)
				}
			}
			in.Close()
			io.Copy(io.Discard, resp.Body)
			if resp.Trailer.Get("X-Sum") != "good" {
				t.Errorf("trailer %v", resp.Trailer)
			}
			w.gate.awaitHeld(t, 0)
		})
	}
}

func TestExpectContinueReachesTheSandbox(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	}))
	resp := w.do(t, http.MethodPut, host, "/x", "acme", strings.NewReader("body"), "Expect", "100-continue")
	if got := text(t, resp); got != "body" {
		t.Errorf("got %q", got)
	}
}

// TestInterimAnswersPass: what a sandbox sends ahead of its answer reaches the
// client, but for what the platform alone may say, and not one of HTTP/1.0.
func TestInterimAnswersPass(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for _, field := range []string{"Connection: X-Hop", "X-Hop: 1", "Keep-Alive: 1", "X-Blaxel-Source: platform", "Set-Cookie: " + ourCookie + "x=1", "Set-Cookie: a=b"} {
			name, value, _ := strings.Cut(field, ": ")
			h.Add(name, value)
		}
		for _, hint := range []string{"</a.css>", "</b.css>"} {
			h.Set("Link", hint)
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.WriteHeader(http.StatusProcessing)
		for name := range h {
			h.Del(name)
		}
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, "tea")
	}))
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	for name, tr := range map[string]*http.Transport{"HTTP/1.1": {DisableKeepAlives: true}, "HTTP/2": {Protocols: h2c}} {
		t.Run(name, func(t *testing.T) {
			defer tr.CloseIdleConnections()
			var got []string
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				got = append(got, fmt.Sprint(code, h))
				return nil
			}})
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.addr+"/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			r.Header.Set("Authorization", "Bearer acme")
			resp, err := tr.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			want := []string{"103 map[Link:[</a.css>] Set-Cookie:[a=b]]", "103 map[Link:[</b.css>] Set-Cookie:[a=b]]", "102 map[Link:[</b.css>] Set-Cookie:[a=b]]"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if body := text(t, resp); resp.StatusCode != http.StatusTeapot || body != "tea" || resp.Header.Get("Link") != "" || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("%d %q, %v", resp.StatusCode, body, resp.Header)
			}
		})
	}
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /x HTTP/1.0\r\nHost: %s\r\nAuthorization: Bearer acme\r\n\r\n", host)
	b, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.0 418 ") {
		t.Errorf("HTTP/1.0: %q, %v", b, err)
	}
}

func TestWebSocketEcho(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	}))
	c, _, err := websocket.Dial(t.Context(), "http://"+w.addr+"/terminal/ws?token=acme&cols=80", &websocket.DialOptions{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for i := range 10 {
		want := fmt.Sprintf("message %d", i)
		if err := c.Write(t.Context(), websocket.MessageText, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || string(got) != want {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	w.gate.awaitHeld(t, 1)
	c.Close(websocket.StatusNormalClosure, "")
	w.gate.awaitHeld(t, 0)
}

func TestTheSandboxHearsThatTheClientLeft(t *testing.T) {
	gone := make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	resp := w.do(t, http.MethodGet, host, "/", "acme", nil)
	resp.Body.Close()
	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("it never heard")
	}
	w.gate.awaitHeld(t, 0)
}

func TestRevokedCredentialsEndOpenRequests(t *testing.T) {
	quiet := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	flood := func(m medium) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			// The proxy holds a lock while it writes the body, and at first another
			// of its goroutines wants it: in a bubble it must have had it.
			http.NewResponseController(w).Flush()
			time.Sleep(m.beat)
			for block := make([]byte, 64<<10); ; time.Sleep(m.beat) {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}
	}
	for name, c := range map[string]struct {
		backend func(medium) http.HandlerFunc
		reads   bool
	}{
		"quiet stream":           {func(medium) http.HandlerFunc { return quiet }, true},
		"client that reads":      {flood, true},
		"client that never does": {flood, false},
	} {
		overEach(t, name, func(m medium) {
			t := m.t
			w := m.newWorld(c.backend(m))
			resp := w.do(t, http.MethodGet, host, "/", "acme", nil)
			other := w.do(t, http.MethodGet, "sbx-web-corp.eu-1.localhost", "/", "corp", nil)
			w.revoked.Store("acme", true)
			start := time.Now()
			if c.reads {
				io.Copy(io.Discard, resp.Body)
			}
			w.gate.awaitHeld(t, 1)
			m.within(start, time.Second)
			if other.StatusCode != http.StatusOK {
				t.Error("the other tenant was cut off")
			}
		})
	}
	overEach(t, "WebSocket", func(m medium) {
		t := m.t
		w := m.newWorld(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err == nil {
				defer c.CloseNow()
				_, _, _ = c.Read(r.Context())
			}
		}))
		c := w.socket(t, host, "/terminal/ws?token=acme")
		w.revoked.Store("acme", true)
		start := time.Now()
		if _, _, err := c.Read(t.Context()); err == nil {
			t.Error("it is open")
		}
		m.within(start, time.Second)
		w.gate.awaitHeld(t, 0)
	})
	overEach(t, "at once when told", func(m medium) {
		t := m.t
		w := m.newWorld(http.HandlerFunc(quiet))
		resp := w.do(t, http.MethodGet, host, "/", "acme", nil)
		w.revoked.Store("acme", true)
		start := time.Now()
		w.Recheck()
		_, _ = io.Copy(io.Discard, resp.Body)
		w.gate.awaitHeld(t, 0)
		m.within(start, 0)
	})
	t.Run("before an answer", func(t *testing.T) {
		t.Parallel()
		asked := make(chan struct{})
		w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(asked)
			<-r.Context().Done()
		}))
		go func() {
			<-asked
			w.revoked.Store("acme", true)
		}()
		resp := w.do(t, http.MethodGet, host, "/", "acme", nil)
		if resp.StatusCode != http.StatusUnauthorized || platformError(t, resp)["code"] != authFailed {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
}

func TestShortRequestsFinishAtShutdown(t *testing.T) {
	asked, stopping := make(chan struct{}), make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-stopping
		io.WriteString(w, "done")
	}))
	var ending sync.WaitGroup
	ending.Go(func() {
		<-asked
		w.streams.mu.Lock()
		w.streams.closed = true
		w.streams.mu.Unlock()
		close(stopping)
		w.streams.end()
	})
	defer ending.Wait()
	if got := text(t, w.do(t, http.MethodGet, host, "/", "acme", nil)); got != "done" {
		t.Errorf("got %q", got)
	}
}

// asleep is a gate to a sandbox that does not wake.
type asleep struct{ asked chan struct{} }

func (a asleep) Dial(context.Context, string, uint16) (net.Conn, error) {
	return nil, errors.New("nobody connects to it")
}

func (a asleep) Transport(string, uint16) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		close(a.asked)
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	})
}

// TestCutAtShutdown: what the sandbox may have is not to be sent again.
func TestCutAtShutdown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sent      bool
		method    string
		retryable bool
		message   string
	}{
		"before it was sent":   {false, http.MethodPost, true, "try again"},
		"a POST that was sent": {true, http.MethodPost, false, "may have run"},
		"a GET that was sent":  {true, http.MethodGet, false, "may have run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{})
			w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(asked)
				<-r.Context().Done()
			}))
			if !tt.sent {
				w.Edge.gate = asleep{asked}
			}
			var ending sync.WaitGroup
			ending.Go(func() { <-asked; w.streams.end() })
			defer ending.Wait()
			resp := w.do(t, tt.method, host, "/", "acme", nil)
			got := platformError(t, resp)
			if message, _ := got["message"].(string); got["retryable"] != tt.retryable || !strings.Contains(message, tt.message) {
				t.Errorf("%d %v", resp.StatusCode, got)
			}
			if advised := resp.Header.Get("X-Should-Retry") != "false"; resp.StatusCode != http.StatusServiceUnavailable || advised != tt.retryable {
				t.Errorf("%d, to be tried again: %t", resp.StatusCode, advised)
			}
		})
	}
}

func TestNothingStaysOpenAfterRun(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	resp := w.do(t, http.MethodGet, host, "/", "acme", nil)
	w.streams.end()
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the stream ended as if complete")
	}
	if resp := w.do(t, http.MethodGet, host, "/", "acme", nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a new request: %d", resp.StatusCode)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	w.bodyMax = 1 << 20
	for name, body := range map[string]io.Reader{
		"announced": bytes.NewReader(make([]byte, 1<<20+1)),
		"chunked":   io.MultiReader(bytes.NewReader(make([]byte, 1<<20+1))),
	} {
		t.Run(name, func(t *testing.T) {
			resp := w.do(t, http.MethodPost, host, "/", "acme", body, "Expect", "100-continue")
			if resp.StatusCode != http.StatusRequestEntityTooLarge || platformError(t, resp)["code"] != bodyTooLarge {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	if resp := w.do(t, http.MethodPost, host, "/", "acme", bytes.NewReader(make([]byte, 1<<20))); resp.StatusCode != http.StatusOK {
		t.Errorf("the largest body: %d", resp.StatusCode)
	}
}

// TestEarlyAnswers: a client that reads only after it has sent gets the answer, although
// that came before the end of its body, by longer than a server waits by itself.
func TestEarlyAnswers(t *testing.T) {
	const most = 2 << 20
	for name, tt := range map[string]struct {
		length string
		most   int64 // of a body
		reads  int64 // what the sandbox reads of it
		status string
	}{
		"of the sandbox":              {"Content-Length: 1048576", most, 0, "429"},
		"of the sandbox, in chunks":   {"Transfer-Encoding: chunked", most, 0, "429"},
		"expected, and begun":         {"Expect: 100-continue\r\nContent-Length: 1048576", most, 1, "429"},
		"of the edge":                 {"Content-Length: 2097153", most, 0, "413"},
		"in the middle of its chunks": {"Transfer-Encoding: chunked", 1 << 18, most, "413"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, tt.reads)
				w.WriteHeader(http.StatusTooManyRequests)
			}))
			w.bodyMax = tt.most
			conn, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer acme\r\n%s\r\n\r\n", host, tt.length)
			for range 16 { // 1.6 s
				if err != nil {
					t.Fatalf("while it sends: %v", err)
				}
				time.Sleep(100 * time.Millisecond)
				piece := strings.Repeat("x", 64<<10)
				if strings.HasPrefix(tt.length, "Transfer") {
					piece = "10000\r\n" + piece + "\r\n"
				}
				_, err = io.WriteString(conn, piece)
			}
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err == nil && resp.StatusCode == http.StatusContinue {
				resp, err = http.ReadResponse(in, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if !strings.HasPrefix(resp.Status, tt.status) {
				t.Errorf("it got %s", resp.Status)
			}
		})
	}
}

func TestErrorsOfTheNode(t *testing.T) {
	cases := map[string]struct {
		err       error
		method    string
		status    int
		code      string
		retryable bool
	}{
		"unavailable":   {doze.Errorf(doze.Unavailable, "the node is full"), "POST", 503, workloadDisabled, true},
		"refused":       {doze.Wrap(syscall.ECONNREFUSED, doze.Unavailable, "nothing listens"), "POST", 503, workloadDisabled, true},
		"its node away": {doze.Wrap(fleet.ErrUnreachable, doze.Unavailable, "its node cannot be reached"), "POST", 503, workloadDisabled, true},
		"cut, POST":     {doze.Wrap(io.EOF, doze.Unavailable, "it hung up"), "POST", 503, workloadDisabled, false},
		"cut, GET":      {doze.Wrap(io.EOF, doze.Unavailable, "it hung up"), "GET", 503, workloadDisabled, true},
		"timeout":       {doze.Errorf(doze.Timeout, "it did not wake"), "POST", 504, workloadTimeout, true},
		"deadline":      {context.DeadlineExceeded, "POST", 504, workloadTimeout, true},
		"gone":          {doze.Errorf(doze.NotFound, "it is gone"), "GET", 404, workloadNotFound, false},
		"failed":        {doze.Errorf(doze.Conflict, "the sandbox is failed"), "GET", 409, workloadFailed, false},
		"ours":          {doze.Errorf(doze.Invalid, "bad order"), "GET", 500, internalError, true},
		"broken, GET":   {io.ErrUnexpectedEOF, "GET", 503, workloadDisabled, true},
		"broken, POST":  {io.ErrUnexpectedEOF, "POST", 503, workloadDisabled, false},
		"with a secret": {fmt.Errorf("dial 10.0.0.1: %w", errors.New("hunter2")), "GET", 503, workloadDisabled, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, http.NotFoundHandler())
			w.gate.err = c.err
			resp := w.do(t, c.method, host, "/", "acme", nil)
			b := platformError(t, resp)
			if resp.StatusCode != c.status || b["code"] != c.code || b["retryable"] != c.retryable {
				t.Errorf("%d %v", resp.StatusCode, b)
			}
			if action := fmt.Sprint(b["action"]); strings.HasPrefix(action, "retry") != c.retryable || (resp.Header.Get("X-Should-Retry") == "false") == c.retryable {
				t.Errorf("retryable is %t, the action %q, the header %q", c.retryable, action, resp.Header.Get("X-Should-Retry"))
			}
			if m := fmt.Sprint(b["message"]); strings.Contains(m, "hunter2") || strings.Contains(m, "bad order") {
				t.Errorf("the cause got out: %s", m)
			}
		})
	}
}

func TestASandboxThatBreaksOffClosesTheConnection(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	resp := w.do(t, http.MethodGet, host, "/", "acme", nil)
	if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "half" {
		t.Errorf("read %q, %v", b, err)
	}
	if resp := w.do(t, http.MethodGet, host, "/health", "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("afterwards: %d", resp.StatusCode)
	}
}

func TestPreflightNeedsNoCredential(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(299) }))
	for _, h := range []string{host, "sbx-nope-nope.eu-1.localhost"} {
		resp := w.do(t, http.MethodOptions, h, "/process", "", nil)
		if resp.StatusCode != http.StatusNoContent || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %d %v", h, resp.StatusCode, resp.Header)
		}
	}
	if resp := w.do(t, http.MethodOptions, host, "/process", "acme", nil); resp.StatusCode != 299 {
		t.Errorf("with a credential: %d", resp.StatusCode)
	}
}

func TestOneLogLineWithoutSecrets(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(old)
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusMultiStatus) }))
	w.ServeHTTP(httptest.NewRecorder(), func() *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/port/3000/x?a=1&token=hunter2&my_Password=hunter2", nil)
		r.Host = host
		r.Header.Set("Authorization", "Bearer acme")
		return r
	}())
	got := log.String()
	if strings.Count(got, "\n") != 1 || strings.Contains(got, "hunter2") {
		t.Errorf("logged:\n%s", got)
	}
	for _, want := range []string{"msg=request", "/port/3000/x?a=1&token=[hidden]", "sandbox=u-acme-web", "workspace=acme", "status=207", "took=", "key=id-acme"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
}

func TestEveryKindHasACodeWithAdvice(t *testing.T) {
	for k := doze.Internal; k <= doze.TooLarge; k++ {
		a, ok := advices[codes[k]]
		if !ok || a.action == "" || a.doNot == "" {
			t.Errorf("%v: code %q has no advice", k, codes[k])
		}
	}
}

func TestTheCodesAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("../../docs/api/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(raw), "\n## Data plane\n")
	section, _, ends := strings.Cut(section, "\n## ")
	if !ok || !ends {
		t.Fatal("docs/api/errors.md has no section on the data plane")
	}
	documented := map[string]string{} // the other columns, by code
	for line := range strings.Lines(section) {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			code, rest, _ := strings.Cut(rest, "`")
			documented[code] = rest
		}
	}
	for code, a := range advices {
		row, ok := documented[code]
		delete(documented, code)
		columns := strings.Split(row, "|")
		if !ok || len(columns) < 4 {
			t.Errorf("%s is not documented", code)
			continue
		}
		if says := strings.Contains(columns[2], "yes"); says != a.retryable {
			t.Errorf("%s: retryable is %t, documented %q", code, a.retryable, columns[2])
		}
		for kind, c := range codes {
			if rare := kind == doze.Unsupported || kind == doze.Unprocessable; c == code && !rare && !strings.Contains(columns[1], strconv.Itoa(kind.Status())) {
				t.Errorf("%s: the status %d is not documented", code, kind.Status())
			}
		}
	}
	if len(documented) > 0 {
		t.Errorf("documented, but no codes: %v", documented)
	}
}
