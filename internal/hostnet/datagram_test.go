package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"

	"github.com/dozehq/doze"
)

// mirror answers every packet to a port of a namespace with the address that it
// came from.
func mirror(t *testing.T, namespace, port string) {
	t.Helper()
	ns, err := openNetns(namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var c net.PacketConn
	if err := ns.do(func() (err error) {
		c, err = net.ListenPacket("udp4", ":"+port)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() { // ends with the socket
		for {
			_, from, err := c.ReadFrom(make([]byte, 16))
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			c.WriteTo([]byte(host), from)
		}
	}()
}

// TestDatagrams: UDP of a sandbox leaves from its dedicated address and no other
// one, only to where it may, and an open socket follows every change.
func TestDatagrams(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	machine, internet := filepath.Join(dir, "machine"), filepath.Join(dir, "internet")
	world(t, machine, internet)
	before := state(t, machine)
	for _, port := range []string{"53", "443", "853"} {
		mirror(t, internet, port)
	}
	mirror(t, machine, "443")
	o := Options{OpenDatagrams: true, EgressLink: "wan", machine: machine}
	n := open(t, filepath.Join(dir, "net"), o)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	dress(t, a)
	dress(t, b)
	one, two, none := netip.MustParseAddr("9.9.9.64"), netip.MustParseAddr("9.9.9.65"), netip.Addr{}
	leave := func(id string, from netip.Addr) {
		t.Helper()
		if err := errors.Join(n.Dedicate(id, from), n.Datagrams(id, from)); err != nil {
			t.Fatal(err)
		}
	}
	sockets := map[string]net.Conn{}
	for id, slot := range map[string]Slot{"a": a, "b": b} {
		inside(t, slot, func() (err error) {
			sockets[id], err = net.Dial("udp4", "9.9.9.2:443")
			return err
		})
		defer sockets[id].Close()
	}
	want := func(step string, seen map[string]string) {
		t.Helper()
		for id, source := range seen {
			if got, err := heard(sockets[id], source != ""); got != source {
				t.Errorf("%s: the UDP of %s comes from %q, want %q; %v", step, id, got, source, err)
			}
		}
	}
	admitted(t, n, Proxied)
	told := watch(t, n)
	want("proxied", map[string]string{"a": ""})
	leave("a", one)
	want("with an address", map[string]string{"a": "9.9.9.64", "b": ""})
	leave("b", two)
	want("closed, with an address", map[string]string{"a": "9.9.9.64", "b": ""})
	if err := n.Admit("b", Proxied); err != nil {
		t.Fatal(err)
	}
	want("each its own", map[string]string{"a": "9.9.9.64", "b": "9.9.9.65"})
	inside(t, a, func() error {
		for name, to := range map[string]string{
			"a question of the DNS":            "9.9.9.2:53",
			"a question by QUIC":               "9.9.9.2:853",
			"a neighbour":                      netip.AddrPortFrom(b.IP, 443).String(),
			"the machine":                      "9.9.9.1:443",
			"the machine's private address":    "192.168.7.1:443",
			"a server in a private network":    "192.168.7.2:443",
			"a metadata service":               "169.254.169.254:443",
			"a server in the shared network":   "100.64.0.1:443",
			"its own address":                  "9.9.9.64:443",
			"what stands for that of somebody": standIns.Addr().Next().String() + ":443",
		} {
			if asked("udp4", to, false) == nil {
				t.Errorf("%s answers", name)
			}
		}
		return nil
	})
	leave("a", two)
	want("another address", map[string]string{"a": "9.9.9.65", "b": "9.9.9.65"})
	leave("a", none)
	want("none any more", map[string]string{"a": "", "b": "9.9.9.65"})
	leave("a", one)
	for _, what := range []string{"a udp 9.9.9.2:443 passed", "b udp 9.9.9.2:443 passed", "a udp 9.9.9.1:443 passed", "a udp 9.9.9.64:443 passed", "a udp 192.168.7.1:443"} {
		told.await(t, what)
	}
	if got := told.count("a udp 9.9.9.2:443 passed"); got > 5 {
		t.Errorf("one socket is told of %d times", got)
	}
	if passed := counted(t, n).Passed; passed["udp"] < 4 {
		t.Errorf("%v flows are counted", passed)
	}
	routers, err := countsOf(&n.router.changer, ownTable)
	if err != nil {
		t.Fatal(err)
	}
	if refused := counted(t, n).Refused; refused["udp"] <= routers[countRefused]["udp"] {
		t.Errorf("%v are refused, and by the router alone %v", refused, routers)
	}
	told.end()
	// Whom a stand-in stood for, and who had a link, is forgotten.
	n.nextStandIn = standInsMax - 1
	leave("a", two)
	leave("b", one)
	want("around", map[string]string{"a": "9.9.9.65", "b": "9.9.9.64"})
	if !n.oldStandIns {
		t.Error("all stand-ins count as new")
	}
	leave("b", two)
	leave("a", none)
	conn, err := nftables.New(nftables.WithNetNSFd(n.router.ns.fd()))
	if err != nil {
		t.Fatal(err)
	}
	conn.AddTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := n.Datagrams("a", one); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("after somebody changed the filter: %v", err)
	}
	n.Close()

	n = open(t, n.dir, o)
	want("after a kill", map[string]string{"a": "", "b": ""})
	for _, id := range []string{"b", "a"} { // in the other order
		leased(t, n, id)
		leave(id, map[string]netip.Addr{"a": one, "b": two}[id])
		if err := n.Admit(id, Proxied); err != nil {
			t.Fatal(err)
		}
	}
	want("admitted again", map[string]string{"a": "9.9.9.64", "b": "9.9.9.65"})
	if err := n.Release("b"); err != nil {
		t.Fatal(err)
	}
	if len(n.standIns) != 1 {
		t.Errorf("there are %d stand-ins", len(n.standIns))
	}
	if err := n.Destroy(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, state(t, machine)); diff != "" {
		t.Errorf("the machine changed: %s", diff)
	}
}

func TestDatagramsClosed(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	leased(t, n, "a")
	if err := n.Datagrams("a", netip.MustParseAddr("9.9.9.64")); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("where nobody opened a way: %v", err)
	}
	if err := n.Datagrams("nobody", netip.Addr{}); doze.Public(err).Kind != doze.NotFound {
		t.Errorf("of nobody: %v", err)
	}
}
