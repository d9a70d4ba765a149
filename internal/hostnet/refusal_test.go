package hostnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// watched collects what is refused until the test ends.
type watched struct {
	mu  sync.Mutex
	all map[string]int // guarded by mu; by who, protocol and destination

	omitted map[string]uint64 // guarded by mu; by who

	end func() // waits
}

func watch(t *testing.T, n *Net) *watched {
	t.Helper()
	w, err := n.Watch()
	if err != nil {
		t.Fatal(err)
	}
	found := &watched{all: map[string]int{}, omitted: map[string]uint64{}}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		w.Run(ctx, func(n Note) {
			found.mu.Lock()
			defer found.mu.Unlock()
			what := n.Slot.ID + " " + n.Protocol + " " + n.To.String()
			if n.Passed {
				what += " passed"
			}
			found.all[what]++
			found.omitted[n.Slot.ID] += n.Omitted
		})
	})
	found.end = func() { cancel(); wg.Wait() }
	t.Cleanup(found.end)
	return found
}

func (w *watched) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[what]
}

// await waits until something was told.
func (w *watched) await(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); w.count(what) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s was not told", what)
		}
	}
}

// Messages of ICMP that send sends, to any protocol.
var (
	timestamp = []byte{13, 0, 0xf2, 0xfe, 0, 0, 0, 1}
	echo      = []byte{8, 0, 0xf7, 0xfe, 0, 0, 0, 1}
)

// send sends packets to somebody, from wherever it is called. They are no echo requests.
func send(network, to string, packets int) error {
	return sendThis(network, to, packets, timestamp)
}

// sendThis is send with a message.
func sendThis(network, to string, packets int, message []byte) error {
	c, err := net.Dial(network, to)
	if err != nil {
		return err
	}
	defer c.Close()
	for range packets {
		if _, err := c.Write(message); err != nil {
			return err
		}
	}
	return nil
}

func counted(t *testing.T, n *Net) Counts {
	t.Helper()
	c, err := n.Counts()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestOmittedOfNobody: what was not told of a link is forgotten with its lease.
func TestOmittedOfNobody(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a := leased(t, n, "a")
	dress(t, a)
	inside(t, a, func() error { return send("udp4", "8.8.8.8:9", 5*noteBurst) })
	has := func() bool {
		all, err := n.omitted()
		if err != nil {
			t.Fatal(err)
		}
		return all[a.hostLink()] > 0
	}
	for deadline := time.Now().Add(patience); !has(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("everything is told")
		}
	}
	if err := n.Release("a"); err != nil {
		t.Fatal(err)
	}
	if has() {
		t.Error("who gets the link next has it")
	}
	leased(t, n, "b")
	if err := n.Release("b"); err != nil { // of whom all was told
		t.Error(err)
	}
}

// TestCounts: what cannot be read costs nothing else.
func TestCounts(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	n.uplink = "nothing" // that has no table
	if c, err := n.Counts(); err == nil || c.Refused != nil || len(c.Passed) != len(Protocols) {
		t.Errorf("without the filter of the machine: %v, %v", c, err)
	}
	n.uplink = ""
	if c := counted(t, n); len(c.Refused) != len(Protocols) {
		t.Errorf("%v", c)
	}
}

// TestRefused counts and tells what the filter refuses, by the link that it came
// from, and nothing that it lets through. Who sends much hides nobody else.
func TestRefused(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	dress(t, a)
	dress(t, b)
	greeter(t, n, RedirectPort, "proxied")
	admitted(t, n, Proxied)
	told := watch(t, n)

	inside(t, a, func() error {
		if got, err := said("8.8.8.8:80"); got != "proxied 8.8.8.8:80" {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := said("169.254.169.254:80"); err == nil {
			t.Errorf("the metadata say %q", got)
		}
		if err := send("udp4", "8.8.8.8:443", 1); err != nil {
			return err
		}
		return send("ip4:icmp", "8.8.8.8", 1)
	})
	inside(t, b, func() error { return send("ip4:47", "9.9.9.9", 1) }) // nobody admitted it
	for _, want := range []string{"a tcp 169.254.169.254:80", "a udp 8.8.8.8:443", "a icmp 8.8.8.8:0", "b other 9.9.9.9:0"} {
		told.await(t, want)
	}
	// Each packet is counted before it is told.
	counts := counted(t, n).Refused
	counts["tcp"] = min(counts["tcp"], 1) // who hears nothing for a second tries again
	if diff := cmp.Diff(map[string]uint64{"tcp": 1, "udp": 1, "icmp": 1, "other": 1}, counts); diff != "" {
		t.Error(diff)
	}
	if got := told.count("a tcp 8.8.8.8:80"); got != 0 {
		t.Error("what passes is told")
	}

	const flood = 5000
	inside(t, a, func() error { return send("udp4", "8.8.8.8:9", flood) })
	inside(t, b, func() error { return send("udp4", "8.8.8.8:10", 1) })
	told.await(t, "b udp 8.8.8.8:10")
	// The kernel may take them one after the other for a while.
	for deadline := time.Now().Add(patience); counted(t, n).Refused["udp"] < 1+flood+1 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if counts := counted(t, n).Refused; counts["udp"] != 1+flood+1 {
		t.Errorf("after a flood: %v", counts)
	}
	got := told.count("a udp 8.8.8.8:9")
	if got == 0 || got > flood/2 {
		t.Errorf("of %d packets %d are told", flood, got)
	}
	// What is not told is said with the next one that is: all are accounted for.
	var sent uint64 = flood
	deadline := time.Now().Add(30 * time.Second)
	for ; told.count("a udp 8.8.8.8:11") == 0 && time.Now().Before(deadline); sent++ {
		inside(t, a, func() error { return send("udp4", "8.8.8.8:11", 1) })
		time.Sleep(3 * time.Second / noteRate)
	}
	for told.ofFlood() != sent && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if got := told.ofFlood(); got != sent {
		t.Errorf("of %d packets %d are accounted for", sent, got)
	}
}

// ofFlood is how many packets of the flood of TestRefused there were, by what was told.
func (w *watched) ofFlood() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.omitted["a"] + w.omitted["b"] + uint64(w.all["a udp 8.8.8.8:9"]+w.all["a udp 8.8.8.8:11"])
}

// TestWatchIsHandedOver: who comes while the one before is still about to go waits
// for it.
func TestWatchIsHandedOver(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	first, err := n.Watch()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bindLog(n.router.ns, noteGroup, noteLength); !errors.Is(err, unix.EPERM) {
		t.Errorf("beside the first: %v", err)
	}
	closed := make(chan error, 1)
	time.AfterFunc(5*handoverPause, func() { closed <- first.Close() })
	second, err := n.Watch()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-closed, second.Close()); err != nil {
		t.Error(err)
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	packet := func(protocol byte, change ...func([]byte)) []byte {
		b := make([]byte, 28)
		b[0], b[9] = 0x45, protocol
		copy(b[destinationOffset:], []byte{1, 2, 3, 4})
		b[22], b[23] = 0x01, 0xbb
		for _, c := range change {
			c(b)
		}
		return b
	}
	to := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("1.2.3.4"), port)
	}
	for name, tt := range map[string]struct {
		packet   []byte
		protocol string
		to       netip.AddrPort
	}{
		"TCP":           {packet(unix.IPPROTO_TCP), "tcp", to(443)},
		"UDP":           {packet(unix.IPPROTO_UDP), "udp", to(443)},
		"ICMP":          {packet(unix.IPPROTO_ICMP), "icmp", to(0)},
		"something":     {packet(132), "other", to(0)},
		"options":       {append(packet(unix.IPPROTO_UDP, func(b []byte) { b[0] = 0x46 })[:26], 0, 53), "udp", to(53)},
		"a later part":  {packet(unix.IPPROTO_UDP, func(b []byte) { b[7] = 1 }), "udp", to(0)},
		"no ports":      {packet(unix.IPPROTO_TCP)[:22], "tcp", to(0)},
		"a bad length":  {packet(unix.IPPROTO_TCP, func(b []byte) { b[0] = 0x40 }), "tcp", to(0)},
		"another kind":  {packet(unix.IPPROTO_TCP, func(b []byte) { b[0] = 0x65 }), "", netip.AddrPort{}},
		"half a header": {packet(unix.IPPROTO_TCP)[:19], "", netip.AddrPort{}},
		"nothing":       {nil, "", netip.AddrPort{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			protocol, got, ok := destination(tt.packet)
			if protocol != tt.protocol || got != tt.to || ok != (tt.protocol != "") {
				t.Errorf("%q to %v, %v", protocol, got, ok)
			}
		})
	}
}

// TestBegins: a packet in the midst of a connection is no attempt to make one.
func TestBegins(t *testing.T) {
	t.Parallel()
	packet := func(protocol, flags byte, options int) []byte {
		p := make([]byte, 20+options+14)
		p[0], p[9], p[20+options+13] = 4<<4|byte(5+options/4), protocol, flags
		return p
	}
	const syn, ack, fin, rst = 0x02, 0x10, 0x01, 0x04
	for name, tt := range map[string]struct {
		packet []byte
		want   bool
	}{
		"a connection":         {packet(unix.IPPROTO_TCP, syn, 0), true},
		"with options":         {packet(unix.IPPROTO_TCP, syn, 40), true},
		"an answer":            {packet(unix.IPPROTO_TCP, syn|ack, 0), false},
		"a probe":              {packet(unix.IPPROTO_TCP, ack, 0), false},
		"a probe with options": {packet(unix.IPPROTO_TCP, ack, 40), false},
		"an end":               {packet(unix.IPPROTO_TCP, fin|ack, 0), false},
		"a reset":              {packet(unix.IPPROTO_TCP, rst, 0), false},
		"a datagram":           {packet(unix.IPPROTO_UDP, ack, 0), true},
		"a part of TCP":        {packet(unix.IPPROTO_TCP, ack, 0)[:24], true},
		"nothing":              {nil, true},
	} {
		if got := begins(tt.packet); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzDestination(f *testing.F) {
	f.Add([]byte("\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x58\x00\x02\x08\x08\x08\x08\x00\x35\x01\xbb"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		begins(packet)
		protocol, to, ok := destination(packet)
		if ok != to.Addr().Is4() || ok != (protocol != "") {
			t.Errorf("%q is %q to %v, %v", packet, protocol, to, ok)
		}
	})
}
