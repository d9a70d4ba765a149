package outproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/testkit/forwarder"
)

// secretWord is a password that nobody may read.
const secretWord = "hunter2"

func proxy(t *testing.T, o Options) *Proxy {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCarries(t *testing.T) {
	t.Parallel()
	p := proxy(t, Options{URL: "http://proxy.test:3128", Except: []string{".inner.test", "one.test:8443", "192.0.2.0/24", "203.0.113.7"}})
	for name, c := range map[string]struct {
		host string
		at   string
		port uint16
		want bool
	}{
		"a name":                      {host: "a.test", port: 443, want: true},
		"a name at an address":        {host: "a.test", at: "198.51.100.1", port: 443, want: true},
		"an address":                  {at: "198.51.100.1", port: 22, want: true},
		"version 6":                   {at: "2001:db8::1", port: 443, want: true},
		"an exception":                {host: "x.inner.test", at: "198.51.100.1", port: 443},
		"the name of one":             {host: "one.test", port: 8443},
		"the same at another port":    {host: "one.test", port: 443, want: true},
		"a network":                   {host: "a.test", at: "192.0.2.9", port: 443},
		"an address that is excepted": {at: "203.0.113.7", port: 443},
		"a private network":           {host: "a.test", at: "10.1.2.3", port: 443},
		"a shared network":            {at: "100.64.1.1", port: 443},
		"private in version 6":        {at: "fd00::1", port: 443},
		"private, mapped":             {at: "::ffff:10.1.2.3", port: 443},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var at netip.Addr
			if c.at != "" {
				at = netip.MustParseAddr(c.at)
			}
			if got := p.Carries(c.host, at, c.port); got != c.want {
				t.Errorf("%v", got)
			}
			if (*Proxy)(nil).Carries(c.host, at, c.port) {
				t.Error("without a proxy, too")
			}
		})
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		"http://proxy.test:3128": true, "http://u:" + secretWord + "@proxy.test": true, "http://[2001:db8::1]:3128/": true,
		"https://proxy.test": false, "proxy.test:3128": false, "http://": false, "http://proxy.test/path": false, "socks5://proxy.test": false,
		"http://u:" + secretWord + "@proxy.test:x": false,
	} {
		err := Check(text)
		if (err == nil) != good || err != nil && strings.Contains(err.Error(), secretWord) {
			t.Errorf("%s: %v", text, err)
		}
		if HasPassword(text) != strings.Contains(text, secretWord) {
			t.Errorf("%s has a password: %v", text, HasPassword(text))
		}
	}
	p := proxy(t, Options{URL: "http://u:" + secretWord + "@proxy.test"})
	if shown := fmt.Sprintf("%v %s", p, p); strings.Contains(shown, secretWord) || !strings.Contains(shown, "proxy.test:80") {
		t.Error(shown)
	}
	if !p.Is("PROXY.test:80") || p.Is("proxy.test:81") {
		t.Error("it does not know itself")
	}
}

// served is a proxy for tests, and where it is.
func served(t *testing.T, f *forwarder.Proxy) string {
	t.Helper()
	if f.Dial == nil {
		f.Dial = new(net.Dialer).DialContext
	}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// speaker is a server that speaks first.
func speaker(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
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
			_, _ = io.WriteString(c, "SSH-2.0-first\r\n")
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func TestDial(t *testing.T) {
	t.Parallel()
	to := speaker(t)
	f := &forwarder.Proxy{Credentials: "u:" + secretWord}
	at := served(t, f)
	down, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = down.Close()
	narrow := served(t, &forwarder.Proxy{Tunnels: []string{"443"}})
	for name, c := range map[string]struct {
		url  string
		to   string
		want string // what the server says first, or a part of the error
		ours bool
		bad  bool
	}{
		"with credentials":       {url: "u:" + secretWord + "@" + at, to: to, want: "SSH-2.0-first\r\n"},
		"without":                {url: at, to: to, want: "(407)", bad: true, ours: true},
		"with others":            {url: "u:x@" + at, to: to, want: "(407)", bad: true, ours: true},
		"a port that it refuses": {url: narrow, to: to, want: "refuses it (403)", bad: true},
		"nobody there":           {url: "u:" + secretWord + "@" + at, to: down.Addr().String(), want: "cannot reach it (502)", bad: true},
		"no proxy":               {url: down.Addr().String(), to: to, want: "cannot be reached", bad: true, ours: true},
		"no HTTP":                {url: to, to: to, want: "no answer that is HTTP", bad: true, ours: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := proxy(t, Options{URL: "http://" + c.url})
			got, err := p.Dial(t.Context(), c.to)
			if c.bad {
				e, is := errors.AsType[*Error](err)
				if !is || e.Ours != c.ours || !strings.Contains(e.Why, c.want) || strings.Contains(err.Error(), secretWord) {
					t.Errorf("%v", err)
				}
				if probe := p.Probe(t.Context()); (probe != nil) != c.ours {
					t.Errorf("the doctor: %v", probe)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = got.Close() }()
			if b, err := io.ReadAll(got); err != nil || string(b) != c.want {
				t.Errorf("%q, %v", b, err)
			}
			if !p.Has(netip.MustParseAddr("127.0.0.1")) {
				t.Error("it does not know where it is")
			}
		})
	}
}

// TestDialEnds: a caller that waits no more ends a tunnel to a proxy that says nothing.
func TestDialEnds(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if _, err := l.Accept(); err == nil {
			cancel()
		}
	}()
	p := proxy(t, Options{URL: "http://" + l.Addr().String()})
	if c, err := p.Dial(ctx, "a.test:443"); err == nil || c != nil {
		t.Errorf("%v, %v", c, err)
	}
}

func TestDialChecked(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	refused := errors.New("refused")
	at := served(t, &forwarder.Proxy{})
	for name, c := range map[string]struct {
		o    Options
		to   string
		deny bool
		want error
	}{
		"straight":               {o: Options{}, to: "localhost:" + port},
		"a private address":      {o: Options{URL: "http://proxy.test:1"}, to: "localhost:" + port},
		"one that is refused":    {o: Options{URL: "http://proxy.test:1"}, to: "127.0.0.1:" + port, deny: true, want: refused},
		"likewise, by its name":  {o: Options{URL: "http://proxy.test:1", Resolves: true}, to: "localhost:" + port, deny: true, want: refused},
		"the proxy":              {o: Options{URL: "http://" + at}, to: at, want: errSelf},
		"another port of it":     {o: Options{URL: "http://" + at}, to: "127.0.0.1:" + port, want: errSelf},
		"by a name of this host": {o: Options{URL: "http://" + at}, to: "localhost:" + port, want: errSelf},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := proxy(t, c.o).DialChecked(t.Context(), new(net.Dialer), "tcp", c.to, func(netip.Addr) error {
				if c.deny {
					return refused
				}
				return nil
			})
			if got != nil {
				_ = got.Close()
			}
			if !errors.Is(err, c.want) || (err == nil) != (got != nil) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// FuzzAnswer: an answer is never read beyond its header.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 407 x\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200 OK\nA: b\n\n", "SSH-2.0", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"} {
		f.Add([]byte(s))
	}
	const after = "SSH-2.0-after"
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(append(bytes.Clone(b), after...))
		status, err := answer(r)
		if err != nil {
			return
		}
		if status < 0 || status > 999 {
			t.Errorf("the status %d", status)
		}
		if rest, _ := io.ReadAll(r); bytes.HasSuffix(b, []byte("\r\n\r\n")) && bytes.Count(b, []byte("\n\r\n"))+bytes.Count(b, []byte("\n\n")) == 1 && string(rest) != after {
			t.Errorf("%q is left", rest)
		}
	})
}
