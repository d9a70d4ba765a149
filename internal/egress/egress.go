// Package egress obeys the policy of each sandbox for what it sends out. It is
// led to us by the filter of its network, whether it wants or not: every TCP
// connection, and every question of the DNS.
//
// We decide about the name that a connection says itself, resolve it ourselves,
// and dial what we resolved. What is allowed is passed on untouched. Nothing
// here opens a way: a sandbox that the filter does not lead to us is not ours.
package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/icmp"
	"golang.org/x/time/rate"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/outproxy"
)

// Options are what an Egress works with. Interceptor, Meter, Descriptors and
// Barred are optional.
type Options struct {
	Redirected net.Listener   // gets what sandboxes meant for others
	Proxy      net.Listener   // gets requests for a proxy
	Names      net.Listener   // gets questions of the DNS
	Questions  net.PacketConn // likewise
	// Echoes are the echo requests of sandboxes, and ICMP is a socket that sends ours. Without
	// them, ping reaches nothing.
	Echoes Echoes
	ICMP   *icmp.PacketConn
	// Pool are addresses that stand for names; they lead to Redirected. They are of
	// version 4.
	Pool     netip.Prefix
	Resolver Resolver
	// Upstream answers questions about names that sandboxes may connect to. Without one,
	// sandboxes get addresses alone.
	Upstream Upstream
	// Denied reports whether no sandbox may reach an address, from an address of this
	// machine, which is invalid where nobody knows it yet.
	Denied func(from, to netip.Addr) bool
	// Closed lets nothing out, whatever sandboxes ask for.
	Closed bool
	// Private says that some networks that are not public are not Denied. Then names
	// of private networks, such as mirror.internal, are resolved.
	Private bool
	// Decided is told of every decision. It must not wait.
	Decided func(allow bool)
	// Refused is told what a sandbox could not reach: once for a destination, and seldom.
	// See [refusals]. It must not wait. Without one, only the log says so.
	Refused func(g Guest, message string)
	// Through is the proxy through which this host reaches public addresses; nil: it needs
	// none. Nobody reaches the proxy itself.
	Through *outproxy.Proxy
	// Interceptor carries what matches routing rules; without one it is refused.
	Interceptor Interceptor
	// Meter returns where the bytes of a sandbox count, when it is admitted. It may
	// return the same counters again, for another sandbox too. Without a Meter the
	// counters are lost with the sandbox.
	Meter func(Guest) *Traffic
	// Descriptors is how many of them the connections of all sandboxes may take
	// together; 0 is half of what this process may open.
	Descriptors int
	// Barred returns why a sandbox may reach nothing at all for now. The empty
	// string leaves the decision to the policy. Barred is asked for every connection
	// and request: it must not wait, and must not call the Egress. See [Egress.Enforce].
	Barred func(Guest) (why string)
}

// Traffic counts the bytes that sandboxes exchange with destinations, while they
// pass: the payload of the TCP connections to destinations, which for an
// intercepted connection is TLS. Answers of the proxy itself do not count, and
// nor does the DNS, which the proxy answers without asking anybody. Whatever goes
// past the proxy, as --egress direct and the UDP of dedicated addresses do, is not
// seen here.
type Traffic struct {
	Sent, Received atomic.Uint64
}

// Interceptor carries TLS connections and requests to which routing rules apply.
type Interceptor interface {
	// Intercept serves c, whose ClientHello was not read yet, until ctx or the
	// connection ends, and closes it. Routes are positions in the routing rules
	// of the sandbox. Dial connects to the destination, with all checks.
	Intercept(ctx context.Context, g Guest, c net.Conn, to Destination, rules []int, dial func(context.Context) (net.Conn, error))
	// Request serves a request in clear. By sends it on, with all checks.
	Request(w http.ResponseWriter, r *http.Request, g Guest, to Destination, by http.RoundTripper)
}

// Egress serves what the sandboxes of a host send out. It is safe for
// concurrent use.
type Egress struct {
	Options
	web         *http.Server
	handover    *handover // leads to web
	questions   *handover // leads to the server of the DNS
	descriptors budget
	streams     sync.WaitGroup // goroutines of connections and requests
	echoes      *questions

	mu     sync.RWMutex
	guests map[netip.Addr]*guest // guarded by mu
}

// New returns an Egress that serves nobody yet.
func New(o Options) *Egress {
	if o.Meter == nil {
		o.Meter = func(Guest) *Traffic { return new(Traffic) }
	}
	if o.Descriptors == 0 {
		o.Descriptors = descriptors()
	}
	if o.Refused == nil {
		o.Refused = func(Guest, string) {}
	}
	if o.Barred == nil {
		o.Barred = func(Guest) string { return "" }
	}
	if through, denied := o.Through, o.Denied; through != nil {
		o.Denied = func(from, to netip.Addr) bool { return through.Has(to) || denied(from, to) }
	}
	e := &Egress{
		Options: o, handover: newHandover(), questions: newHandover(), guests: map[netip.Addr]*guest{},
		descriptors: budget{total: o.Descriptors}, echoes: newQuestions(),
	}
	e.web = &http.Server{
		Handler: http.HandlerFunc(e.serveHTTP), ConnContext: connContext,
		ConnState: func(_ net.Conn, s http.ConnState) {
			switch s { //nolint:exhaustive // the others are in between
			case http.StateNew:
				e.streams.Add(1)
			case http.StateClosed, http.StateHijacked:
				e.streams.Done()
			}
		},
		ReadHeaderTimeout: peekTime, IdleTimeout: idleTime, MaxHeaderBytes: headMax,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	return e
}

// Admit obeys a network for a sandbox from now on, and ends what it does not allow any
// more. The sandbox that had the address before is forgotten.
func (e *Egress) Admit(who Guest, n *doze.Network) error {
	p, err := Compile(n, e.Closed)
	if err != nil {
		return err
	}
	p.private = e.Private
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.guests[who.IP]; old != nil && old.Guest == who {
		old.obey(p)
		return nil
	} else if old != nil {
		old.leave()
	}
	g := &guest{
		Guest: who, names: newNames(e.Pool), policy: p, flows: map[*flow]struct{}{},
		begins: rate.NewLimiter(streamRate, streamBurst), lines: rate.NewLimiter(auditRate, auditBurst), limit: newRate(), refusals: newRefusals(), seen: newSeen(),
		traffic: e.Meter(who), barred: e.Barred, sockets: newSockets(&e.descriptors),
	}
	g.transport = e.transport(g)
	e.guests[who.IP] = g
	return nil
}

// Enforce asks Barred about every sandbox, and ends the connections and requests
// of those that are barred. Call it after the answer of Barred has changed.
func (e *Egress) Enforce() {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, g := range e.guests {
		g.enforce()
	}
}

// Forget ends everything of a sandbox.
func (e *Egress) Forget(ip netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g := e.guests[ip]; g != nil {
		g.leave()
		delete(e.guests, ip)
	}
}

// guest returns the sandbox that has an address, or nil.
func (e *Egress) guest(from net.Addr) *guest {
	a, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return nil
	}
	return e.guestAt(a.Addr().Unmap())
}

// guestAt is guest by the address alone.
func (e *Egress) guestAt(ip netip.Addr) *guest {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.guests[ip]
}

// Run serves until ctx ends. Then it ends all connections, and closes what it
// was given.
func (e *Egress) Run(ctx context.Context) error {
	var servers sync.WaitGroup
	e.web.BaseContext = func(net.Listener) context.Context { return ctx }
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { e.serveDNS(ctx, w, q) })
	packets := &dns.Server{PacketConn: e.Questions, Handler: answer}
	questions := &dns.Server{Listener: e.questions, Handler: answer}
	for _, s := range []*dns.Server{packets, questions} {
		servers.Go(func() { report(ctx, s.ActivateAndServe()) })
	}
	servers.Go(func() { report(ctx, e.web.Serve(e.handover)) })
	servers.Go(func() { e.accept(ctx, e.Redirected, func(g *guest, c *net.TCPConn) { e.serveRedirected(ctx, g, c) }) })
	servers.Go(func() {
		e.accept(ctx, e.Proxy, func(g *guest, c *net.TCPConn) { e.handover.give(&link{TCPConn: c, guest: g, proxy: true}) })
	})
	servers.Go(func() {
		e.accept(ctx, e.Names, func(g *guest, c *net.TCPConn) { e.questions.give(&link{TCPConn: c, guest: g}) })
	})
	if e.Echoes != nil {
		servers.Go(func() { e.Echoes.Run(ctx, func(q Echo) { e.serveEcho(ctx, q) }) })
		servers.Go(func() { e.answers(ctx) })
	}
	<-ctx.Done()
	err := errors.Join(e.closeSockets(), e.questions.Close(), e.web.Close())
	servers.Wait()
	e.streams.Wait()
	return errors.Join(err, e.closeEchoes())
}

// Close closes what was given to [New], if Run is not called. What is
// closed already is fine.
func (e *Egress) Close() error { return errors.Join(e.closeSockets(), e.closeEchoes()) }

// closeSockets closes what sandboxes and their answers come by.
func (e *Egress) closeSockets() error {
	all := []io.Closer{e.Redirected, e.Proxy, e.Names, e.Questions}
	if e.ICMP != nil {
		all = append(all, e.ICMP)
	}
	var errs []error
	for _, c := range all {
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// closeEchoes closes what answers go to sandboxes by: when nobody sends one any more.
func (e *Egress) closeEchoes() error {
	if e.Echoes == nil {
		return nil
	}
	return e.Echoes.Close()
}

// report says that a server ended before its time.
func report(ctx context.Context, err error) {
	if ctx.Err() == nil {
		slog.Error("a server for sandboxes ended: what they send is refused", "err", err)
	}
}

// acceptPause is how long we wait when no connection can be taken, as when there
// are too many files.
const acceptPause = 100 * time.Millisecond

// accept takes connections of sandboxes until the listener is closed.
func (e *Egress) accept(ctx context.Context, l net.Listener, serve func(*guest, *net.TCPConn)) {
	for ctx.Err() == nil {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("a connection of a sandbox is not taken", "err", err)
				select {
				case <-ctx.Done():
				case <-time.After(acceptPause):
				}
			}
			continue
		}
		tcp, ok := c.(*net.TCPConn)
		g := e.guest(c.RemoteAddr())
		if !ok || g == nil {
			refuse(c)
			continue
		}
		if why := g.enter(tcp); why != "" {
			e.decided(g, Destination{}, Verdict{Rule: ruleBusy, Why: why})
			refuse(c)
			continue
		}
		_ = tcp.SetKeepAliveConfig(patience) // or it ends earlier
		e.streams.Go(func() { serve(g, tcp) })
	}
}

// decided counts and writes down a decision about a connection or a request.
func (e *Egress) decided(g *guest, to Destination, v Verdict) { e.decidedBy("tcp", g, to, v) }

// decidedBy is decided for another protocol.
func (e *Egress) decidedBy(protocol string, g *guest, to Destination, v Verdict) {
	e.Decided(v.Allow)
	e.written(g, protocol, to, v)
}

// once returns decided for one connection or request: the first call counts.
func (e *Egress) once(g *guest, to Destination) func(Verdict) {
	var once sync.Once
	return func(v Verdict) { once.Do(func() { e.decided(g, to, v) }) }
}

// written writes down a decision, and a refusal also for the owner of the sandbox.
func (e *Egress) written(g *guest, protocol string, to Destination, v Verdict) {
	g.audit(protocol, to, v)
	if v.Allow {
		return
	}
	if message := g.refusals.add(protocol, to, v, time.Now()); message != "" {
		e.Refused(g.Guest, message)
	}
}

// A Packet is one that the filter decided about, or the first of a flow, and not we.
type Packet struct {
	Protocol string
	To       netip.AddrPort
	Passed   bool   // to where the machine itself lets it go
	Omitted  uint64 // about so many before nothing was said
}

// Note writes down what the filter did with a packet of the sandbox that has an
// address, which is counted where it happened. The sandbox may be gone meanwhile.
func (e *Egress) Note(ip netip.Addr, p Packet) {
	g := e.guestAt(ip)
	if g == nil {
		return
	}
	g.omit(p.Omitted)
	d := Destination{IP: p.To.Addr(), Port: p.To.Port()}
	e.written(g, p.Protocol, d, e.filtered(p, d))
}

// filtered is the verdict of the filter: of that of the machine, too, behind which
// are its own addresses.
func (e *Egress) filtered(p Packet, to Destination) Verdict {
	switch {
	case e.Denied(netip.Addr{}, to.IP):
		return Verdict{Rule: rulePrivate}
	case p.Passed:
		return Verdict{Allow: true, Rule: ruleOpen}
	case p.Protocol != "tcp":
		return Verdict{Rule: ruleTransport}
	case to.Port == mailPort:
		return Verdict{Rule: ruleMail}
	default:
		return Verdict{Rule: ruleClosed}
	}
}
