package e2e_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit/dnstest"
	"github.com/dozehq/doze/internal/testkit/forwarder"
)

const (
	// upstreamIP has the proxy of the operator's network, where upstreamHost is this host.
	upstreamIP   = "10.77.0.1"
	upstreamHost = "10.77.0.2"
	upstreamPort = "3128"
	upstreamWord = "hunter2-of-the-proxy"
)

// dialsWithin connects in a network namespace.
func dialsWithin(netns string, resolver *net.Resolver) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if net.ParseIP(host) == nil {
			all, err := resolver.LookupNetIP(ctx, "ip4", host+".")
			if err != nil {
				return nil, err
			}
			host = all[0].String()
		}
		type made struct {
			c   net.Conn
			err error
		}
		done := make(chan made, 1)
		go func() { // ends with the attempt
			runtime.LockOSThread() // and never unlocked: the thread is thrown away
			ns, err := os.Open(netns)
			if err == nil {
				err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
				_ = ns.Close()
			}
			if err != nil {
				done <- made{nil, err}
				return
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				done <- made{nil, err}
				return
			}
			f := os.NewFile(uintptr(fd), "socket")
			defer func() { _ = f.Close() }()
			at, err := net.ResolveTCPAddr(network+"4", net.JoinHostPort(host, port))
			if err == nil {
				err = unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())})
			}
			var c net.Conn
			if err == nil {
				c, err = net.FileConn(f)
			}
			done <- made{c, err}
		}()
		m := <-done
		return m.c, m.err
	}
}

// behindProxy is an internet that this host reaches by a proxy alone, which is yet to be
// started.
func behindProxy(t *testing.T) *internet {
	t.Helper()
	n := newInternet(t)
	run(t, "nsenter", "--net="+n.outside, "ip", "addr", "add", upstreamIP+"/24", "dev", "wan")
	run(t, "ip", "addr", "add", upstreamHost+"/24", "dev", "wan")
	run(t, "ip", "route", "del", "default")
	return n
}

// An upstream is a proxy that says what it was asked for since the last time: METHOD and
// host, with a port for CONNECT.
type upstream interface{ Asked() []string }

// pythonByTLS is a client in TLS that knows nothing of the proxy.
const pythonByTLS = `python3 -c 'import ssl, urllib.request as u; c = ssl._create_unverified_context(); print(u.urlopen("https://direct.test/", context=c).read().decode())'`

// byAddresses has sandboxes use a proxy that gets addresses alone. One of them has a rule.
func byAddresses(t *testing.T, f upstream, free, ruled *client.Agent) {
	t.Helper()
	f.Asked()
	try(t, free, map[string]row{
		"TLS":               {"tls", args("direct.test", "direct.test"), "200 host=direct.test sni=direct.test at=5.6.7.8:443"},
		"in clear":          {"web", args("direct.test"), "200 host=direct.test sni=- at=5.6.7.8:80"},
		"an address":        {"web", args(otherIP), "200 host=5.6.7.8 sni=- at=5.6.7.8:80"},
		"a server speaks":   {"raw", args("direct.test", 8443), greeting},
		"curl":              {"curl", args("https://direct.test/"), "200 000"},
		"curl with a proxy": {"curl", args("-x", "http://169.254.88.1:3128", "https://direct.test/"), "200 200"},
		"curl in clear":     {"curl", args("http://direct.test/"), "200 000"},
		"a private name":    {"web", args("inner.test"), blocked},
		"its address":       {"raw", args(privateIP, 80), "refused"},
		"a tunnel to it":    {"tunnel", args("inner.test:80"), blocked},
		"the metadata":      {"web", args("rebind.test"), blocked},
		"the proxy itself":  {"raw", args(upstreamIP, 3128), "refused"},
		"ping":              {"ping", args("direct.test"), "nothing"},
		"UDP":               {"datagram", args("direct.test", 443), "nothing"},
	})
	try(t, ruled, map[string]row{
		"allowed":      {"tls", args("direct.test", "direct.test"), "200 host=direct.test"},
		"in clear":     {"web", args("direct.test"), "200 host=direct.test"},
		"forbidden":    {"web", args("evil.test"), blocked},
		"another name": {"tls", args("direct.test", "evil.test"), "refused"},
	})
	if out := sh(t, free, pythonByTLS); !strings.Contains(out, "sni=direct.test") {
		t.Error(out)
	}
	asked := f.Asked()
	for _, a := range asked {
		if !strings.HasPrefix(a, "CONNECT 5.6.7.8:") {
			t.Errorf("the proxy was asked for %s", a)
		}
	}
	if len(asked) == 0 {
		t.Error("nothing went through the proxy")
	}
}

// byNames has them use a proxy that gets names, on a host whose DNS knows none outside.
func byNames(t *testing.T, f upstream, dark *dnstest.Zone, free, ruled *client.Agent) {
	t.Helper()
	f.Asked()
	try(t, free, map[string]row{
		"TLS":            {"tls", args("direct.test", "direct.test"), "200 host=direct.test sni=direct.test at=5.6.7.8:443"},
		"in clear":       {"web", args("direct.test"), "200 host=direct.test sni=- at=5.6.7.8:80"},
		"curl":           {"curl", args("https://direct.test/"), "200 000"},
		"a private name": {"web", args("inner.test"), blocked},
		"by TLS":         {"tls", args("inner.test", "inner.test"), "refused"},
		"an address":     {"tls", args(privateIP, "direct.test"), "refused"},
		"a closed port":  {"raw", args("direct.test", 8443), "refused"},
	})
	try(t, ruled, map[string]row{
		"in clear":  {"web", args("direct.test"), "200 host=direct.test"},
		"forbidden": {"web", args("evil.test"), blocked},
	})
	asked := f.Asked()
	for _, want := range []string{"CONNECT direct.test:443", "GET direct.test", "CONNECT direct.test:8443"} {
		if !slices.Contains(asked, want) {
			t.Errorf("the proxy was never asked for %s: %q", want, asked)
		}
	}
	if dark.Asked("evil.test") || slices.ContainsFunc(asked, func(a string) bool { return strings.Contains(a, "inner.test") || strings.Contains(a, "evil.test") }) {
		t.Errorf("a name that is refused left: %q", asked)
	}
}

// TestUpstreamProxy: a host whose only way out is an HTTP proxy. Clients in sandboxes are
// as everywhere, and private addresses stay closed.
func TestUpstreamProxy(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	n := behindProxy(t)
	f := &forwarder.Proxy{Credentials: "doze:" + upstreamWord, Dial: dialsWithin(n.outside, n.zone.Resolver())}
	var down atomic.Bool
	within(t, n.outside, func() error {
		l, err := net.Listen("tcp4", net.JoinHostPort(upstreamIP, upstreamPort))
		if err != nil {
			return err
		}
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if down.Load() {
				panic(http.ErrAbortHandler)
			}
			f.ServeHTTP(w, r)
		})}
		t.Cleanup(func() { _ = s.Close() })
		go func() { _ = s.Serve(l) }()
		return nil
	})
	file := filepath.Join(t.TempDir(), "upstream")
	word := func(password string) {
		if err := os.WriteFile(file, []byte("http://doze:"+password+"@"+net.JoinHostPort(upstreamIP, upstreamPort)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	word(upstreamWord)
	args1 := []string{"--egress", "open", "--upstream-proxy-file", file, "--pause-after", "1h"}
	p, c := start(t, append(slices.Clone(args1), "--resolver", n.zone.Address)...)
	restart := func(more ...string) {
		t.Helper()
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		p.Arguments(append(slices.Clone(args1), more...)...)
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, free := create(t, c, named("free", 1024))
	sb := named("ruled", 1024)
	sb.Spec.Network = &doze.Network{Proxy: &doze.Proxy{AllowedDomains: []string{"direct.test"}}}
	_, ruled := create(t, c, sb)

	t.Run("addresses", func(t *testing.T) {
		byAddresses(t, f, free, ruled)
		pulls(t, c, f, otherIP+":443")
		doctors(t, c, "")
	})

	t.Run("names", func(t *testing.T) {
		dark := dnstest.Serve(t) // knows nothing but a name of the operator's network
		dark.A("inner.test", [4]byte{192, 168, 77, 1})
		f.Tunnels = []string{"443"} // as squid comes
		restart("--upstream-resolves", "--resolver", dark.Address)
		byNames(t, f, dark, free, ruled)
		pulls(t, c, f, "direct.test:443")
	})

	t.Run("exceptions", func(t *testing.T) {
		restart("--resolver", n.zone.Address, "--upstream-no-proxy", "allowed.test")
		f.Asked()
		try(t, free, map[string]row{"an exception": {"web", args("allowed.test"), reached + " from=" + ownIP}})
		if asked := f.Asked(); len(asked) > 0 {
			t.Errorf("the proxy was asked for %q", asked)
		}
	})

	t.Run("credentials", func(t *testing.T) {
		word("wrong")
		restart("--resolver", n.zone.Address)
		try(t, free, map[string]row{"TLS": {"tls", args("direct.test", "direct.test"), "refused"}})
		if out := sh(t, free, "curl -s http://direct.test/"); !strings.Contains(out, "(407)") {
			t.Error(out)
		}
		tellsOfProxy(t, c, "(407)")
		doctors(t, c, "(407)")
	})

	t.Run("down", func(t *testing.T) {
		down.Store(true)
		if out := sh(t, free, "curl -s http://direct.test/"); !strings.Contains(out, "the HTTP proxy of this platform") {
			t.Error(out)
		}
	})
	log, err := os.ReadFile(p.Log)
	if err != nil || strings.Contains(string(log), upstreamWord) || !strings.Contains(string(log), "the upstream proxy fails") {
		t.Errorf("the log has the password, or no line about the proxy: %v", err)
	}
	if n.leaked.Load() != 0 || n.datagrams.Load() != 0 {
		t.Errorf("%d connections and %d packets went where nothing may go", n.leaked.Load(), n.datagrams.Load())
	}
}

// pulls has the platform look for an image at a registry that is none, and verifies that
// the proxy was asked for it.
func pulls(t *testing.T, c *client.Client, f upstream, registry string) {
	t.Helper()
	f.Asked()
	sb := named("pull", 1024)
	sb.Spec.Runtime.Image = registry + "/none/none:1"
	_, err := c.Create(t.Context(), sb, false)
	if err == nil {
		until(t, "the pull fails", func() bool {
			got, err := c.Sandbox(t.Context(), "pull")
			return err != nil || got.Status == "FAILED"
		})
		if _, err := c.Delete(t.Context(), "pull"); err != nil {
			t.Error(err)
		}
	}
	if asked := f.Asked(); !slices.Contains(asked, "CONNECT "+registry) {
		t.Errorf("the proxy was asked for %q, and not for %s (%v)", asked, registry, err)
	}
}

// doctors looks for the finding about the proxy. The empty string is none.
func doctors(t *testing.T, c *client.Client, want string) {
	t.Helper()
	found, err := c.Checkup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found.Findings, func(f doze.Finding) bool { return f.Name == "upstream proxy" })
	if want == "" && i >= 0 || want != "" && (i < 0 || !strings.Contains(found.Findings[i].Found, want)) {
		t.Errorf("want %q: %+v", want, found.Findings)
	}
}

// tellsOfProxy waits for an event of the sandbox free about a refusal.
func tellsOfProxy(t *testing.T, c *client.Client, want string) {
	t.Helper()
	until(t, "the refusal is an event", func() bool {
		sb, err := c.Sandbox(t.Context(), "free")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(sb.Events, func(e doze.Event) bool {
			return e.Type == doze.EventNotice && strings.Contains(e.Message, "(upstream-proxy)") && strings.Contains(e.Message, want)
		})
	})
}
