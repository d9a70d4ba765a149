package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// TestSubnet: who is in one reaches the others in it, and nobody else, whatever
// its way out is.
func TestSubnet(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	slots, ports := map[string]Slot{}, map[string]uint16{}
	for _, id := range []string{"a", "b", "c", "d"} {
		slots[id] = leased(t, n, id)
		ports[id] = serve(t, slots[id])
	}
	inside(t, slots["b"], func() error {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(slots["b"].IP, doze.AgentPort).String())
		t.Cleanup(func() { l.Close() })
		return err
	})
	reaches := func(from, to string, port uint16, patience time.Duration) (yes bool) {
		t.Helper()
		inside(t, slots[from], func() error {
			c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(slots[to].IP, port).String(), patience)
			if yes = err == nil; yes {
				c.Close()
			}
			return nil
		})
		return yes
	}
	check := func(step string, together ...string) {
		t.Helper()
		want := map[string]bool{}
		for _, pair := range together {
			want[pair], want[pair[1:]+pair[:1]] = true, true
		}
		for from := range slots {
			for to := range slots {
				patience := silence
				if want[from+to] {
					patience = 10 * time.Second
				}
				if from != to && reaches(from, to, ports[to], patience) != want[from+to] {
					t.Errorf("%s: %s reaches %s: %v", step, from, to, !want[from+to])
				}
			}
		}
	}
	join := func(id, subnet string) {
		t.Helper()
		if err := n.Join(id, subnet); err != nil {
			t.Fatal(err)
		}
	}
	check("in none")
	join("a", "one")
	join("b", "one")
	join("c", "two")
	check("two of one", "ab")
	admitted(t, n, Proxied)
	check("proxied", "ab")
	admitted(t, n, Direct)
	check("direct", "ab")
	if reaches("a", "b", doze.AgentPort, 10*time.Second) {
		t.Error("the agent of a neighbour is reached")
	}
	join("b", "two")
	check("in another one", "bc")
	if err := n.Release("b"); err != nil {
		t.Fatal(err)
	}
	delete(slots, "b")
	join("c", "")
	check("in none again")
	if len(n.subnets) != 1 {
		t.Errorf("there are %d subnets", len(n.subnets))
	}
}

// TestSubnetLeft: connections to who is in another subnet now end, however little
// they have to say.
func TestSubnetLeft(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	slots := map[string]Slot{}
	for _, id := range []string{"a", "b", "c"} {
		slots[id] = leased(t, n, id)
		dress(t, slots[id])
		if err := errors.Join(n.Admit(id, Proxied), n.Join(id, "x")); err != nil {
			t.Fatal(err)
		}
	}
	var l net.Listener
	inside(t, slots["b"], func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(slots["b"].IP, 0).String())
		return err
	})
	defer l.Close()
	ends := map[string][2]net.Conn{}
	for _, id := range []string{"a", "c"} {
		var c net.Conn
		inside(t, slots[id], func() (err error) {
			c, err = net.DialTimeout("tcp4", l.Addr().String(), patience)
			return err
		})
		defer c.Close()
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ends[id] = [2]net.Conn{c, s}
	}
	if err := n.Join("a", "y"); err != nil {
		t.Fatal(err)
	}
	for i, c := range ends["a"] {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("end %d of what may not be any more: %v", i, err)
		}
	}
	for i, c := range ends["c"] {
		other := ends["c"][1-i]
		other.Write([]byte("x"))
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Errorf("end %d of what stays: %v", i, err)
		}
	}
}
