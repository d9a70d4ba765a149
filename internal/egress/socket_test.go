package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// opened is how many descriptors this process has.
func opened(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestSocketsAreBounded: one more than the most is refused, until one ends.
func TestSocketsAreBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ descriptors, others, want int }{
		"streams":      {descriptors: 1 << 20, want: streamsMax},
		"half":         {descriptors: 1000, want: 500},
		"what is left": {descriptors: 1000, others: 300, want: 350},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := New(Options{Pool: pool, Descriptors: tt.descriptors})
			admit(t, e, nil)
			e.descriptors.used.Store(int64(tt.others))
			g := e.guest(&net.TCPAddr{IP: home.AsSlice(), Port: 1})
			all := make([]net.TCPConn, tt.want+1)
			for i := range tt.want {
				if why := g.sockets.enter(&all[i]); why != "" {
					t.Fatalf("the %dth is refused: %s", i, why)
				}
			}
			if g.sockets.enter(&all[tt.want]) == "" {
				t.Error("there is no bound")
			}
			g.exit(&all[0])
			g.exit(&all[0])
			if why := g.sockets.enter(&all[tt.want]); why != "" {
				t.Errorf("one ended: %s", why)
			}
			if g.sockets.enter(&all[0]) == "" {
				t.Error("one ended twice")
			}
			e.Forget(home)
			if left := e.descriptors.used.Load(); left != int64(tt.others) {
				t.Errorf("%d are in use by nobody", left-int64(tt.others))
			}
			if g.claim() == "" {
				t.Error("a sandbox that is gone gets one")
			}
		})
	}
	e := New(Options{Pool: pool})
	admit(t, e, nil)
	if e.guest(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 1}) != nil {
		t.Error("somebody else is the sandbox")
	}
}

// TestHog: a sandbox that opens all it can takes two descriptors for each stream,
// keeps nobody else from getting through, and gives all back when it goes.
func TestHog(t *testing.T) { //nolint:paralleltest // it counts the descriptors of the process
	const total = 120
	logged := logTo(t)
	e, proxy := serveWith(t, nil, func(o *Options) { o.Descriptors = total })
	neighbour := netip.MustParseAddr("127.0.0.3")
	if err := e.Admit(Guest{UID: "b", IP: neighbour}, nil); err != nil {
		t.Fatal(err)
	}
	server := echoServer(t)
	// through reports whether a tunnel from an address carries a byte there and back.
	through := func(from netip.Addr) (net.Conn, bool) {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err := dialer.DialContext(t.Context(), "tcp4", proxy.Host)
		if errors.Is(err, syscall.ECONNRESET) {
			return nil, false // it was refused before we knew that we were through
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(busy))
		_, _ = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", server, server)
		_, _ = io.WriteString(c, "x")
		answer, err := io.ReadAll(io.LimitReader(c, int64(len("HTTP/1.1 200 Connection established\r\n\r\nx"))))
		return c, err == nil && strings.HasSuffix(string(answer), "\r\n\r\nx")
	}
	before := opened(t)
	var held []net.Conn
	for range total {
		c, ok := through(home)
		if !ok {
			if c != nil {
				_ = c.Close()
			}
			break
		}
		held = append(held, c)
	}
	if n := len(held); n < total/4-2 || n > total/4 {
		t.Errorf("a sandbox has %d streams; half of %d descriptors are due to it, and a stream takes two", n, total)
	}
	const perStream = 4 // two are ours, and two those of this test
	if n, most := opened(t)-before, perStream*len(held)+perStream; n > most {
		t.Errorf("%d streams take %d descriptors, at most %d are due", len(held), n, most)
	}
	if !strings.Contains(logged(), "rule="+ruleBusy) || !strings.Contains(logged(), "close some") {
		t.Errorf("the log says nothing of it: %s", logged())
	}
	for range 5 {
		c, ok := through(neighbour)
		if !ok {
			t.Fatal("another sandbox does not get through")
		}
		defer c.Close()
	}
	e.Forget(neighbour)
	e.Forget(home)
	began := time.Now()
	until(t, "all is given back", func() bool { return e.descriptors.used.Load() == 0 })
	for _, c := range held {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes after its end", n)
		}
		_ = c.Close() // its descriptor is counted below
	}
	until(t, "all descriptors are back", func() bool { return opened(t) <= before+5 }) // of the neighbour's client
	if took := time.Since(began); took > time.Second {
		t.Errorf("all is back after %v", took)
	}
}

// TestSilent: connections that say nothing end with their sandbox, too.
func TestSilent(t *testing.T) {
	t.Parallel()
	e, proxy := serve(t, nil, nil)
	for _, to := range []string{proxy.Host, e.Names.Addr().String()} {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp4", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(busy))
		g := e.guest(&net.TCPAddr{IP: home.AsSlice(), Port: 1})
		until(t, "the connection counts", func() bool {
			g.sockets.mu.Lock()
			defer g.sockets.mu.Unlock()
			return g.streams == 1
		})
		began := time.Now()
		e.Forget(home)
		if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(began) > busy/2 {
			t.Errorf("%s: %v after %v", to, err, time.Since(began))
		}
		admit(t, e, nil)
	}
}

// TestSpared: near its bound a sandbox loses the stream that is idle for longest,
// and none that it uses.
func TestSpared(t *testing.T) {
	t.Parallel()
	e := New(Options{Pool: pool, Descriptors: 100})
	admit(t, e, nil)
	g := e.guest(&net.TCPAddr{IP: home.AsSlice(), Port: 1})
	var ended []string
	for name, idle := range map[string]time.Duration{"old": 3 * idleLeast, "older": 4 * idleLeast, "new": idleLeast / 2, "no stream": 0} {
		_, f := g.begin(Destination{Name: "a.test", Port: 443}, nil)
		f.end = func() { ended = append(ended, name); delete(g.flows, f) }
		if idle > 0 {
			f.idle.Store(time.Now().Add(-idle).UnixNano())
		}
	}
	open := make([]net.TCPConn, 50)
	for i := range open {
		if i == 40 && ended != nil {
			t.Errorf("%v ended with %d of %d connections", ended, i, len(open))
		}
		if why := g.enter(&open[i]); why != "" {
			t.Fatal(i, why)
		}
	}
	if strings.Join(ended, " ") != "older old" {
		t.Errorf("%v ended", ended)
	}
}

// TestRequestsAreBounded: connections that are made for requests count, and those
// of other sandboxes are not touched.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	e, proxy := serveWith(t, nil, func(o *Options) { o.Descriptors = 40 })
	release := make(chan struct{})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), ReadHeaderTimeout: busy}
	go func() { _ = s.Serve(l) }() // ends with s
	defer s.Close()
	defer close(release)
	statuses := make(chan int, 15)
	const requests = 15 // of 20 that are due to it
	var all []net.Conn
	for range requests {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp4", proxy.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	until(t, "all connections count", func() bool { return e.descriptors.used.Load() == requests })
	for _, c := range all {
		go func() { // ends with the connection
			_, _ = fmt.Fprintf(c, "GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\n\r\n", l.Addr())
			answer := make([]byte, len("HTTP/1.1 502"))
			if _, err := io.ReadFull(c, answer); err == nil {
				statuses <- int(answer[9]-'0')*100 + int(answer[10]-'0')*10 + int(answer[11]-'0')
			}
		}()
	}
	select {
	case got := <-statuses:
		if got != http.StatusBadGateway {
			t.Errorf("a request too many gets %d", got)
		}
	case <-time.After(busy):
		t.Error("there is no bound")
	}
	if used := e.descriptors.used.Load(); used > 20 {
		t.Errorf("%d of 40 descriptors are for one sandbox", used)
	}
}
