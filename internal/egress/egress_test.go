package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// busy is for what happens at once, on a busy machine.
const busy = 30 * time.Second

// home is where everything is in these tests.
var home = netip.MustParseAddr("127.0.0.1")

// here resolves every name but two to home.
type here struct{}

func (here) LookupNetIP(_ context.Context, network, host string) ([]netip.Addr, error) {
	if network != "ip" || !strings.HasSuffix(host, ".") {
		return nil, errors.New("an odd question")
	}
	switch host {
	case "private.test.":
		return []netip.Addr{netip.MustParseAddr("127.0.0.2")}, nil
	case "nowhere.test.":
		return nil, errors.New("no such host")
	}
	return []netip.Addr{home}, nil
}

// serve runs an Egress with one sandbox, which asks for the proxy, and returns
// the URL of that.
func serve(t *testing.T, n *doze.Network, i Interceptor) (*Egress, *url.URL) {
	t.Helper()
	return serveWith(t, n, func(o *Options) { o.Interceptor = i })
}

// serveWith is serve with other options.
func serveWith(t *testing.T, n *doze.Network, change func(*Options)) (*Egress, *url.URL) {
	t.Helper()
	listen := func() net.Listener {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	questions, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Redirected: listen(), Proxy: listen(), Names: listen(), Questions: questions, Pool: pool, Resolver: here{},
		Denied: func(_, a netip.Addr) bool { return a != home }, Decided: func(bool) {},
	}
	change(&o)
	e := New(o)
	admit(t, e, n)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(busy):
			t.Error("it does not end")
		}
	})
	return e, &url.URL{Scheme: "http", Host: o.Proxy.Addr().String()}
}

func admit(t *testing.T, e *Egress, n *doze.Network) {
	t.Helper()
	if err := e.Admit(Guest{UID: "a", IP: home}, n); err != nil {
		t.Fatal(err)
	}
}

// allowing are rules that allow names at the port of a server.
func allowing(s *httptest.Server, names ...string) *doze.Network {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	p := &doze.Proxy{AllowedDomains: []string{"never.test"}}
	for _, name := range names {
		p.AllowedDomains = append(p.AllowedDomains, name+":"+port)
	}
	return &doze.Network{Proxy: p}
}

// at is the address of a server under a name.
func at(s *httptest.Server, name string) string {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return net.JoinHostPort(name, port)
}

func TestRequests(t *testing.T) {
	t.Parallel()
	var got atomic.Pointer[http.Request]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Clone(context.WithoutCancel(r.Context())))
		_, _ = io.Copy(w, r.Body)
	}))
	defer s.Close()
	_, proxy := serve(t, allowing(s, "a.test", "private.test", "nowhere.test"), nil)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	defer client.CloseIdleConnections()
	do := func(to string) (int, string, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-For", "mine")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get(BlockedHeader), string(b)
	}
	if status, _, body := do("http://" + at(s, "a.test") + "/a//b%2F..?x;y&z="); status != http.StatusOK || body != "body" {
		t.Errorf("%d %s", status, body)
	}
	r := got.Load()
	if r.RequestURI != "/a//b%2F..?x;y&z=" || r.Host != at(s, "a.test") || r.Header.Get("X-Forwarded-For") != "mine" || r.Header.Get("Accept-Encoding") != "gzip" || len(r.Header.Get("X-Blaxel-Request-Id")) != 36 {
		t.Errorf("the server got %s of %s with %v", r.RequestURI, r.Host, r.Header)
	}
	for host, advice := range map[string]string{
		"b.test": "change spec.network", "private.test": "sandboxes reach public addresses only",
		"127.0.0.1": "connect by name", "2130706433": "connect by name",
	} {
		if status, why, body := do("http://" + at(s, host) + "/"); status != http.StatusForbidden || why != BlockedValue || !strings.Contains(body, advice) {
			t.Errorf("%s: %d %q %s", host, status, why, body)
		}
	}
	s.Close()
	for host, want := range map[string]string{"a.test": "a.test cannot be reached", "nowhere.test": "the name nowhere.test cannot be resolved"} {
		if status, why, body := do("http://" + at(s, host) + "/"); status != http.StatusBadGateway || why != "" || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q %s", host, status, why, body)
		}
	}
}

// tunnel asks the proxy for a tunnel.
func tunnel(t *testing.T, proxy *url.URL, to string) (net.Conn, int) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp4", proxy.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(busy)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "CONNECT "+to+" HTTP/1.1\r\nHost: "+to+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return c, resp.StatusCode
}

// TestNoListener: who asks for a tunnel to where none may go hears so at once.
func TestNoListener(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	_, proxy := serve(t, allowing(s, "a.test", "private.test", "nowhere.test"), nil)
	for name, want := range map[string]int{
		"a.test": http.StatusOK, "b.test": http.StatusForbidden, "private.test": http.StatusForbidden, "nowhere.test": http.StatusBadGateway,
	} {
		if _, status := tunnel(t, proxy, at(s, name)); status != want {
			t.Errorf("%s: %d", name, status)
		}
	}
}

// counting counts the questions that it is asked.
type counting struct {
	here

	asked *atomic.Int32
}

func (c counting) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	c.asked.Add(1)
	return c.here.LookupNetIP(ctx, network, host)
}

// TestResolvedOnce: what was looked up to answer a request for a tunnel is what is
// dialled, whoever dials, and another name is looked up by itself.
func TestResolvedOnce(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	var asked atomic.Int32
	c := catcher{make(chan string, 2)}
	_, proxy := serveWith(t, &doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{at(s, "routed.test")}}}}}, func(o *Options) {
		o.Resolver, o.Interceptor = counting{asked: &asked}, c
	})
	for i, name := range []string{"a.test", "routed.test"} {
		conn, status := tunnel(t, proxy, at(s, name))
		if status != http.StatusOK {
			t.Fatal(status)
		}
		if name == "routed.test" {
			_, _ = io.WriteString(conn, "hello\n")
			<-c.got
			continue
		}
		_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
		if _, err := io.ReadAll(conn); err != nil {
			t.Fatal(err)
		}
		if n := int(asked.Load()); n != i+1 {
			t.Errorf("%s: %d questions by now", name, n)
		}
	}
}

// TestInterceptedInClear: a request in clear that a routing rule is about is given
// away, and refused if nobody takes it. It comes through a tunnel or not.
func TestInterceptedInClear(t *testing.T) {
	t.Parallel()
	var got atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
	defer s.Close()
	n := &doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{
		{Destinations: []string{"http://" + at(s, "a.test"), "http://" + at(s, "private.test")}},
		{Destinations: []string{"https://" + at(s, "b.test")}},
	}}}
	c := catcher{make(chan string, 8)}
	_, proxy := serve(t, n, c)
	_, without := serve(t, n, nil)
	for name, tt := range map[string]struct {
		by   *url.URL
		to   string
		want int
		got  string // what the interceptor was given; nothing if it was not asked
	}{
		"a rule":           {proxy, "a.test", http.StatusOK, "a a.test GET /x true"},
		"of https":         {proxy, "b.test", http.StatusOK, ""},
		"nobody takes it":  {without, "a.test", http.StatusForbidden, ""},
		"may not be there": {proxy, "private.test", http.StatusForbidden, "a private.test GET /x true"},
	} {
		for _, tunnelled := range []bool{false, true} {
			client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(tt.by)}}
			if tunnelled {
				if tt.want == http.StatusForbidden && tt.to == "private.test" {
					continue // the tunnel is refused
				}
				client.Transport = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
					conn, _ := tunnel(t, tt.by, at(s, tt.to))
					return conn, nil
				}}
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(s, tt.to)+"/x", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(name, err)
			}
			resp.Body.Close()
			client.CloseIdleConnections()
			said := ""
			select {
			case said = <-c.got:
			default:
			}
			if resp.StatusCode != tt.want || said != tt.got {
				t.Errorf("%s, by a tunnel %v: %s, and who intercepts got %q", name, tunnelled, resp.Status, said)
			}
		}
	}
	if got.Load() != 4 {
		t.Errorf("the server has %d requests", got.Load())
	}
}

// TestUnlooked: a request in clear of a sandbox without lists hears why it leads
// nowhere, and who asks for what stands for nothing is not kept waiting.
func TestUnlooked(t *testing.T) {
	t.Parallel()
	e, _ := serve(t, nil, nil)
	for name, tt := range map[string]struct {
		to   Destination
		says string
		want string
	}{
		"a private address": {Destination{Name: "private.test", Port: httpPort}, "GET / HTTP/1.1\r\nHost: private.test\r\n\r\n", "HTTP/1.1 403 "},
		"no address":        {Destination{Name: "nowhere.test", Port: httpPort}, "GET / HTTP/1.1\r\nHost: nowhere.test\r\n\r\n", "HTTP/1.1 502 "},
		"another port":      {Destination{Name: "private.test", Port: 8080}, "GET / HTTP/1.1\r\nHost: private.test\r\n\r\n", ""},
		"no request":        {Destination{Name: "private.test", Port: httpPort}, "\x00\x01", ""},
		"nothing":           {Destination{Port: 22}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, c := pipe(t)
			g := e.guest(&net.TCPAddr{IP: home.AsSlice(), Port: 1})
			if why := g.enter(c); why != "" {
				t.Fatal(why)
			}
			began := time.Now()
			go (&stream{e: e, g: g, c: c, to: tt.to}).serve(t.Context()) // ends with the connection
			_ = client.SetDeadline(began.Add(peekTime / 2))
			_, _ = io.WriteString(client, tt.says)
			got := make([]byte, len("HTTP/1.1 000 "))
			n, err := io.ReadFull(client, got)
			if string(got[:n]) != tt.want || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("it hears %q, %v", got[:n], err)
			}
		})
	}
}

// TestPaths: one byte that no path may have does not get the rest decoded.
func TestPaths(t *testing.T) {
	t.Parallel()
	var got atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got.Store(r.RequestURI) }))
	defer s.Close()
	_, proxy := serve(t, allowing(s, "a.test"), nil)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	defer client.CloseIdleConnections()
	for path, want := range map[string]string{
		`/a%2fb\`: "/a%2fb%5C", `/pub/..%2fadmin"x`: "/pub/..%2fadmin%22x", "//x/%2F{?a=%2f|": "//x/%2F%7B?a=%2f|",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(s, "a.test"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Opaque = "//" + at(s, "a.test") + path // is sent as it is
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got.Load() != want {
			t.Errorf("%s: %s, sent as %v", path, resp.Status, got.Load())
		}
	}
}

// TestUpgraded: who has said all of an upgraded request hears the answer.
func TestUpgraded(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		said, _ := io.ReadAll(buffered)
		_, _ = c.Write(said)
	}))
	defer s.Close()
	_, proxy := serve(t, allowing(s, "a.test"), nil)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp4", proxy.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(busy))
	if _, err := io.WriteString(conn, "GET http://"+at(s, "a.test")+"/ HTTP/1.1\r\nHost: "+at(s, "a.test")+"\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answer, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	defer resp.Body.Close()
	_, _ = io.WriteString(conn, "all of it")
	_ = conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(answer); string(got) != "all of it" || err != nil {
		t.Errorf("%q comes back, %v", got, err)
	}
}

// TestTightened: a stream that new rules forbid ends, and one that they allow
// goes on.
func TestTightened(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.ServerName)
	}))
	defer s.Close()
	e, proxy := serve(t, allowing(s, "a.test", "b.test"), nil)
	dial := func(name string) *http.Client {
		c, status := tunnel(t, proxy, at(s, name))
		if status != http.StatusOK {
			t.Fatalf("%s: %d", name, status)
		}
		return &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext:     func(context.Context, string, string) (net.Conn, error) { return c, nil },
		}}
	}
	say := func(c *http.Client, name string) error {
		resp, err := c.Get("https://" + name)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != name {
			t.Errorf("%s says %q, %v", name, b, err)
		}
		return nil
	}
	ends := func(c *http.Client, name string) bool {
		for deadline := time.Now().Add(busy); time.Now().Before(deadline); {
			if say(c, name) != nil {
				return true
			}
		}
		return false
	}
	a, b := dial("a.test"), dial("b.test")
	if err := errors.Join(say(a, "a.test"), say(b, "b.test")); err != nil {
		t.Fatal(err)
	}
	admit(t, e, allowing(s, "b.test"))
	if !ends(a, "a.test") {
		t.Error("what is forbidden now goes on")
	}
	if err := say(b, "b.test"); err != nil {
		t.Errorf("what is still allowed: %v", err)
	}
	if _, status := tunnel(t, proxy, at(s, "a.test")); status != http.StatusForbidden {
		t.Errorf("a new one: %d", status)
	}
	e.Forget(home)
	if !ends(b, "b.test") {
		t.Error("a stream outlives its sandbox")
	}
}

// catcher says what it was given.
type catcher struct{ got chan string }

func (c catcher) Intercept(ctx context.Context, g Guest, conn net.Conn, to Destination, rules []int, dial func(context.Context) (net.Conn, error)) {
	defer conn.Close()
	up, err := dial(ctx)
	if err == nil {
		_ = up.Close()
	}
	line, _ := bufio.NewReader(conn).ReadString('\n')
	c.got <- g.UID + " " + to.Name + " " + strings.TrimSpace(line)
	if len(rules) != 1 || err != nil {
		c.got <- "it cannot be dialled"
	}
}

func (c catcher) Request(w http.ResponseWriter, r *http.Request, g Guest, to Destination, by http.RoundTripper) {
	c.got <- fmt.Sprint(g.UID, " ", to.Name, " ", r.Method, " ", r.URL.Path, " ", to.Plain)
	out := r.Clone(r.Context())
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", r.Host
	resp, err := by.RoundTrip(out)
	if err != nil {
		w.WriteHeader(doze.Public(err).Kind.Status())
		return
	}
	resp.Body.Close()
	w.WriteHeader(resp.StatusCode)
}

// TestIntercepted: what a routing rule matches is given away with all that was
// said, and refused if nobody takes it.
func TestIntercepted(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	n := &doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{at(s, "a.test")}}}}}
	for name, taken := range map[string]bool{"taken": true, "nobody": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := catcher{make(chan string, 2)}
			var i Interceptor
			if taken {
				i = c
			}
			_, proxy := serve(t, n, i)
			conn, status := tunnel(t, proxy, at(s, "a.test"))
			if status != http.StatusOK {
				t.Fatal(status)
			}
			_, _ = io.WriteString(conn, "hello\n")
			if !taken {
				if _, err := conn.Read(make([]byte, 1)); err == nil {
					t.Error("it is passed on")
				}
				return
			}
			select {
			case got := <-c.got:
				if got != "a a.test hello" {
					t.Errorf("it got %q", got)
				}
			case <-time.After(busy):
				t.Error("nobody got it")
			}
		})
	}
}
