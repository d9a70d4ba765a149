package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/dozehq/doze/internal/outproxy"
)

// Ping of a sandbox goes no further than to us. What its policy allows, we ask ourselves,
// under a number of our own. The sandbox gets the answer from the address that it asked.

const (
	// echoTime is how long an answer is waited for.
	echoTime = 10 * time.Second
	// echoesMost is how many requests of all sandboxes may be under way, and echoesOfOne how
	// many of one.
	echoesMost, echoesOfOne = 8192, 256
	// echoRoom is the largest answer that is read, in bytes.
	echoRoom = 1 << 16
)

// An Echo is an echo request of ICMP, or the answer to one.
type Echo struct {
	Sandbox netip.Addr
	To      netip.Addr // whom the sandbox asked; it may stand for a name
	ID, Seq uint16
	Data    []byte
}

// Echoes are the echo requests of sandboxes.
type Echoes interface {
	// Run tells of each until ctx ends. Asked does not wait.
	Run(ctx context.Context, asked func(Echo))
	// Answer gives a sandbox the answer to a request.
	Answer(Echo) error
	Close() error
}

// question is an echo request that waits for its answer.
type question struct {
	Echo

	guest *guest
	to    netip.Addr // who was asked
	until time.Time
}

// questions are the echo requests that we sent.
type questions struct {
	id uint16 // of all of them

	mu    sync.Mutex
	next  uint16               // guarded by mu
	asked map[uint16]*question // guarded by mu; by their number
	of    map[*guest]int       // guarded by mu; how many a sandbox has of them
}

func newQuestions() *questions {
	return &questions{id: uint16(rand.Uint32()), asked: map[uint16]*question{}, of: map[*guest]int{}} //nolint:gosec // G404, G115: nothing secret
}

// add takes a question in, and returns its number. It reports false if there are too many.
func (q *questions) add(one *question, now time.Time) (number uint16, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.asked) >= echoesMost || q.of[one.guest] >= echoesOfOne {
		q.sweep(now)
	}
	if len(q.asked) >= echoesMost || q.of[one.guest] >= echoesOfOne {
		return 0, false
	}
	for q.asked[q.next] != nil {
		q.next++
	}
	number = q.next
	q.next++
	one.until = now.Add(echoTime)
	q.asked[number] = one
	q.of[one.guest]++
	return number, true
}

// sweep forgets those that got no answer in time. Preconditions: mu is held.
func (q *questions) sweep(now time.Time) {
	for number, one := range q.asked {
		if now.After(one.until) {
			q.forget(number)
		}
	}
}

// forget ends a question. Preconditions: mu is held.
func (q *questions) forget(number uint16) {
	one := q.asked[number]
	delete(q.asked, number)
	if q.of[one.guest]--; q.of[one.guest] == 0 {
		delete(q.of, one.guest)
	}
}

// drop ends a question that was not sent.
func (q *questions) drop(number uint16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asked[number] != nil {
		q.forget(number)
	}
}

// take returns the question that somebody answers, or nil. It is over then.
func (q *questions) take(number uint16, from netip.Addr, now time.Time) *question {
	q.mu.Lock()
	defer q.mu.Unlock()
	one := q.asked[number]
	if one == nil || one.to != from || now.After(one.until) {
		return nil
	}
	q.forget(number)
	return one
}

// serveEcho sends an echo request of a sandbox on, if its policy allows the destination at
// every port. It does not wait.
func (e *Egress) serveEcho(ctx context.Context, q Echo) {
	g := e.guestAt(q.Sandbox)
	if g == nil {
		return
	}
	to := e.meant(g, netip.AddrPortFrom(q.To, 0))
	if to.Name == "" && !to.IP.IsValid() {
		return
	}
	v := g.verdict(to)
	if !v.Allow {
		e.decidedBy("icmp", g, to, v)
		return
	}
	if !g.lookups.enter() {
		return
	}
	e.streams.Go(func() {
		defer g.lookups.leave()
		e.decidedBy("icmp", g, to, v.after(e.ask(ctx, g, to, q)))
	})
}

// errProxiedPing is why a request is not sent.
var errProxiedPing = &outproxy.Error{Why: "ping does not pass the HTTP proxy of this platform: use TCP", Err: errors.New("an echo request for a proxy")}

// ask sends an echo request to the first address of a destination that a sandbox may reach.
func (e *Egress) ask(ctx context.Context, g *guest, to Destination, q Echo) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	at, err := e.find(ctx, g, to)
	if err != nil {
		return err
	}
	if at.named {
		return errProxiedPing
	}
	for _, a := range at.addresses {
		if a = a.Unmap(); !a.Is4() {
			continue // a sandbox asks by version 4 alone
		}
		if e.Through.Carries(to.Name, a, 0) {
			return errProxiedPing
		}
		var source netip.Addr
		switch source, err = e.source(g, to, a); {
		case err != nil:
		case source.IsValid() && !source.Is4():
			err = broken(ruleNoSource)
		default:
			return e.send(&question{Echo: q, guest: g, to: a}, source)
		}
	}
	return err
}

// send sends a request from a source, which may be invalid.
func (e *Egress) send(q *question, source netip.Addr) error {
	number, ok := e.echoes.add(q, time.Now())
	if !ok {
		return crowded("it waits for too many answers of ping")
	}
	message := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(e.echoes.id), Seq: int(number), Data: q.Data}}
	b, err := message.Marshal(nil)
	if err == nil {
		var from *ipv4.ControlMessage
		if source.IsValid() {
			from = &ipv4.ControlMessage{Src: source.AsSlice()}
		}
		_, err = e.ICMP.IPv4PacketConn().WriteTo(b, from, &net.IPAddr{IP: q.to.AsSlice()})
	}
	if err != nil {
		e.echoes.drop(number)
		return fmt.Errorf("ask %v: %w", q.to, err)
	}
	q.guest.traffic.Sent.Add(uint64(len(q.Data)))
	return nil
}

// answers gives sandboxes the answers to their requests until ICMP is closed.
func (e *Egress) answers(ctx context.Context) {
	b := make([]byte, echoRoom)
	for ctx.Err() == nil {
		n, peer, err := e.ICMP.ReadFrom(b)
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("an answer to a sandbox's ping is not read", "err", err)
				select {
				case <-ctx.Done():
				case <-time.After(acceptPause):
				}
			}
			continue
		}
		if err := e.answered(b[:n], peer, time.Now()); err != nil {
			slog.Warn("an answer to a sandbox's ping is lost", "err", err)
		}
	}
}

// answered passes a message on that answers a request of a sandbox which is still there. All
// others are somebody else's.
func (e *Egress) answered(b []byte, peer net.Addr, now time.Time) error {
	at, ok := peer.(*net.IPAddr)
	if !ok {
		return nil
	}
	from, _ := netip.AddrFromSlice(at.IP)
	message, err := icmp.ParseMessage(ipv4.ICMPTypeEchoReply.Protocol(), b)
	if err != nil || message.Type != ipv4.ICMPTypeEchoReply {
		return nil //nolint:nilerr // anybody may send anything
	}
	echo, ok := message.Body.(*icmp.Echo)
	if !ok || echo.ID != int(e.echoes.id) {
		return nil
	}
	q := e.echoes.take(uint16(echo.Seq), from.Unmap(), now) //nolint:gosec // G115: it has 16 bits
	if q == nil || len(echo.Data) != len(q.Data) {
		return nil
	}
	if e.guestAt(q.Sandbox) != q.guest {
		return nil
	}
	q.guest.traffic.Received.Add(uint64(len(echo.Data)))
	answer := q.Echo
	answer.Data = echo.Data
	return e.Echoes.Answer(answer)
}
