package egress

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/dozehq/doze"
)

// pings has the requests of a test, and collects the answers.
type pings struct {
	requests chan Echo
	answers  chan Echo
}

func newPings() pings { return pings{make(chan Echo), make(chan Echo, 100)} }

func (p pings) Run(ctx context.Context, asked func(Echo)) {
	for {
		select {
		case q := <-p.requests:
			asked(q)
		case <-ctx.Done():
			return
		}
	}
}

func (p pings) Answer(q Echo) error { p.answers <- q; return nil }

func (pings) Close() error { return nil }

// TestEcho: what a policy allows is asked for real, and answered under the numbers and from
// the address that the sandbox knows.
func TestEcho(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a socket of ICMP needs root")
	}
	for name, tt := range map[string]struct {
		network *doze.Network
		to      string // a name, or an address
		want    bool
	}{
		"an address":                    {nil, "127.0.0.1", true},
		"a name":                        {nil, "a.test", true},
		"a private address":             {nil, "127.0.0.2", false},
		"a name of a private address":   {nil, "private.test", false},
		"a name in the list":            {&doze.Network{AllowedDomains: []string{"a.test"}}, "a.test", true},
		"a name that is not":            {&doze.Network{AllowedDomains: []string{"a.test"}}, "b.test", false},
		"a name that is for a port":     {&doze.Network{AllowedDomains: []string{"a.test:443"}}, "a.test", false},
		"an address, and there is one":  {&doze.Network{AllowedDomains: []string{"a.test"}}, "127.0.0.1", false},
		"a forbidden name":              {&doze.Network{ForbiddenDomains: []string{"a.test"}}, "a.test", false},
		"an address that stands for no": {nil, "198.18.77.77", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPings()
			conn, err := icmp.ListenPacket("ip4:icmp", "127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			e, _ := serveWith(t, tt.network, func(o *Options) { o.Echoes, o.ICMP = p, conn })
			q := Echo{Sandbox: home, ID: 7, Seq: 9, Data: []byte("data")}
			if a, err := netip.ParseAddr(tt.to); err == nil {
				q.To = a
			} else {
				q.To = e.guests[home].address(tt.to)
			}
			p.requests <- q
			wait := 300 * time.Millisecond
			if tt.want {
				wait = busy
			}
			select {
			case got := <-p.answers:
				if !tt.want || got.Sandbox != home || got.To != q.To || got.ID != q.ID || got.Seq != q.Seq || string(got.Data) != "data" {
					t.Errorf("%+v is answered with %+v", q, got)
				}
			case <-time.After(wait):
				if tt.want {
					t.Error("there is no answer")
				}
			}
		})
	}
}

// TestEchoOfTwoVersions: a refusal counts, whatever other addresses the name has.
func TestEchoOfTwoVersions(t *testing.T) {
	t.Parallel()
	e, _ := serveWith(t, nil, func(*Options) {})
	g := e.guestAt(home)
	g.remember("mixed.test", []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("2600:5::4")}, time.Now())
	err := e.ask(t.Context(), g, Destination{Name: "mixed.test"}, Echo{Sandbox: home})
	if v := (Verdict{Allow: true}).after(err); v.Allow || v.Rule != rulePrivate {
		t.Errorf("%v is the verdict %+v", err, v)
	}
}

// TestEchoBounds: one sandbox cannot have all numbers. A question without an answer is
// forgotten.
func TestEchoBounds(t *testing.T) {
	t.Parallel()
	q, now := newQuestions(), time.Now()
	one, other := &guest{}, &guest{}
	for i := range echoesOfOne {
		if _, ok := q.add(&question{guest: one, to: home}, now); !ok {
			t.Fatalf("number %d is refused", i)
		}
	}
	if _, ok := q.add(&question{guest: one, to: home}, now); ok {
		t.Error("there is no bound for one sandbox")
	}
	number, ok := q.add(&question{guest: other, to: home}, now)
	if !ok {
		t.Fatal("another sandbox is refused")
	}
	if q.take(number, netip.MustParseAddr("9.9.9.9"), now) != nil {
		t.Error("somebody answers who was not asked")
	}
	if got := q.take(number, home, now); got == nil || got.guest != other {
		t.Errorf("the answer is for %+v", got)
	}
	if q.take(number, home, now) != nil {
		t.Error("it is answered twice")
	}
	later := now.Add(echoTime + time.Second)
	if number, ok = q.add(&question{guest: one, to: home}, later); !ok || len(q.asked) != 1 || q.of[one] != 1 {
		t.Errorf("after a while %d are left, %d of the first", len(q.asked), q.of[one])
	}
	q.drop(number)
	if len(q.asked)+len(q.of) != 0 {
		t.Errorf("%d are left", len(q.asked))
	}
}

// TestAnswered: messages that answer nothing are nobody's.
func TestAnswered(t *testing.T) {
	t.Parallel()
	p := newPings()
	e := New(Options{Echoes: p})
	g := &guest{traffic: new(Traffic)}
	e.guests[home] = g
	peer := &net.IPAddr{IP: home.AsSlice()}
	message := func(kind icmp.Type, id, seq int, data string) []byte {
		b, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: seq, Data: []byte(data)}}).Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	number, _ := e.echoes.add(&question{Echo: Echo{Sandbox: home, Data: []byte("data")}, guest: g, to: home}, time.Now())
	id, seq := int(e.echoes.id), int(number)
	for name, b := range map[string][]byte{
		"a request":       message(ipv4.ICMPTypeEcho, id, seq, "data"),
		"another id":      message(ipv4.ICMPTypeEchoReply, id^1, seq, "data"),
		"another number":  message(ipv4.ICMPTypeEchoReply, id, seq^1, "data"),
		"half a message":  message(ipv4.ICMPTypeEchoReply, id, seq, "data")[:5],
		"nothing":         nil,
		"another length":  message(ipv4.ICMPTypeEchoReply, id, seq, "more than that"),
		"after it, again": message(ipv4.ICMPTypeEchoReply, id, seq^2, "data"),
	} {
		if err := e.answered(b, peer, time.Now()); err != nil || len(p.answers) != 0 {
			t.Errorf("%s: %v, %d answers", name, err, len(p.answers))
		}
	}
	number, _ = e.echoes.add(&question{Echo: Echo{Sandbox: home, Data: []byte("data")}, guest: &guest{}, to: home}, time.Now())
	if err := e.answered(message(ipv4.ICMPTypeEchoReply, id, int(number), "data"), peer, time.Now()); err != nil || len(p.answers) != 0 {
		t.Error("the sandbox that has the address now gets the answer of the one before")
	}
}

func FuzzAnswered(f *testing.F) {
	b, err := (&icmp.Message{Type: ipv4.ICMPTypeEchoReply, Body: &icmp.Echo{ID: 1, Data: []byte("data")}}).Marshal(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPings()
		e := New(Options{Echoes: p})
		e.echoes.id = 1
		g := &guest{traffic: new(Traffic)}
		e.guests[home] = g
		e.echoes.add(&question{Echo: Echo{Sandbox: home, Data: []byte("data")}, guest: g, to: home}, time.Now())
		if err := e.answered(b, &net.IPAddr{IP: home.AsSlice()}, time.Now()); err != nil {
			t.Error(err)
		}
	})
}
