package hostnet

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/dozehq/doze"
)

// TestTraffic: a sandbox that sends a mebibyte has sent it, and the one beside it has not.
func TestTraffic(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	n := fresh(t)
	a := leased(t, n, "a")
	leased(t, n, "b")
	dress(t, a)
	var l net.Listener
	inside(t, a, func() (err error) {
		l, err = net.Listen("tcp4", net.JoinHostPort(a.IP.String(), "0"))
		return err
	})
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, bytes.NewReader(make([]byte, size)))
			c.Close()
		}
	}()
	traffic := func(id string) doze.NetworkUsage {
		t.Helper()
		u, err := n.Traffic(id)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := traffic("a")
	c, err := n.Dial(t.Context(), a, l.Addr().(*net.TCPAddr).AddrPort().Port())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.Copy(io.Discard, c); err != nil || got != size {
		t.Fatal(got, err)
	}
	after := traffic("a")
	if sent := after.SentBytes - before.SentBytes; sent < size || sent > 2*size {
		t.Errorf("it sent %d bytes, and %d are counted", size, sent)
	}
	if received := after.ReceivedBytes - before.ReceivedBytes; received <= 0 || received > size/2 {
		t.Errorf("it got little more than acknowledgements, and %d bytes are counted", received)
	}
	if b := traffic("b"); b.SentBytes > size/2 {
		t.Errorf("the other one sent nothing, and %d bytes are counted", b.SentBytes)
	}
	if none := traffic("nobody"); none != (doze.NetworkUsage{}) {
		t.Errorf("nobody sent %+v", none)
	}
}
