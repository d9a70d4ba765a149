package hostnet

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// admitted gives the sandbox a its way.
func admitted(tb testing.TB, n *Net, w Mode) {
	tb.Helper()
	if err := n.Admit("a", w); err != nil {
		tb.Fatal(err)
	}
}

// greeter answers every connection to a port of the router with a word and the
// destination that it was meant for.
func greeter(t *testing.T, n *Net, port uint16, word string) net.Listener {
	t.Helper()
	l, err := n.Listen(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, word+" "+meantFor(c))
			c.Close()
		}
	}()
	return l
}

// meantFor is the destination of a connection before it was redirected.
func meantFor(c net.Conn) (to string) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err.Error()
	}
	_ = raw.Control(func(fd uintptr) {
		m, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if err != nil {
			to = err.Error()
			return
		}
		b := m.Multiaddr
		to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])).String()
	})
	return to
}

// said is what a sandbox hears at an address.
func said(to string) (string, error) {
	c, err := net.DialTimeout("tcp4", to, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	b, err := io.ReadAll(c)
	return string(b), err
}

// TestProxied leads all that a sandbox sends to the ports of the router, and
// refuses what no proxy should even hear of.
func TestProxied(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	serve(t, a)
	portB := serve(t, b)
	proxied := greeter(t, n, RedirectPort, "proxied")
	greeter(t, n, ProxyPort, "proxy")
	greeter(t, n, NamePort, "name")
	questions, err := n.ListenPacket(t.Context(), NamePort)
	if err != nil {
		t.Fatal(err)
	}
	defer questions.Close()
	go func() { // ends with the socket
		for {
			if _, from, err := questions.ReadFrom(make([]byte, 16)); err != nil {
				return
			} else if _, err := questions.WriteTo([]byte("answer"), from); err != nil {
				return
			}
		}
	}()
	admitted(t, n, Proxied)

	led := map[string]string{
		"8.8.8.8:80":               "proxied 8.8.8.8:80",
		"8.8.8.8:853":              "proxied 8.8.8.8:853",
		"198.18.3.4:443":           "proxied 198.18.3.4:443",
		"8.8.8.8:53":               "name 8.8.8.8:53",
		"10.0.0.1:53":              "name 10.0.0.1:53",
		ProxyIP.String() + ":3128": "proxy " + ProxyIP.String() + ":3128",
	}
	inside(t, a, func() error {
		for to, want := range led {
			if got, err := said(to); got != want {
				t.Errorf("%s says %q, %v", to, got, err)
			}
		}
		refused := []string{
			netip.AddrPortFrom(b.IP, portB).String(), a.Gateway.String() + ":3129", a.Gateway.String() + ":3128", b.Gateway.String() + ":80",
			"169.254.169.254:80", "192.168.0.1:80", "100.64.0.1:443", ProxyIP.String() + ":80", "198.51.100.1:80",
		}
		for _, to := range refused {
			if got, err := said(to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s says %q, %v", to, got, err)
			}
		}
		for to, want := range map[string]bool{"8.8.8.8:53": true, "8.8.8.8:443": false, "169.254.169.254:123": false} {
			if err := asked("udp4", to, want); (err == nil) != want {
				t.Errorf("%s by UDP: %v", to, err)
			}
		}
		return nil
	})

	// Nobody listens: it is refused, and does not hang.
	proxied.Close()
	inside(t, a, func() error {
		if _, err := said("8.8.8.8:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without a proxy: %v", err)
		}
		return nil
	})
	// Closed again, there is no way to anybody.
	admitted(t, n, Closed)
	inside(t, a, func() error {
		if c, err := net.DialTimeout("tcp4", ProxyIP.String()+":3128", silence); err == nil {
			c.Close()
			t.Error("the proxy can be reached")
		}
		return nil
	})
}

// heard is what comes back by a socket on which a question is asked. Where that is
// expected it may take its time.
func heard(c net.Conn, expected bool) (answer string, err error) {
	wait := silence
	if expected {
		wait = patience
	}
	b := make([]byte, 64)
	for range 3 { // a packet may be lost
		if _, err = c.Write([]byte("question")); err != nil {
			continue // it is the answer to an earlier one
		}
		c.SetReadDeadline(time.Now().Add(wait))
		var n int
		if n, err = c.Read(b); err == nil {
			return string(b[:n]), nil
		}
	}
	return "", err
}

// asked asks somebody.
func asked(network, to string, expected bool) error {
	c, err := net.DialTimeout(network, to, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = heard(c, expected)
	return err
}

// TestModesBeginClosed: neither a new lease, nor one that somebody else had
// before, nor one that a daemon finds again, leads anywhere.
func TestModesBeginClosed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "net")
	n := open(t, dir, Options{})
	a := leased(t, n, "a")
	serve(t, a)
	admitted(t, n, Proxied)
	n.Close()
	n = open(t, dir, Options{})
	t.Cleanup(func() {
		if err := n.Destroy(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Admit("a", Proxied); doze.Public(err).Kind != doze.NotFound {
		t.Errorf("before it is leased again: %v", err)
	}
	leased(t, n, "a")
	greeter(t, n, RedirectPort, "proxied")
	inside(t, a, func() error {
		if c, err := net.DialTimeout("tcp4", "8.8.8.8:80", silence); err == nil {
			c.Close()
			t.Error("a lease that was found again leads somewhere")
		}
		return nil
	})
	admitted(t, n, Proxied)
	inside(t, a, func() error {
		if got, err := said("8.8.8.8:80"); got != "proxied 8.8.8.8:80" {
			t.Errorf("%q, %v", got, err)
		}
		return nil
	})
	if err := n.Release("a"); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.next = a.Index
	n.mu.Unlock()
	if heir := leased(t, n, "heir"); heir.Index != a.Index {
		t.Fatalf("it has the index %d", heir.Index)
	} else {
		serve(t, heir)
		inside(t, heir, func() error {
			if c, err := net.DialTimeout("tcp4", "8.8.8.8:80", silence); err == nil {
				c.Close()
				t.Error("whoever gets an index next goes the way of who had it")
			}
			return nil
		})
	}
}

// TestUnansweredQuestion: where the kernel does not say whether the rules are ours,
// nobody is let out, until it says so again.
func TestUnansweredQuestion(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	leased(t, n, "a")
	n.router.generations.conn.Close()
	if err := n.Admit("a", Proxied); err == nil {
		t.Error("it is let out")
	}
	admitted(t, n, Proxied)
	n.router.generations.conn.Close()
	admitted(t, n, Closed)
	if err := n.Join("a", "x"); err != nil {
		t.Errorf("after a change of ours that was not counted: %v", err)
	}
}

// TestMissingRule: while a rule is missing nobody is let out, and who was, can be
// shut in. The next start has all rules again.
func TestMissingRule(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "net")
	n := open(t, dir, Options{})
	leased(t, n, "a")
	leased(t, n, "b")
	admitted(t, n, Proxied)
	for range 3 { // changes of our own are none of somebody else
		if err := errors.Join(n.Join("a", "x"), n.Join("a", ""), n.Admit("b", Proxied), n.Admit("b", Closed)); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := nftables.New(nftables.WithNetNSFd(n.router.ns.fd()))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := conn.GetRules(ownTable, &nftables.Chain{Name: "refuse"})
	if err != nil || len(rules) == 0 {
		t.Fatalf("%d rules, %v", len(rules), err)
	}
	if err := errors.Join(conn.DelRule(rules[len(rules)-1]), conn.Flush()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is not forgotten
		if err := n.Admit("b", Proxied); doze.Public(err).Kind != doze.Unavailable {
			t.Errorf("without a rule: %v", err)
		}
		if err := n.Join("b", "x"); doze.Public(err).Kind != doze.Unavailable {
			t.Errorf("into a subnet, without a rule: %v", err)
		}
		if err := n.Admit("a", Closed); err != nil {
			t.Error(err)
		}
	}
	if err := n.Release("a"); err != nil {
		t.Error(err)
	}
	n.Close()
	n = open(t, dir, Options{})
	leased(t, n, "b")
	if err := errors.Join(n.Admit("b", Proxied), n.Destroy()); err != nil {
		t.Errorf("after a start: %v", err)
	}
}

// TestNotPublic: of each version, what is not of the public internet is closed, and
// whatever has an address of the other version in it.
func TestNotPublic(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"8.8.8.8": false, "10.1.2.3": true, "169.254.169.254": true, "198.18.0.1": true, "255.255.255.255": true,
		"2606:4700::1111": false, "2a00:1450::1": false,
		"::": true, "::1": true, "::7f00:1": true, "::ffff:8.8.8.8": true, "64:ff9b::808:808": true, "64:ff9b:1::1": true, "100::1": true,
		"2001::1": true, "2001:db8::1": true, "2002:808:808::1": true, "3fff::1": true,
		"fc00::1": true, "fd00:ec2::254": true, "fe80::1": true, "fec0::1": true, "ff02::1": true, "4000::1": true,
	} {
		if got := NotPublic(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}
