package egress

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// until waits for something that happens at once, on a busy machine.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(busy); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", busy, what)
		}
	}
}

// echoServer sends back what it gets.
func echoServer(t *testing.T) (address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				buf := make([]byte, 32<<10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

// metered runs an Egress whose one sandbox may reach everything here, is counted,
// and is barred for what is in why.
func metered(t *testing.T) (e *Egress, proxy *url.URL, traffic *Traffic, why *atomic.Pointer[string]) {
	t.Helper()
	traffic, why = new(Traffic), new(atomic.Pointer[string])
	why.Store(new(string))
	e, proxy = serveWith(t, nil, func(o *Options) {
		o.Meter = func(g Guest) *Traffic {
			if g.UID != "a" {
				t.Errorf("asked for %v", g)
			}
			return traffic
		}
		o.Barred = func(Guest) string { return *why.Load() }
	})
	return e, proxy, traffic, why
}

// TestTraffic: bytes count in their direction as they pass, while the connection
// lives, and never twice.
func TestTraffic(t *testing.T) {
	t.Parallel()
	e, proxy, traffic, _ := metered(t)
	server := echoServer(t)
	c, status := tunnel(t, proxy, server)
	if status != http.StatusOK {
		t.Fatal(status)
	}
	if sent, received := traffic.Sent.Load(), traffic.Received.Load(); sent != 0 || received != 0 {
		t.Errorf("before anything was sent: %d, %d", sent, received)
	}
	const size = 3*stride + 17
	for i := range uint64(3) {
		go func() { _, _ = c.Write(make([]byte, size)) }() // ends with the connection
		if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		want := (i + 1) * size
		until(t, "all bytes of the tunnel count", func() bool { return traffic.Received.Load() >= want && traffic.Sent.Load() >= want })
		if sent, received := traffic.Sent.Load(), traffic.Received.Load(); sent != want || received != want {
			t.Errorf("%d were sent and %d received, and not %d", sent, received, want)
		}
	}

	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(make([]byte, 5000))
	}))
	defer s.Close()
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	defer client.CloseIdleConnections()
	sent, received := traffic.Sent.Load(), traffic.Received.Load()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at(s, "a.test"), bytes.NewReader(make([]byte, 7000)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	const header = 1000 // at most
	if n := traffic.Sent.Load() - sent; n < 7000 || n > 7000+header {
		t.Errorf("a request with 7000 bytes counts as %d", n)
	}
	if n := traffic.Received.Load() - received; n < 5000 || n > 5000+header {
		t.Errorf("an answer with 5000 bytes counts as %d", n)
	}

	admit(t, e, &doze.Network{Proxy: &doze.Proxy{ForbiddenDomains: []string{"other.test"}}})
	if e.guests[home].traffic != traffic {
		t.Error("a new policy counts elsewhere")
	}
}

// TestBarred: a sandbox that is barred loses what it has open, reaches nothing,
// hears why, and goes on when it is barred no more.
func TestBarred(t *testing.T) { //nolint:paralleltest // it reads the log
	logged := logTo(t)
	e, proxy, _, why := metered(t)
	server := echoServer(t)
	c, status := tunnel(t, proxy, server)
	if status != http.StatusOK {
		t.Fatal(status)
	}
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	e.Enforce()
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("nobody is barred: %v", err)
	}
	reason := "quota egressMbPerDay used up: raise it, or wait until midnight"
	why.Store(&reason)
	e.Enforce()
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatalf("%d bytes of a barred sandbox", n)
	}
	if _, status := tunnel(t, proxy, server); status != http.StatusForbidden {
		t.Errorf("a barred sandbox gets %d", status)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + server)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), reason) {
		t.Errorf("%d %s, %v", resp.StatusCode, body, err)
	}
	if !strings.Contains(logged(), `rule=barred`) || !strings.Contains(logged(), reason) {
		t.Errorf("the log says %s", logged())
	}
	why.Store(new(string))
	if _, status := tunnel(t, proxy, server); status != http.StatusOK {
		t.Errorf("a sandbox that is barred no more gets %d", status)
	}
}

// logTo returns what is logged from now on.
func logTo(t *testing.T) (logged func() string) {
	t.Helper()
	var mu sync.Mutex
	var text bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return text.Write(p)
	}), nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// BenchmarkPass compares a stream that is passed in strides that count with one
// that the kernel splices, in turns.
func BenchmarkPass(b *testing.B) {
	copies := map[string]func(to, from *net.TCPConn){
		"counted": func(to, from *net.TCPConn) {
			pass(b.Context(), to, from, newRate(), new(flow), new(atomic.Uint64))
		},
		"spliced": func(to, from *net.TCPConn) { _, _ = to.ReadFrom(from); _ = to.CloseWrite() },
	}
	const size = 64 << 20
	took := map[string]time.Duration{}
	for b.Loop() {
		for name, carry := range copies {
			from, in := pipe(b)
			out, to := pipe(b)
			began := time.Now()
			go carry(out, in)
			go func() { _, _ = from.Write(make([]byte, size)); _ = from.CloseWrite() }()
			if n, err := io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{to}); err != nil || n != size {
				b.Fatal(n, err)
			}
			took[name] += time.Since(began)
			for _, c := range []*net.TCPConn{from, in, out, to} {
				_ = c.Close()
			}
		}
	}
	b.ReportMetric(float64(took["counted"])/float64(took["spliced"]), "counted/spliced")
}
