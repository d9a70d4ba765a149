package fleet_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// sandboxes is a [fleet.Dialer] whose only sandbox, a, runs on loopback.
type sandboxes struct {
	address string
	held    atomic.Int64
	aged    atomic.Bool
}

type heldConn struct {
	*net.TCPConn

	of     *sandboxes
	closed atomic.Bool
}

func (h *heldConn) Close() error {
	if !h.closed.Swap(true) {
		h.of.held.Add(-1)
	}
	return h.TCPConn.Close()
}

func (s *sandboxes) Dial(ctx context.Context, uid string, port uint16) (net.Conn, error) {
	if uid != "a" {
		return nil, doze.Errorf(doze.NotFound, "no such sandbox")
	}
	address := s.address
	if port != 80 {
		address = "127.0.0.1:1"
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fleet.PortFailure(ctx, port, err)
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.New("no TCP")
	}
	s.held.Add(1)
	return &heldConn{TCPConn: tcp, of: s}, nil
}

func (s *sandboxes) StateAge(string) (time.Duration, bool) { return time.Minute, !s.aged.Swap(true) }

// released waits until no sandbox is held.
func (s *sandboxes) released(t *testing.T) {
	t.Helper()
	for range 500 {
		if s.held.Load() == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d connections still hold a sandbox", s.held.Load())
}

// tunnels returns ports of a node whose sandbox is served by serve, one connection
// at a time each, and the server between them.
func tunnels(t *testing.T, serve func(*net.TCPConn)) (*fleet.Ports, *sandboxes, *httptest.Server) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if tcp, ok := c.(*net.TCPConn); ok {
					serve(tcp)
				}
			}()
		}
	}()
	s := &sandboxes{address: l.Addr().String()}
	mux := http.NewServeMux()
	fleet.NewServer(nil, s).Register(mux)
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return portsOf(fleet.NewClient(server.URL, server.Client().Transport)), s, server
}

// portsOf are the ports of the sandboxes of one node.
func portsOf(c *fleet.Client) *fleet.Ports {
	return fleet.NewPorts(func(string) (string, *fleet.Client) { return "n", c })
}

// web serves HTTP/1.1 on one connection.
func web(h http.HandlerFunc) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			rec := httptest.NewRecorder()
			h(rec, r)
			resp := rec.Result()
			resp.ContentLength = int64(rec.Body.Len())
			if resp.Write(c) != nil {
				return
			}
		}
	}
}

func TestTunnelCarriesRequests(t *testing.T) {
	t.Parallel()
	ports, s, _ := tunnels(t, web(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s %q %d", r.Method, r.RequestURI, r.Header.Get("Connection"), len(body))
	}))
	for i := range 50 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://ignored/a%2Fb//c?x=;", bytes.NewReader(make([]byte, i*1000)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ports.Transport("a", 80).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if want := fmt.Sprintf(`PUT /a%%2Fb//c?x=; "" %d`, i*1000); err != nil || string(body) != want {
			t.Fatalf("%q, %v; want %q", body, err, want)
		}
		_ = resp.Body.Close()
	}
	s.released(t)
	if age, ok := ports.StateAge("a"); !ok || age < time.Minute {
		t.Errorf("the age of the state is %v, %t", age, ok)
	}
	if _, ok := ports.StateAge("a"); ok {
		t.Error("the age of the state is told twice")
	}
}

func TestTunnelErrors(t *testing.T) {
	t.Parallel()
	ports, s, server := tunnels(t, func(*net.TCPConn) {}) // closes at once
	ask := func(uid string, port uint16) error {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://ignored/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ports.Transport(uid, port).RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	for _, tc := range []struct {
		uid  string
		port uint16
		kind doze.Kind
		text string
	}{
		{"b", 80, doze.NotFound, "no such sandbox"},
		{"a", 81, doze.Unavailable, "nothing listens on port 81"},
		{"a", 0, doze.Invalid, "1 to 65535"},
		{"a", 80, doze.Unavailable, "closed the connection on port 80"},
	} {
		err := ask(tc.uid, tc.port)
		if e := doze.Public(err); err == nil || e.Kind != tc.kind || !strings.Contains(e.Message, tc.text) {
			t.Errorf("%s:%d is %v", tc.uid, tc.port, err)
		}
	}
	s.released(t)
	server.Close()
	if err := ask("a", 80); !errors.Is(err, fleet.ErrUnreachable) || doze.Public(err).Message != "the node of the sandbox cannot be reached: try again" {
		t.Errorf("without the node: %v", err)
	}
}

// refusing are connections that the host of a node refuses.
type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// TestNodeRefuses: a node that refuses connections is no port on which nobody listens. Where there
// are several nodes, another one takes the sandbox.
func TestNodeRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		atlas := fleet.NewAtlas()
		atlas.SetHome("n")
		ports := portsOf(fleet.NewClient("https://n", refusing{}))
		ports.Moves = moves{atlas}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://ignored/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ports.Transport("a", 8080).RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		e := doze.Public(err)
		if e.Kind != doze.Unavailable || !errors.Is(err, fleet.ErrUnreachable) || !strings.Contains(e.Message, "the node of the sandbox cannot be reached, and another one takes the sandbox") {
			t.Errorf("it is %v", err)
		}
	})
}

// TestTunnelHalfClose ends one direction first, each in turn.
func TestTunnelHalfClose(t *testing.T) {
	t.Parallel()
	sent := make([]byte, 3<<20+17)
	_, _ = rand.Read(sent)
	t.Run("the caller first", func(t *testing.T) {
		t.Parallel()
		ports, s, _ := tunnels(t, func(c *net.TCPConn) {
			all, _ := io.ReadAll(c)
			_, _ = c.Write(all)
		})
		c := dial(t, ports)
		go func() {
			_, _ = c.Write(sent)
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back, %v", len(got), err)
		}
		_ = c.Close()
		s.released(t)
	})
	t.Run("the sandbox first", func(t *testing.T) {
		t.Parallel()
		got := make(chan []byte, 1)
		ports, s, _ := tunnels(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "no more")
			_ = c.CloseWrite()
			all, _ := io.ReadAll(c)
			got <- all
		})
		c := dial(t, ports)
		if text, err := io.ReadAll(c); err != nil || string(text) != "no more" {
			t.Errorf("%q, %v", text, err)
		}
		_, _ = c.Write(sent)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
		if all := <-got; !bytes.Equal(all, sent) {
			t.Errorf("%d bytes arrived", len(all))
		}
		_ = c.Close()
		s.released(t)
	})
}

// dial opens a tunnel to sandbox a.
func dial(t *testing.T, ports *fleet.Ports) net.Conn {
	t.Helper()
	c, err := ports.Dial(t.Context(), "a", 80)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestTunnelCut: what was cut does not look like an end.
func TestTunnelCut(t *testing.T) {
	t.Parallel()
	t.Run("by the sandbox", func(t *testing.T) {
		t.Parallel()
		ports, s, _ := tunnels(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "half")
			time.Sleep(50 * time.Millisecond) // or the reset overtakes it
			_ = c.SetLinger(0)
		})
		if got, err := io.ReadAll(dial(t, ports)); string(got) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q, %v", got, err)
		}
		s.released(t)
	})
	t.Run("by the node", func(t *testing.T) {
		t.Parallel()
		ports, s, server := tunnels(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "half")
			_, _ = io.Copy(io.Discard, c)
		})
		c := dial(t, ports)
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		server.CloseClientConnections()
		if _, err := io.ReadAll(c); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
		s.released(t)
	})
	t.Run("by the caller", func(t *testing.T) {
		t.Parallel()
		ended := make(chan error, 1)
		ports, s, _ := tunnels(t, func(c *net.TCPConn) {
			_, err := io.Copy(io.Discard, c)
			ended <- err
		})
		c := dial(t, ports)
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		<-ended
		s.released(t)
	})
	t.Run("before it is open", func(t *testing.T) {
		t.Parallel()
		ports, s, _ := tunnels(t, func(*net.TCPConn) {})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := ports.Dial(ctx, "a", 80); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.released(t)
	})
}

// TestTunnelsAreIndependent: one that nobody reads does not stop another one.
func TestTunnelsAreIndependent(t *testing.T) {
	t.Parallel()
	ports, _, _ := tunnels(t, func(c *net.TCPConn) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return
		}
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	for range 20 {
		c := dial(t, ports)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	c := dial(t, ports)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(c, make([]byte, 64<<20))
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("64 MiB did not arrive beside 20 tunnels that nobody reads")
	}
}

// FuzzTunnel reads what a node might send.
func FuzzTunnel(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 'x', 0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte{0, 0, 0, 9, 'x'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		answer := http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(raw))}
		c, err := portsOf(fleet.NewClient("http://node", always{&answer})).Dial(t.Context(), "a", 80)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if len(got) > len(raw) || err == nil && !bytes.Contains(raw, []byte{0, 0, 0, 0}) {
			t.Errorf("%d bytes of %d, %v", len(got), len(raw), err)
		}
		_ = c.Close()
	})
}

type always struct{ resp *http.Response }

func (a always) RoundTrip(*http.Request) (*http.Response, error) { return a.resp, nil }

// moves is a [fleet.Moves] over an atlas.
type moves struct{ *fleet.Atlas }

func (moves) Many() bool { return true }

// TestPortsFollow: a request to a sandbox that moves goes to its other node, once that is
// known, and nothing of it was sent to the first one. That one says so, or says nothing.
func TestPortsFollow(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]http.HandlerFunc{
		"it has moved": func(w http.ResponseWriter, _ *http.Request) {
			fleet.Answer(w, nil, doze.Wrap(fleet.ErrMoved, doze.Unavailable, "it has moved"))
		},
		"the node is dead": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			follow(t, first)
		})
	}
}

func follow(t *testing.T, first http.HandlerFunc) {
	t.Helper()
	atlas := fleet.NewAtlas()
	atlas.SetHome("first")
	_, _, there := tunnels(t, web(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		_, _ = w.Write(raw)
	}))
	moved := httptest.NewUnstartedServer(first)
	moved.EnableHTTP2 = true
	moved.StartTLS()
	defer moved.Close()
	nodes := map[string]*fleet.Client{
		"first": fleet.NewClient(moved.URL, moved.Client().Transport), "second": fleet.NewClient(there.URL, there.Client().Transport),
	}
	ports := fleet.NewPorts(func(uid string) (string, *fleet.Client) { at := atlas.Node(uid); return at, nodes[at] })
	ports.Moves = moves{atlas}
	time.AfterFunc(100*time.Millisecond, func() { atlas.Put("a", "second") })
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://any/", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := ports.Transport("a", 80).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if raw, err := io.ReadAll(resp.Body); err != nil || string(raw) != "hello" {
		t.Errorf("it is %q: %v", raw, err)
	}
}
