package edge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/greeting"
)

// portWorld is an edge before ports that speak no HTTP. Behind all of them is one server,
// which repeats what its client said.
type portWorld struct {
	*world
	secure *tls.Config
	roots  *x509.CertPool

	mu     sync.Mutex
	denied []string // guarded by mu; errors, by host
}

// ports are previews of a sandbox that declares its ports.
var ports = map[string]fleet.Preview{
	"db":      {Port: 5432, Public: true},
	"own":     {Port: 6380, Public: true},
	"private": {Port: 5432},
	"page":    {Port: 3000, Public: true},
	"plain":   {Port: 4000, Public: true},
	"api":     {Port: doze.AgentPort},
}

func newPortWorld(t *testing.T) *portWorld {
	t.Helper()
	w := &portWorld{world: newWorld(t, echo), roots: x509.NewCertPool()}
	cert := httptest.NewTLSServer(nil)
	defer cert.Close()
	w.secure = &tls.Config{Certificates: cert.TLS.Certificates, MinVersion: tls.VersionTLS12}
	w.roots.AddCert(cert.Certificate())
	w.Addresses = w.WithStreams(true)
	w.Edge.denied = func(r *http.Request, id string, c access.Caller, u fleet.Upstream, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if r.Method != rawMethod {
			return
		}
		if id == "" || !strings.HasPrefix(r.RemoteAddr, "127.0.0.1:") {
			t.Errorf("%s of %s, %q", r.Method, r.RemoteAddr, id)
		}
		w.denied = append(w.denied, r.Host+": "+err.Error())
	}
	w.directory.Put(fleet.Upstream{UID: "u-acme-web", Workspace: "acme", Name: "web", Enabled: true, Streams: map[int]string{
		5432: doze.ProtocolTCP, 6380: doze.ProtocolTLS, 4000: "UDP", doze.AgentPort: doze.ProtocolTCP,
	}})
	for label, p := range ports {
		p.ID, p.Label, p.Workspace, p.Sandbox = label, label, "acme", "web"
		w.previews.Put(p)
	}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	w.gate.backend = server.Addr().String()
	go func() { // ends with the listener
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				defer c.Close()
				all, _ := io.ReadAll(c)
				fmt.Fprintf(c, "it said %s", all)
			}()
		}
	}()
	return w
}

// errHTTP is what dial returns where the client gets HTTP.
var errHTTP = errors.New("it is HTTP")

// dial connects to a host by TLS, as the front does. served is closed when nobody serves
// the connection any more.
func (w *portWorld) dial(t *testing.T, name string, offers ...string) (c *tls.Conn, served chan struct{}, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = raw.Close(), far.Close() })
	_ = raw.SetDeadline(time.Now().Add(patience))
	begin := greeting.NewServer(w.secure, func(ctx context.Context, h greeting.Hello) (greeting.Stream, error) {
		if !w.Takes(h) {
			return nil, errHTTP
		}
		return w.Open(ctx, h)
	})
	served = make(chan struct{})
	failed := make(chan error, 1)
	go func() { // ends with the connection
		defer close(served)
		conn, stream, err := begin.Begin(t.Context(), far.(*net.TCPConn))
		failed <- err
		if err == nil {
			stream.Serve(t.Context(), conn)
		}
	}()
	c = tls.Client(raw, &tls.Config{RootCAs: w.roots, ServerName: name, NextProtos: offers, InsecureSkipVerify: true})
	if strings.HasPrefix(name, "own.") {
		return c, served, nil // the server speaks no TLS at all
	}
	err = c.HandshakeContext(t.Context())
	if begun := <-failed; errors.Is(begun, errHTTP) {
		err = errHTTP
	}
	return c, served, err
}

// TestPorts: a client in TLS reaches a port by its name alone, and each direction ends by
// itself.
func TestPorts(t *testing.T) {
	t.Parallel()
	w := newPortWorld(t)
	c, served, err := w.dial(t, "db"+previewDomain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	w.gate.awaitHeld(t, 1)
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(c); string(all) != "it said hello" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	<-served
	w.gate.awaitHeld(t, 0)
	if got := w.gate.seen; len(got) != 1 || got[0] != "u-acme-web:5432" {
		t.Errorf("the connection led to %v", got)
	}
}

// recorded is a connection of which nothing is read.
type recorded struct {
	net.Conn

	said []byte
}

func (r *recorded) Read([]byte) (int, error) { return 0, io.EOF }
func (r *recorded) Close() error             { return nil }
func (r *recorded) Write(p []byte) (int, error) {
	r.said = append(r.said, p...)
	return r.Conn.Write(p)
}

// TestUntouchedPorts: a port that is declared TLS gets what its client sent, from the
// first byte on.
func TestUntouchedPorts(t *testing.T) {
	t.Parallel()
	w := newPortWorld(t)
	c, served, _ := w.dial(t, "own"+previewDomain)
	sent := &recorded{Conn: c.NetConn()}
	_ = tls.Client(sent, &tls.Config{ServerName: "own" + previewDomain}).HandshakeContext(t.Context()) // it says one thing, and hears nothing
	if err := c.NetConn().(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(c.NetConn()); len(sent.said) == 0 || string(all) != "it said "+string(sent.said) || err != nil {
		t.Errorf("%q of %q, %v", all, sent.said, err)
	}
	<-served
	if domain, ok := w.Host("own" + previewDomain); ok {
		t.Errorf("a certificate of %s is ours to get", domain)
	}
}

// TestPortsAreRefused: what leads nowhere wakes nothing, an alert says so, and the owners
// can read why.
func TestPortsAreRefused(t *testing.T) {
	t.Parallel()
	w := newPortWorld(t)
	w.directory.Put(fleet.Upstream{UID: "u-acme-off", Workspace: "acme", Name: "off", Streams: map[int]string{3000: doze.ProtocolTCP}})
	for name, c := range map[string]struct {
		host   string
		offers []string
		alert  string
		denied string
	}{
		"private":           {"private", nil, "access denied", "make the preview public"},
		"a browser":         {"db", []string{"h2", "http/1.1"}, "no application protocol", "declare the port HTTP"},
		"gRPC":              {"db", []string{"grpc", "h2"}, "no application protocol", "declare the port HTTP"},
		"a disabled one":    {"off", nil, "unrecognized name", "disabled"},
		"an authority":      {"own", []string{"acme-tls/1"}, "", ""},
		"of HTTP":           {"page", nil, errHTTP.Error(), ""},
		"of UDP":            {"plain", nil, errHTTP.Error(), ""},
		"of the API":        {"api", nil, errHTTP.Error(), ""},
		"of no preview":     {"none", nil, errHTTP.Error(), ""},
		"our own authority": {"db", []string{"acme-tls/1"}, errHTTP.Error(), ""},
	} {
		w.denied = nil
		if name == "an authority" {
			if _, err := w.Open(t.Context(), greeting.Hello{Name: c.host + previewDomain, Protocols: c.offers, From: "127.0.0.1:1"}); err == nil {
				t.Error("a tenant gets certificates of our domain")
			}
			continue
		}
		w.mu.Lock()
		w.denied = nil
		w.mu.Unlock()
		_, _, err := w.dial(t, c.host+previewDomain, c.offers...)
		if err == nil || !strings.Contains(err.Error(), c.alert) {
			t.Errorf("%s: %v", name, err)
		}
		w.mu.Lock()
		if got := strings.Join(w.denied, "; "); !strings.Contains(got, c.denied) || (c.denied == "") != (got == "") {
			t.Errorf("%s: %s", name, got)
		}
		w.mu.Unlock()
	}
	if n := w.gate.wakes.Load(); n != 0 {
		t.Errorf("%d of them woke a sandbox", n)
	}
	w.gate.err = doze.Errorf(doze.Unavailable, "nothing listens on port 5432")
	if _, _, err := w.dial(t, "db"+previewDomain); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("where nothing listens: %v", err)
	}
	if open := w.quotas.Load()["acme"]; open != 0 {
		t.Errorf("%d connections that were refused count", open)
	}
}

// TestPortsAreNoPages: HTTP never comes to a port that is declared without it, by whatever
// name its connection began.
func TestPortsAreNoPages(t *testing.T) {
	t.Parallel()
	w := newPortWorld(t)
	resp := w.do(t, http.MethodGet, "db"+previewDomain, "/", "", nil)
	if e := platformError(t, resp); resp.StatusCode != http.StatusBadRequest || !strings.Contains(e["message"].(string), "connect by TLS to db.eu-1.preview.localhost:") {
		t.Errorf("%d %v", resp.StatusCode, e)
	}
	if n := w.gate.wakes.Load(); n != 0 {
		t.Error("it woke a sandbox")
	}
	w.Addresses = w.WithStreams(false)
	w.gate.err = doze.Errorf(doze.Unavailable, "it was asked")
	if resp := w.do(t, http.MethodGet, "db"+previewDomain, "/", "", nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without TLS, each preview is a page: %d", resp.StatusCode)
	}
}

// TestPortsEnd: an open connection ends with what let it in.
func TestPortsEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*portWorld){
		"deleted": func(w *portWorld) { w.previews.Drop("db", "db") },
		"private": func(w *portWorld) {
			p, _ := w.previews.Find("db", time.Now())
			p.Public = false
			w.previews.Put(p)
		},
		"another port": func(w *portWorld) {
			p, _ := w.previews.Find("db", time.Now())
			p.Port = 6380
			w.previews.Put(p)
		},
		"declared HTTP": func(w *portWorld) {
			w.directory.Put(fleet.Upstream{UID: "u-acme-web", Workspace: "acme", Name: "web", Enabled: true})
		},
		"idle": func(w *portWorld) { w.idleMax = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newPortWorld(t)
			if name == "idle" {
				end(w)
			}
			c, served, err := w.dial(t, "db"+previewDomain)
			if err != nil {
				t.Fatal(err)
			}
			if name != "idle" {
				w.gate.awaitHeld(t, 1)
				end(w)
			}
			w.Recheck()
			<-served
			if all, err := io.ReadAll(c); len(all) > 0 {
				t.Errorf("%q, %v", all, err)
			}
			w.gate.awaitHeld(t, 0)
		})
	}
}
