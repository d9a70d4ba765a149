package serve

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// end is a connection between two addresses.
type end struct {
	net.Conn

	from, to string
}

func (e end) RemoteAddr() net.Addr { return addressOf(e.from) }
func (e end) LocalAddr() net.Addr  { return addressOf(e.to) }

func addressOf(s string) net.Addr {
	if s == "" {
		return &net.UnixAddr{Name: "socket"}
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(s), 8080))
}

func TestInside(t *testing.T) {
	t.Parallel()
	own := func() ([]net.Addr, error) {
		return []net.Addr{
			&net.IPNet{IP: net.ParseIP("127.0.0.1"), Mask: net.CIDRMask(8, 32)},
			&net.IPNet{IP: net.ParseIP("10.90.0.2"), Mask: net.CIDRMask(30, 32)},
			&net.IPNet{IP: net.ParseIP("fe80::2"), Mask: net.CIDRMask(64, 128)},
		}, nil
	}
	unknown := func() ([]net.Addr, error) { return nil, errors.New("no answer") }
	for name, c := range map[string]struct {
		from, to string
		local    func() ([]net.Addr, error)
		inside   bool
	}{
		"the host":                         {"10.90.0.1", "10.90.0.2", own, false},
		"the host, as IPv6 writes it":      {"::ffff:10.90.0.1", "::ffff:10.90.0.2", own, false},
		"loopback":                         {"127.0.0.1", "127.0.0.1", own, true},
		"another loopback":                 {"127.8.9.1", "127.0.0.1", own, true},
		"loopback of IPv6":                 {"::1", "::1", own, true},
		"the own address":                  {"10.90.0.2", "10.90.0.2", own, true},
		"the own address, as IPv6":         {"::ffff:10.90.0.2", "::ffff:10.90.0.2", own, true},
		"the own address to loopback":      {"10.90.0.2", "127.0.0.1", own, true},
		"loopback to the own address":      {"127.0.0.1", "10.90.0.2", own, true},
		"another own address":              {"fe80::2%eth0", "fe80::9%eth0", own, true},
		"a stranger to loopback":           {"192.0.2.7", "127.0.0.1", own, true},
		"no address":                       {"", "10.90.0.2", own, true},
		"the host, and nobody knows it is": {"10.90.0.1", "10.90.0.2", unknown, true},
	} {
		if got := (outside{local: c.local}).inside(end{from: c.from, to: c.to}); got != c.inside {
			t.Errorf("%s: inside is %t", name, got)
		}
	}
}

// TestOutside: a process beside the listener gets no byte, and the listener goes on.
func TestOutside(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		c, err := Outside(ln).Accept()
		if err == nil {
			_ = c.Close()
		}
		ended <- err
	}()
	for range 3 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("it was answered %d bytes, %v", n, err)
		}
		_ = c.Close()
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("somebody was let in, or it is %v", err)
	}
}
