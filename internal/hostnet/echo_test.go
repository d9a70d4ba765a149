package hostnet

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echoPacket is an echo request from one address to another.
func echoPacket(from, to string, data []byte, change ...func([]byte)) []byte {
	b := reply(netip.MustParseAddr(to), Echo{To: netip.MustParseAddr(from), ID: 7, Seq: 9, Data: data})
	b[20] = typeEcho
	for _, c := range change {
		c(b)
	}
	b[22], b[23] = 0, 0
	binary.BigEndian.PutUint16(b[22:], checksum(b[20:]))
	return b
}

func TestParseEcho(t *testing.T) {
	t.Parallel()
	packet := func(change ...func([]byte)) []byte {
		return echoPacket("10.88.0.2", "1.2.3.4", []byte("data"), change...)
	}
	from, echo, ok := parseEcho(packet())
	if !ok || from.String() != "10.88.0.2" || echo.To.String() != "1.2.3.4" || echo.ID != 7 || echo.Seq != 9 || string(echo.Data) != "data" {
		t.Errorf("from %v, %+v, %v", from, echo, ok)
	}
	if _, echo, ok := parseEcho(append(packet(), 0, 0)); !ok || string(echo.Data) != "data" {
		t.Errorf("with what a link adds: %+v, %v", echo, ok)
	}
	long := echoPacket("10.88.0.2", "1.2.3.4", make([]byte, EchoMost))
	if _, _, ok := parseEcho(long); !ok {
		t.Error("the longest is refused")
	}
	damaged := packet()
	damaged[len(damaged)-1]++
	for name, b := range map[string][]byte{
		"an answer":        packet(func(b []byte) { b[20] = typeEchoReply }),
		"another code":     packet(func(b []byte) { b[21] = 1 }),
		"another protocol": packet(func(b []byte) { b[9] = unix.IPPROTO_UDP }),
		"of version 6":     packet(func(b []byte) { b[0] = 0x65 }),
		"a short header":   packet(func(b []byte) { b[0] = 0x44 }),
		"a long header":    packet(func(b []byte) { b[0] = 0x4f }),
		"a first part":     packet(func(b []byte) { b[6] |= 0x20 }),
		"a later part":     packet(func(b []byte) { b[7] = 1 }),
		"a search":         packet(func(b []byte) { b[8] = 1 }),
		"cut off":          packet()[:27],
		"longer than told": long[:len(long)-1],
		"too long":         echoPacket("10.88.0.2", "1.2.3.4", make([]byte, EchoMost+1)),
		"a wrong sum":      damaged,
		"nothing":          nil,
	} {
		if _, echo, ok := parseEcho(b); ok {
			t.Errorf("%s: %+v", name, echo)
		}
	}
}

func FuzzParseEcho(f *testing.F) {
	f.Add(echoPacket("10.88.0.2", "1.2.3.4", []byte("data")))
	f.Fuzz(func(t *testing.T, packet []byte) {
		from, echo, ok := parseEcho(packet)
		if !ok {
			return
		}
		if !from.Is4() || !echo.To.Is4() || len(echo.Data) > EchoMost {
			t.Fatalf("%q is from %v, %+v", packet, from, echo)
		}
		if got := reply(from, echo); checksum(got[20:]) != 0 || !bytes.Equal(got[28:], echo.Data) {
			t.Errorf("the answer to %q is %q", packet, got)
		}
	})
}

// TestEchoes: a request of a sandbox is told once, with the address that it was sent to, and
// its answer arrives. A sandbox that is closed, or lies about its address, is not heard. Of
// a flood only a part is told.
func TestEchoes(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	dress(t, a)
	dress(t, b)
	echoes, err := n.Echoes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bindLog(n.router.ns, echoGroup, echoLength); err == nil {
		t.Error("somebody else hears of them, too")
	}
	var mu sync.Mutex
	told := map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		echoes.Run(ctx, func(e Echo) {
			mu.Lock()
			told[e.Slot.ID+" "+e.To.String()]++
			mu.Unlock()
			if err := echoes.Answer(e.Slot.IP, e); err != nil {
				t.Error(err)
			}
		})
	})
	defer func() { cancel(); running.Wait(); _ = echoes.Close() }()
	count := func(what string) int {
		mu.Lock()
		defer mu.Unlock()
		return told[what]
	}

	// exchange sends a request, and returns the address that an answer comes from.
	exchange := func(to string, wait time.Duration) (from string) {
		c, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
		if err != nil {
			t.Error(err)
			return ""
		}
		defer func() { _ = c.Close() }()
		if _, err := c.WriteTo(echoPacket("0.0.0.0", to, []byte("question"))[20:], &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			t.Error(err)
			return ""
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		for {
			buffer := make([]byte, 200)
			n, peer, err := c.ReadFrom(buffer)
			if err != nil {
				return ""
			}
			if b := buffer[:n]; n > echoHeader && b[0] == typeEchoReply && string(b[echoHeader:]) == "question" {
				return peer.String()
			}
		}
	}
	inside(t, a, func() error {
		if got := exchange("8.8.8.8", time.Second); got != "" {
			t.Errorf("one that is closed hears from %s", got)
		}
		return nil
	})
	admitted(t, n, Proxied)
	inside(t, a, func() error {
		for _, to := range []string{"8.8.8.8", "198.18.0.7", "169.254.169.254"} {
			if got := exchange(to, patience); got != to {
				t.Errorf("to %s: the answer is from %q", to, got)
			}
			if got := count("a " + to); got != 1 {
				t.Errorf("the request to %s is told %d times", to, got)
			}
		}
		raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(raw) }()
		lie := echoPacket(b.IP.String(), "9.9.9.9", nil)
		if err := unix.Sendto(raw, lie, 0, &unix.SockaddrInet4{Addr: [4]byte{9, 9, 9, 9}}); err != nil {
			return err
		}
		const flood = 1000
		return sendThis("ip4:icmp", "8.8.4.4", flood, echo)
	})
	for deadline := time.Now().Add(patience); count("a 8.8.4.4") == 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	if got := count("a 8.8.4.4"); got == 0 || got > 500 {
		t.Errorf("of a flood of 1000 %d are told", got)
	}
	if count("a 9.9.9.9")+count("b 9.9.9.9") != 0 {
		t.Error("a request from the address of another sandbox is told")
	}
}
