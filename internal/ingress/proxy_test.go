package ingress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"
)

// serve serves h, and returns the address.
func serve(t *testing.T, in *Ingress, h http.HandlerFunc) string {
	t.Helper()
	raw, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	in.Configure(server)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(in.Listen(raw, nil, nil))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return raw.Addr().String()
}

// ask sends a request from a source, and leaves the connection open.
func ask(t *testing.T, from, to, header string) (status int, body string) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", header)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestTrustedProxies: only what a trusted proxy says of a client counts, and its
// connections are not those of one source.
func TestTrustedProxies(t *testing.T) {
	t.Parallel()
	in, err := New(Limits{PerSource: 2, Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.5/32")}})
	if err != nil {
		t.Fatal(err)
	}
	at := serve(t, in, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) })
	for name, tt := range map[string]struct{ from, header, want string }{
		"a proxy":                   {"127.0.0.5", "X-Forwarded-For: 198.51.100.1, 192.0.2.7\r\n", "192.0.2.7:0"},
		"a proxy, of IPv6":          {"127.0.0.5", "X-Forwarded-For: 2001:db8::7\r\n", "[2001:db8::7]:0"},
		"a proxy that says nothing": {"127.0.0.5", "", ""},
		"a stranger":                {"127.0.0.6", "X-Forwarded-For: 192.0.2.7\r\n", ""},
	} {
		_, got := ask(t, tt.from, at, tt.header)
		host, _, err := net.SplitHostPort(got)
		if err != nil || tt.want != "" && got != tt.want || tt.want == "" && host != tt.from {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	if n := in.roster.len(); n < 4 {
		t.Errorf("%d connections are open", n)
	}
	if n := len(in.roster.sources); n != 1 {
		t.Errorf("%d sources, want that of the stranger", n)
	}
}

// TestDescriptors: connections leave the daemon the descriptors that it needs,
// and those that come then take the place of others.
func TestDescriptors(t *testing.T) {
	in, err := New(Limits{})
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	in.descriptors = len(open) + 40 // each connection has two of this process
	at := serve(t, in, func(http.ResponseWriter, *http.Request) {})
	for range 15 {
		if status, _ := ask(t, "127.0.0.2", at, ""); status != http.StatusOK {
			t.Fatal(status)
		}
	}
	refused := false
	for range 10 {
		status, _ := ask(t, "127.0.0.2", at, "")
		refused = refused || status == http.StatusServiceUnavailable
	}
	if !refused || in.Counts().Refused["descriptors"] == 0 {
		t.Errorf("all got room: %+v", in.Counts())
	}
	if status, _ := ask(t, "127.0.0.3", at, ""); status != http.StatusOK || in.Counts().Refused["evicted"] == 0 {
		t.Errorf("another source has no room: %d, %+v", status, in.Counts())
	}
}
