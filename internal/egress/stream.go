package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

const (
	// peekTime is how long a client may take to say whom it wants to talk to, in
	// a sandbox that has a small part of a processor.
	peekTime = 30 * time.Second
	// lateTime replaces it where the address stands for no known name and the port is
	// none of the web. Most clients of such ports say nothing first, and are refused.
	lateTime = 3 * time.Second
	// headMax bounds what it says until then: a ClientHello, or the header of a
	// request.
	headMax = 64 << 10
)

// patience keeps the connection of a sandbox that sleeps in memory, where nothing
// answers. If the sandbox never answers again, the connection ends after half an hour.
var patience = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Minute, Interval: 3 * time.Minute, Count: 5}

// A stream is a connection of a sandbox that is passed on as it is.
type stream struct {
	e    *Egress
	g    *guest
	c    *net.TCPConn
	head []byte // what was read of it
	// to is the destination as known before the client sends a byte. It has the name
	// that the address stands for, or that the client asked the proxy for. Else it has
	// an address, or only a port if the address stands for an unknown name.
	to Destination
	at *found // where a proxy was asked for it, and only once
}

// serveRedirected serves a connection that was meant for somebody else.
func (e *Egress) serveRedirected(ctx context.Context, g *guest, c *net.TCPConn) {
	s := &stream{e: e, g: g, c: c}
	meant, err := originalDestination(c)
	if err != nil {
		slog.Warn("a connection of a sandbox was meant for nobody", "sandbox", g.UID, "err", err)
		s.refuse(Verdict{Rule: ruleProtocol})
		return
	}
	s.to = e.meant(g, meant)
	s.serve(ctx)
}

// meant is the destination that an address is for a sandbox. It has neither a name nor an
// address if it stands for an unknown name.
func (e *Egress) meant(g *guest, to netip.AddrPort) Destination {
	if e.Pool.Contains(to.Addr()) {
		return Destination{Name: g.meaning(to.Addr()), Port: to.Port()}
	}
	return Destination{IP: to.Addr(), Port: to.Port()}
}

// originalDestination is where a connection was going before the filter led it
// to us.
func originalDestination(c *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	var option error
	err = raw.Control(func(fd uintptr) {
		// A sockaddr_in has the size of this, which Go has a call for.
		var m *unix.IPv6Mreq
		if m, option = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST); option == nil {
			b := m.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return to, errors.Join(err, option)
}

// serve finds out where the stream goes and carries it. Requests of plain HTTP
// are served one by one: each of them can go elsewhere.
func (s *stream) serve(ctx context.Context) {
	if !s.mustLook() {
		if s.request() {
			s.e.handover.give(&link{TCPConn: s.c, guest: s.g, head: s.head, to: s.to})
			return
		}
		s.carry(ctx)
		return
	}
	kind, name := s.look()
	if kind == kindHTTP {
		s.e.handover.give(&link{TCPConn: s.c, guest: s.g, head: s.head, to: s.to})
		return
	}
	if kind == kindOther && s.to.Name != "" && !slices.Contains(webPorts, s.to.Port) {
		s.carry(ctx) // the name is that of its address
		return
	}
	if kind == kindTLS && s.to.Name != "" && name != "" && s.to.Name != name {
		s.refuse(Verdict{Rule: ruleMismatch})
		return
	}
	s.to = Destination{Name: name, Port: s.to.Port}
	s.carry(ctx)
}

// mustLook reports whether what the client says decides where it may go. On other
// ports than those of the web a server may speak first. A port that a routing rule
// names is for HTTP.
func (s *stream) mustLook() bool {
	if s.to.Name == "" && !s.to.IP.IsValid() {
		return true
	}
	rules := s.g.rules()
	if rules.passes(s.to.IP) != nil {
		return false // the proxy looks into nothing that goes past it
	}
	return rules.Named() && slices.Contains(webPorts, s.to.Port) || rules.Routed(s.to)
}

// request reports whether the stream has requests that the proxy of this host gets as
// such, although no rule is about them.
func (s *stream) request() bool {
	if !s.e.Through.Resolves() || s.to.Name == "" || s.to.Port != httpPort {
		return false
	}
	k, _ := s.look()
	return k == kindHTTP
}

// Kinds of what a client says first.
type kind uint8

const (
	kindOther kind = iota
	kindHTTP
	kindTLS
)

// look reads what the client says until the kind is known, and of TLS the name
// of the server, which may be missing.
func (s *stream) look() (k kind, name string) {
	patience := peekTime
	if s.to.Name == "" && !s.to.IP.IsValid() && !slices.Contains(webPorts, s.to.Port) {
		patience = lateTime
	}
	_ = s.c.SetReadDeadline(time.Now().Add(patience))
	defer func() { _ = s.c.SetReadDeadline(time.Time{}) }()
	chunk := make([]byte, 4<<10)
	for {
		k, name, more := classify(s.head)
		if !more {
			return k, name
		}
		if len(s.head) >= headMax {
			return kindOther, ""
		}
		n, err := s.c.Read(chunk)
		s.head = append(s.head, chunk[:n]...)
		if err != nil && n == 0 {
			return kindOther, ""
		}
	}
}

// methodMax is the longest method of HTTP that there is, and a space.
const methodMax = 32

// classify says what b is the beginning of, or that it is too short to tell.
func classify(b []byte) (k kind, name string, more bool) {
	if len(b) == 0 {
		return kindOther, "", true
	}
	if b[0] == recordHandshake {
		name, more, err := serverName(b)
		if more || err != nil {
			return kindOther, "", more
		}
		host, ok := doze.ParseHost(name)
		if !ok {
			host = ""
		}
		return kindTLS, host, false
	}
	for i, c := range b {
		switch {
		case c == ' ' && i > 0 && string(b[:i]) != "PRI": // the method that HTTP/2 begins with
			return kindHTTP, "", false
		case c < 'A' || c > 'Z' || i == methodMax:
			return kindOther, "", false
		}
	}
	return kindOther, "", true
}

// carry passes the stream on, if it may go where it wants to.
func (s *stream) carry(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v, f := s.g.begin(s.to, cancel)
	if f == nil {
		s.refuse(v)
		return
	}
	defer s.g.done(f)
	if len(v.Rules) > 0 && s.e.Interceptor == nil {
		s.refuse(Verdict{Rule: ruleProtocol})
		return
	}
	given := false
	defer func() {
		if !given {
			s.g.exit(s.c)
		}
	}()
	if len(v.Rules) > 0 {
		var at atomic.Pointer[found]
		at.Store(s.at)
		decided := s.e.once(s.g, s.to)
		s.e.Interceptor.Intercept(ctx, s.g.Guest, &link{TCPConn: s.c, guest: s.g, head: s.head}, s.to, v.Rules, func(ctx context.Context) (net.Conn, error) {
			c, err := s.e.open(ctx, s.g, s.to, at.Swap(nil)) // later connections look again
			decided(v.after(err))
			return c, err
		})
		decided(v) // of a client that ended before
		return
	}
	up, err := s.e.dial(ctx, s.g, s.to, s.at)
	if err != nil {
		if given = s.answer(err); given {
			return // who answers decides
		}
		s.e.decided(s.g, s.to, v.after(err))
		slog.Debug("a destination is not reached", "sandbox", s.g.UID, "host", s.to.host(), "port", s.to.Port, "err", err)
		refuse(s.c)
		return
	}
	s.e.decided(s.g, s.to, v)
	defer s.g.exit(up)
	stop := context.AfterFunc(ctx, func() { refuse(s.c); refuse(up) })
	defer stop()
	n, err := up.Write(s.head)
	s.g.traffic.Sent.Add(uint64(n)) //nolint:gosec // G115: not negative
	if err != nil {
		refuse(s.c)
		refuse(up)
		return
	}
	splice(ctx, s.c, up, s.g, f)
}

// answer has a request in clear for a name that leads nowhere answered with the
// reason, as all are where each is looked at. It reports whether it is one.
func (s *stream) answer(why error) bool {
	_, rule := errors.AsType[broken](why)
	_, name := errors.AsType[*doze.Error](why)
	if !rule && !name || s.to.Name == "" || s.to.Port != httpPort || len(s.head) > 0 {
		return false
	}
	if k, _ := s.look(); k != kindHTTP {
		return false
	}
	s.e.handover.give(&link{TCPConn: s.c, guest: s.g, head: s.head, to: s.to})
	return true
}

// refuse ends a stream that goes nowhere.
func (s *stream) refuse(v Verdict) {
	s.e.decided(s.g, s.to, v)
	refuse(s.c)
	s.g.exit(s.c)
}

// refuse ends a connection so that the other side knows that it was not served.
func refuse(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0) // a reset, and no end
	}
	_ = c.Close()
}
