package hostnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// silence is how long a test listens for a packet that must not come.
const silence = 150 * time.Millisecond

// patience is how long a test waits for what must come.
const patience = 10 * time.Second

func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("SKIPPED: network namespaces need root")
	}
}

func open(tb testing.TB, dir string, o Options) *Net {
	tb.Helper()
	needRoot(tb)
	n, err := Open(dir, o)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// fresh opens a network that the test destroys at its end.
func fresh(tb testing.TB) *Net {
	tb.Helper()
	n := open(tb, filepath.Join(tb.TempDir(), "net"), Options{})
	tb.Cleanup(func() {
		if err := n.Destroy(); err != nil {
			tb.Error(err)
		}
	})
	return n
}

func leased(tb testing.TB, n *Net, id string) Slot {
	tb.Helper()
	s, err := n.Lease(tb.Context(), id)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// inside runs f in the sandbox of a slot.
func inside(tb testing.TB, s Slot, f func() error) {
	tb.Helper()
	ns, err := openNetns(s.Path)
	if err != nil {
		tb.Fatal(err)
	}
	defer ns.Close()
	if err := ns.do(f); err != nil {
		tb.Fatal(err)
	}
}

// dress does what the engine's network stack would do: it takes the address
// and sends everything to the gateway.
func dress(tb testing.TB, s Slot) {
	tb.Helper()
	inside(tb, s, func() error {
		link, err := netlink.LinkByName(s.Link)
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(s.IP)}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: s.Gateway.AsSlice(), HardwareAddr: s.GatewayMAC}),
			netlink.RouteReplace(&netlink.Route{Gw: s.Gateway.AsSlice()}),
		)
	})
}

// serve answers every connection to a sandbox with its id.
func serve(tb testing.TB, s Slot) uint16 {
	tb.Helper()
	dress(tb, s)
	var l net.Listener
	inside(tb, s, func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(s.IP, 0).String())
		return err
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, s.ID)
			c.Close()
		}
	})
	tb.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func ask(tb testing.TB, n *Net, s Slot, port uint16) string {
	tb.Helper()
	c, err := n.Dial(tb.Context(), s, port)
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func TestDial(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	portA, portB := serve(t, a), serve(t, b)
	for range 20 {
		if got := ask(t, n, a, portA); got != "a" {
			t.Fatalf("a answered %q", got)
		}
		if got := ask(t, n, b, portB); got != "b" {
			t.Fatalf("b answered %q", got)
		}
	}

	if _, err := n.Dial(t.Context(), a, 1); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that nobody listens on: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), silence)
	defer cancel()
	quiet := leased(t, n, "quiet") // nobody has its address
	if _, err := n.Dial(ctx, quiet, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a sandbox that does not answer: %v", err)
	}
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a.IP, portA).String(), silence)
	if err == nil {
		c.Close()
		t.Error("the machine's own namespace has a way to a sandbox")
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, again, b := leased(t, n, "a"), leased(t, n, "a"), leased(t, n, "b")
	if diff := cmp.Diff(a, again, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("a second lease differs: %s", diff)
	}
	if a.IP == b.IP || a.Path == b.Path || bytes.Equal(a.MAC, b.MAC) || bytes.Equal(a.MAC, a.GatewayMAC) {
		t.Errorf("two sandboxes share something: %+v %+v", a, b)
	}
	if got := n.Leases(); len(got) != 2 || got[0].ID != "a" || got[1].ID != "b" {
		t.Errorf("leases: %v", got)
	}
	inside(t, a, func() error {
		link, err := netlink.LinkByName(a.Link)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		at := link.Attrs()
		if len(addrs) != 0 || at.Flags&net.FlagUp == 0 || at.MTU != a.MTU || !bytes.Equal(at.HardwareAddr, a.MAC) {
			return fmt.Errorf("the sandbox's end is %+v with %v", at, addrs)
		}
		return err
	})
	for _, id := range []string{"", ".", "..", "a/b", "-x", strings.Repeat("a", 129)} {
		if _, err := n.Lease(t.Context(), id); doze.Public(err).Kind != doze.Invalid {
			t.Errorf("id %q: %v", id, err)
		}
	}
	if _, err := Open(n.dir, Options{}); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a second process: %v", err)
	}
}

// TestClosed sends what a sandbox must not be able to send, and looks at who
// gets something.
func TestClosed(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	serve(t, a)
	portB := serve(t, b)

	var inB, inRouter net.PacketConn
	inside(t, b, func() (err error) {
		inB, err = net.ListenPacket("udp4", netip.AddrPortFrom(b.IP, 53).String())
		return err
	})
	defer inB.Close()
	var router net.Listener
	if err := n.router.ns.do(func() (err error) {
		if inRouter, err = net.ListenPacket("udp4", ":53"); err == nil {
			router, err = net.Listen("tcp4", ":80")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer inRouter.Close()
	defer router.Close()

	inside(t, a, func() error {
		for name, to := range map[string]netip.AddrPort{
			"another sandbox":     netip.AddrPortFrom(b.IP, portB),
			"its own gateway":     netip.AddrPortFrom(a.Gateway, 80),
			"the other's gateway": netip.AddrPortFrom(b.Gateway, 80),
			"the metadata":        netip.MustParseAddrPort("169.254.169.254:80"),
			"the internet":        netip.MustParseAddrPort("198.51.100.1:80"),
		} {
			c, err := net.DialTimeout("tcp4", to.String(), silence)
			if err == nil {
				c.Close()
				t.Errorf("a sandbox reached %s", name)
			}
		}
		for _, to := range []netip.Addr{b.IP, a.Gateway, b.Gateway} {
			c, err := net.Dial("udp4", netip.AddrPortFrom(to, 53).String())
			if err != nil {
				return err
			}
			c.Write([]byte("query"))
			c.Close()
		}
		return nil
	})
	for name, c := range map[string]net.PacketConn{"the other sandbox": inB, "the router": inRouter} {
		c.SetReadDeadline(time.Now().Add(silence))
		if _, from, err := c.ReadFrom(make([]byte, 16)); err == nil {
			t.Errorf("%s got a packet from %s", name, from)
		}
	}
	// The listeners themselves work: the router reaches b from its own side.
	if got := ask(t, n, b, portB); got != "b" {
		t.Errorf("b answered %q", got)
	}
}

// TestSpoofed lets one sandbox answer in the name of another.
func TestSpoofed(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	port := serve(t, b)
	c, err := n.Dial(t.Context(), b, port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	admitted(t, n, Proxied) // where questions of the DNS pass the filter, so that the source decides
	before := dropped(t, n)
	inside(t, a, func() error {
		link, err := netlink.LinkByName(a.Link)
		if err != nil {
			return err
		}
		if err := errors.Join(
			netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: b.IP.AsSlice(), Mask: net.CIDRMask(32, 32)}}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: b.Gateway.AsSlice(), HardwareAddr: a.GatewayMAC}),
			netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: b.Gateway.AsSlice(), Mask: net.CIDRMask(32, 32)}}),
		); err != nil {
			return err
		}
		u, err := net.DialUDP("udp4", &net.UDPAddr{IP: b.IP.AsSlice()}, &net.UDPAddr{IP: b.Gateway.AsSlice(), Port: 53})
		if err != nil {
			return err
		}
		defer u.Close()
		_, err = u.Write([]byte("I am b"))
		return err
	})
	after := dropped(t, n)
	for deadline := time.Now().Add(patience); after <= before && time.Now().Before(deadline); after = dropped(t, n) {
		time.Sleep(10 * time.Millisecond)
	}
	if after <= before {
		t.Errorf("the router believed a source address on the wrong link: %d packets refused before, %d after", before, after)
	}
}

// dropped reads how many packets the router refused for their source.
func dropped(t *testing.T, n *Net) (count int) {
	t.Helper()
	if err := n.router.ns.do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/netstat")
		lines := strings.Split(string(b), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			if at := slices.Index(names, "IPReversePathFilter"); at >= 0 && at < len(values) {
				count, err = strconv.Atoi(values[at])
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return count
}

// TestAdopt stands for a daemon that was killed: nothing is closed but what
// the kernel closes.
func TestAdopt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "net")
	n := open(t, dir, Options{})
	a, b := leased(t, n, "a"), leased(t, n, "b")
	port := serve(t, a)
	// Two halves of slots, as if it died inside Lease and inside Release.
	half := newSlot(n.dir, "half", 7)
	if err := n.router.wire(half); err != nil {
		t.Fatal(err)
	}
	if err := n.removeLease(b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, leaseDir, "9"), nil, 0o600); err != nil { // never filled
		t.Fatal(err)
	}
	n.Close()

	n = open(t, dir, Options{})
	if got := ask(t, n, a, port); got != "a" { // before anybody leases it again
		t.Errorf("a answered %q", got)
	}
	if got := leased(t, n, "a"); got.Index != a.Index {
		t.Errorf("a moved from %d to %d", a.Index, got.Index)
	}
	if got := n.Leases(); len(got) != 1 || got[0].ID != "a" {
		t.Errorf("leases: %v", got)
	}
	for _, s := range []Slot{b, half} {
		if n.router.wired(s) {
			t.Errorf("slot %s was left", s.ID)
		}
		if _, err := os.Stat(s.Path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("file of slot %s: %v", s.ID, err)
		}
	}

	// A restart of the machine takes all mounts.
	n.Close()
	for _, path := range []string{filepath.Join(dir, routerFile), a.Path} {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	n = open(t, dir, Options{})
	if got := leased(t, n, "a"); got.IP != a.IP {
		t.Errorf("a moved from %s to %s", a.IP, got.IP)
	}
	if got := ask(t, n, a, serve(t, a)); got != "a" {
		t.Errorf("a answered %q", got)
	}
	if err := n.Destroy(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	if strings.Contains(mounts(t), dir) {
		t.Error("mounts are left")
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	if err := errors.Join(n.Release("a"), n.Release("a"), n.Release("nobody")); err != nil {
		t.Fatal(err)
	}
	if n.router.wired(a) || strings.Contains(mounts(t), a.Path+" ") {
		t.Error("something of a is left")
	}
	links, err := n.router.handle.LinkList()
	if err != nil || len(links) != 2 { // lo and the link of b
		t.Errorf("links of the router: %v, %v", links, err)
	}
	files, err := filepath.Glob(filepath.Join(n.dir, "*", "*"))
	if err != nil || len(files) != 2 { // namespace and lease of b
		t.Errorf("files: %v, %v", files, err)
	}
	if err := n.Sweep(func(id string) bool { return id == b.ID }); err != nil || len(n.Leases()) != 1 {
		t.Errorf("a sweep that keeps b: %v, %v", n.Leases(), err)
	}
	if err := n.Sweep(func(string) bool { return false }); err != nil || len(n.Leases()) != 0 {
		t.Errorf("a sweep that keeps nothing: %v, %v", n.Leases(), err)
	}
}

// TestFailClosed makes a step of a lease fail, and looks for what is left.
func TestFailClosed(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	taken := newSlot(n.dir, "a", 0)
	bridge := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: taken.hostLink(), TxQLen: -1}, PeerName: "other"}
	if err := n.router.handle.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	if s, err := n.Lease(t.Context(), "a"); err == nil {
		t.Fatalf("leased %+v over a link that was there", s)
	}
	if len(n.Leases()) != 0 {
		t.Errorf("leases: %v", n.Leases())
	}
	if files, _ := filepath.Glob(filepath.Join(n.dir, "*", "*")); len(files) != 0 {
		t.Errorf("files: %v", files)
	}
	leased(t, n, "a")
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	leased(t, n, "warm")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				id := "id" + strconv.Itoa(i%4) // two for each id
				s, err := n.Lease(t.Context(), id)
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				if c, err := n.Dial(ctx, s, 1); err == nil {
					c.Close()
				}
				cancel()
				if err := n.Release(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := n.Leases(); len(got) != 1 {
		t.Errorf("leases: %v", got)
	}
	if files, _ := filepath.Glob(filepath.Join(n.dir, slotDir, "*")); len(files) != 1 {
		t.Errorf("namespaces: %v", files)
	}
}

// TestDescriptors runs alone, because it counts those of the whole process.
func TestDescriptors(t *testing.T) {
	n := fresh(t)
	s := leased(t, n, "a")
	port := serve(t, s)
	ask(t, n, s, port)
	admitted(t, n, Closed) // the connection that changes the filter stays
	before := fds(t)
	for range 50 {
		ask(t, n, s, port)
		leased(t, n, "b")
		if err := n.Release("b"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Dial(t.Context(), s, 1); err == nil {
			t.Fatal("connected to nobody")
		}
	}
	if after := fds(t); after > before {
		t.Errorf("%d open files before, %d after", before, after)
	}
	// No thread stays in the wrong place. Those that were thrown away may
	// still be on their way out.
	for deadline := time.Now().Add(2 * time.Second); ; runtime.Gosched() {
		lost := unreached(t)
		if len(lost) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("threads in another namespace: %v", lost)
		}
	}
}

// unreached returns the threads of this process that are not where it is.
func unreached(t *testing.T) (lost []string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if at, err := os.Readlink(task); err == nil && at != home {
			lost = append(lost, task)
		}
	}
	return lost
}

// TestOpenEgress has a machine and an internet of its own.
func TestOpenEgress(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	machine, internet := filepath.Join(dir, "machine"), filepath.Join(dir, "internet")
	world(t, machine, internet)
	before := state(t, machine)
	mirror(t, internet, "53") // the name server
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 9.9.9.2\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	n := open(t, filepath.Join(dir, "net"), Options{OpenEgress: true, machine: machine, resolvConf: conf})
	a, b := leased(t, n, "a"), leased(t, n, "b")
	serve(t, a)
	portB := serve(t, b)
	inside(t, a, func() error {
		if c, err := net.DialTimeout("tcp4", "8.8.8.8:80", silence); err == nil {
			c.Close()
			t.Error("the internet can be reached before anybody said so")
		}
		return nil
	})
	admitted(t, n, Direct)
	inside(t, a, func() error {
		c, err := net.DialTimeout("tcp4", "8.8.8.8:80", 10*time.Second)
		if err != nil {
			return fmt.Errorf("the internet: %w", err)
		}
		defer c.Close()
		seen, err := io.ReadAll(c)
		if err != nil || string(seen) != "9.9.9.1" {
			t.Errorf("the internet saw %q: %v", seen, err)
		}
		if err := asked("udp4", ProxyIP.String()+":53", true); err != nil {
			t.Errorf("a question where proxied sandboxes ask hears %v", err)
		}
		for name, to := range map[string]string{
			"another sandbox":                netip.AddrPortFrom(b.IP, portB).String(),
			"its gateway":                    a.Gateway.String() + ":80",
			"the uplink":                     uplinkOuterIP.String() + ":80",
			"the machine's public address":   "9.9.9.1:80",
			"the machine's private address":  "192.168.7.1:80",
			"a server in a private network":  "192.168.7.2:80",
			"a metadata service":             "169.254.169.254:80",
			"a server in the shared network": "100.64.0.1:80",
		} {
			if got, err := said(to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s says %q, %v", name, got, err)
			}
			if asked("udp4", to, false) == nil {
				t.Errorf("%s answers by UDP", name)
			}
		}
		return nil
	})
	n.Close()

	// The next start has egress closed: nothing of it stays.
	n = open(t, n.dir, Options{machine: machine})
	inside(t, a, func() error {
		if c, err := net.DialTimeout("tcp4", "8.8.8.8:80", silence); err == nil {
			c.Close()
			t.Error("the internet can still be reached")
		}
		// A lookup fails at once.
		for _, network := range slices.Repeat([]string{"udp4", "tcp4"}, 20) { // each time
			if err := asked(network, ProxyIP.String()+":53", true); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a question by %s: %v", network, err)
			}
		}
		return nil
	})
	if diff := cmp.Diff(before, state(t, machine)); diff != "" {
		t.Errorf("the machine changed: %s", diff)
	}
	n.Close()

	n = open(t, n.dir, Options{OpenEgress: true, machine: machine, resolvConf: conf})
	n.Close() // and again over what is there, as after a kill
	n = open(t, n.dir, Options{OpenEgress: true, machine: machine, resolvConf: conf})
	if err := n.Destroy(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, state(t, machine)); diff != "" {
		t.Errorf("the machine changed: %s", diff)
	}
}

// world makes a machine with a public and a private network, and in both of
// them somebody who answers with the address that he sees.
func world(t *testing.T, machine, internet string) {
	t.Helper()
	m, mh, err := newNetns(machine, append([]sysctl{{"ipv4/ip_forward", "0"}}, noIPv6...))
	if err != nil {
		t.Fatal(err)
	}
	i, ih, err := newNetns(internet, noIPv6)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mh.Close()
		ih.Close()
		if err := errors.Join(m.Close(), i.Close(), dropNetns(machine), dropNetns(internet)); err != nil {
			t.Error(err)
		}
	})
	up := func(h *netlink.Handle, link string, addrs ...string) {
		l, err := h.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range addrs {
			a, err := netlink.ParseAddr(s)
			if err := errors.Join(err, h.AddrAdd(l, a)); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := mh.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "wan", TxQLen: -1},
		PeerName:  "wan", PeerNamespace: netlink.NsFd(i.fd()),
	}); err != nil {
		t.Fatal(err)
	}
	up(mh, "wan", "9.9.9.1/24", "192.168.7.1/24")
	up(mh, "lo")
	up(ih, "wan", "9.9.9.2/24", "192.168.7.2/24")
	up(ih, "lo", "8.8.8.8/32", "169.254.169.254/32", "100.64.0.1/32")
	if err := mh.RouteAdd(&netlink.Route{Gw: net.IPv4(9, 9, 9, 2)}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after the listeners are closed
	for _, ns := range []netns{m, i} {
		var l net.Listener
		if err := ns.do(func() (err error) {
			l, err = net.Listen("tcp4", ":80")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				io.WriteString(c, host)
				c.Close()
			}
		})
		t.Cleanup(func() { l.Close() })
	}
}

// state is what an uplink changes in a machine.
func state(t *testing.T, machine string) (all []string) {
	t.Helper()
	ns, err := openNetns(machine)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			all = append(all, "link "+l.Attrs().Name)
		}
		routes, err2 := netlink.RouteList(nil, netlink.FAMILY_V4)
		for _, r := range routes {
			all = append(all, "route "+r.String())
		}
		conn, err3 := nftables.New()
		if err3 != nil {
			return err3
		}
		tables, err3 := conn.ListTables()
		for _, t := range tables {
			all = append(all, "table "+t.Name)
		}
		forward, err4 := os.ReadFile(forwardSysctl)
		all = append(all, "forward "+string(forward))
		return errors.Join(err, err2, err3, err4)
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestResolvers(t *testing.T) {
	t.Parallel()
	got, err := resolvers(strings.NewReader("# x\nnameserver 127.0.0.53\nnameserver 10.0.0.1\nnameserver\n# y\nnameserver ::1\nnameserver 9.9.9.9\noptions nameserver 8.8.8.8\nnameserver 1.1.1.1 # y\n"))
	want := []netip.Addr{netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("1.1.1.1")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("resolvers: %v, %v", got, err)
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	plan := netip.MustParsePrefix("10.88.0.0/14")
	for _, index := range []int{0, 1, 63, 64, slotsMax - 1} {
		s := newSlot("/x", "id", index)
		own := netip.PrefixFrom(s.IP, s.PrefixLen).Masked()
		if !plan.Contains(s.IP) || !plan.Contains(s.Gateway) || !own.Contains(s.Gateway) || own.Addr() == s.Gateway || len(s.hostLink()) >= unix.IFNAMSIZ {
			t.Errorf("slot %d: %+v", index, s)
		}
	}
	if last := newSlot("/x", "id", slotsMax-1).IP.String(); last != "10.91.255.254" {
		t.Errorf("the last address is %s", last)
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func fds(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func FuzzParseIndex(f *testing.F) {
	for _, s := range []string{"0", "65535", "65536", "-1", "+1", "01", "", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		i, err := parseIndex(s)
		if err == nil && (strconv.Itoa(i) != s || i < 0 || i >= slotsMax) {
			t.Errorf("%q is %d", s, i)
		}
	})
}

func FuzzResolvers(f *testing.F) {
	f.Add("nameserver 9.9.9.9\n")
	f.Fuzz(func(t *testing.T, s string) {
		all, _ := resolvers(strings.NewReader(s))
		for _, a := range all {
			if len(all) > resolversMax || a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || !a.Is4() {
				t.Errorf("%q leads to %v", s, all)
			}
		}
	})
}

func BenchmarkLease(b *testing.B) {
	n := fresh(b)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		leased(b, n, "id"+strconv.Itoa(i))
		took = append(took, time.Since(begin))
		b.StopTimer()
		if i >= 20 {
			n.Release("id" + strconv.Itoa(i-20))
		}
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

func BenchmarkDial(b *testing.B) {
	n := fresh(b)
	s := leased(b, n, "a")
	port := serve(b, s)
	for b.Loop() {
		c, err := n.Dial(b.Context(), s, port)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		c.Close()
		b.StartTimer()
	}
}
