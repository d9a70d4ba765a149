package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"

	"github.com/dozehq/doze"
)

const (
	// namesMax is how many names a sandbox may use at a time; the oldest is
	// forgotten.
	namesMax = 4096
	// nameTTL is how long a sandbox may keep an answer, in seconds. After a
	// restart of ours an address says nothing any more, and a name has to come
	// with the connection.
	nameTTL = 60
	// questionRate and questionBurst bound the questions of a sandbox in a second.
	questionRate, questionBurst = 200, 1000
	// lookupsMax is how many questions of a sandbox may be with the DNS at a time.
	lookupsMax = 64
	// lookupTime bounds one of them: a client asks again after five seconds.
	lookupTime = 3 * time.Second
	// recentTime is how long the addresses of a name are used again.
	recentTime = 5 * time.Second
	// answerMax bounds an answer by UDP, so that no network has to split it.
	answerMax = 1232
	// dnsPort is what a question of the DNS is written down with.
	dnsPort = 53
)

// recent are the addresses of a name until they have to be looked up again.
type recent struct {
	addresses []netip.Addr
	until     time.Time
}

// names gives each name that a sandbox asks for an address of its own, which
// leads back to the name and nowhere else.
type names struct {
	pool      netip.Prefix
	questions *rate.Limiter
	lookups   lookups

	mu        sync.Mutex
	next      uint32                // guarded by mu; place in the pool
	addresses map[string]netip.Addr // guarded by mu
	meanings  map[netip.Addr]string // guarded by mu
	order     []string              // guarded by mu; the oldest first
	recent    map[string]recent     // guarded by mu; of names in order
}

func newNames(pool netip.Prefix) *names {
	// What an earlier process of ours said about an address is most likely not
	// what we say: see nameTTL.
	return &names{
		pool: pool, questions: rate.NewLimiter(questionRate, questionBurst), next: rand.Uint32N(size(pool)), //nolint:gosec // G404: nothing secret
		lookups:   make(lookups, lookupsMax),
		addresses: map[string]netip.Addr{}, meanings: map[netip.Addr]string{}, recent: map[string]recent{},
	}
}

func size(pool netip.Prefix) uint32 { return 1 << (32 - pool.Bits()) }

// address returns the address that stands for a name.
func (n *names) address(name string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.addresses[name]; ok {
		return a
	}
	if len(n.order) == namesMax {
		oldest := n.order[0]
		n.order = n.order[1:]
		delete(n.meanings, n.addresses[oldest])
		delete(n.addresses, oldest)
		delete(n.recent, oldest)
	}
	first := n.pool.Masked().Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(first[:])+n.next)
	n.next = (n.next + 1) % size(n.pool)
	a := netip.AddrFrom4(b)
	n.addresses[name], n.meanings[a] = a, name
	n.order = append(n.order, name)
	return a
}

// meaning returns the name that an address stands for, or an empty one.
func (n *names) meaning(a netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.meanings[a]
}

// recall returns the addresses that a name was found to have a moment ago.
func (n *names) recall(name string, now time.Time) ([]netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, ok := n.recent[name]
	return r.addresses, ok && now.Before(r.until)
}

// remember takes note of the addresses of a name for the connection that most likely
// follows. The name has an address that stands for it.
func (n *names) remember(name string, all []netip.Addr, now time.Time) {
	n.address(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.addresses[name]; ok {
		n.recent[name] = recent{all, now.Add(recentTime)}
	}
}

// serveDNS answers a question of a sandbox.
func (e *Egress) serveDNS(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) {
	e.streams.Add(1)
	defer e.streams.Done()
	g := e.guest(w.RemoteAddr())
	if g == nil {
		return
	}
	m := e.answer(ctx, g, q)
	if _, packets := w.RemoteAddr().(*net.UDPAddr); packets {
		size := dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = max(size, min(int(o.UDPSize()), answerMax))
		}
		m.Truncate(size)
	}
	_ = w.WriteMsg(m) // who asked asks again
}

// answer is what a sandbox gets. The DNS is asked about names that the sandbox may
// connect to, and about no others: see [Policy.Resolves]. A question is made anew of its
// name and type, so that nothing else leaves with it. There are no keys that hide a name,
// and no hints at other protocols.
func (e *Egress) answer(ctx context.Context, g *guest, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	switch {
	case q.Response || q.Opcode != dns.OpcodeQuery || len(q.Question) != 1:
		return m.SetRcodeFormatError(q)
	case q.Question[0].Qclass != dns.ClassINET || !g.questions.Allow():
		return m.SetRcode(q, dns.RcodeRefused)
	}
	m.SetReply(q)
	m.RecursionAvailable = true
	question := q.Question[0]
	name, ok := doze.ParseHost(question.Name)
	if !ok {
		m.Rcode = dns.RcodeNameError
		return m
	}
	known := g.resolves(name)
	switch question.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		var six []netip.Addr
		m.Rcode = dns.RcodeSuccess
		if known {
			six, m.Rcode = e.existing(ctx, g, name)
		}
		switch m.Rcode {
		case dns.RcodeSuccess:
			m.Answer = g.addressRecords(question, name, six)
		case noAddress:
			m.Rcode = dns.RcodeSuccess
		}
	case dns.TypeCNAME, dns.TypeMX, dns.TypeNS, dns.TypeSOA, dns.TypeSRV, dns.TypeTXT, dns.TypeCAA:
		if !known {
			g.audit("dns", Destination{Name: name, Port: dnsPort}, Verdict{Rule: ruleUnresolved})
			m.Rcode = dns.RcodeRefused
			return m
		}
		m.Answer, m.Rcode = e.forwardQuestion(ctx, g, name, question)
	}
	return m
}

// noAddress says that a name exists and has no address. It is no code of the DNS.
const noAddress = -1

// addressRecords answer a question for the address of a name. Of version 4 it is the one
// that stands for the name. Those of version 6 are real, since programs compare them.
// A sandbox has no way to them but by the name.
func (n *names) addressRecords(question dns.Question, name string, six []netip.Addr) (all []dns.RR) {
	header := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: nameTTL}
	a := n.address(name)
	if question.Qtype == dns.TypeA {
		return []dns.RR{&dns.A{Hdr: header, A: net.IP(a.AsSlice())}}
	}
	for _, a := range six {
		all = append(all, &dns.AAAA{Hdr: header, AAAA: net.IP(a.AsSlice())})
	}
	return all
}

// existing looks a name up that a sandbox may connect to. It returns the public
// addresses of version 6, or what to answer if the name does not exist or has no address. If the DNS
// gives no answer, the name counts as existing: the connection says what is wrong. So it is
// where the proxy of this host resolves names.
func (e *Egress) existing(ctx context.Context, g *guest, name string) (six []netip.Addr, rcode int) {
	if !g.lookups.enter() {
		return nil, dns.RcodeServerFailure
	}
	defer g.lookups.leave()
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	all, err := e.lookUp(ctx, g, name)
	if missing, is := errors.AsType[*net.DNSError](err); is && missing.IsNotFound && !e.Through.Resolves() {
		g.audit("dns", Destination{Name: name, Port: dnsPort}, Verdict{Allow: true, Rule: ruleOpen})
		if e.Upstream == nil {
			return nil, noAddress
		}
		r, err := e.Upstream.Exchange(ctx, questionFor(name, dns.TypeA))
		if err == nil && r.Rcode == dns.RcodeNameError {
			return nil, dns.RcodeNameError
		}
		return nil, noAddress
	}
	for _, a := range all {
		if a = a.Unmap(); a.Is6() && !e.Denied(netip.Addr{}, a) {
			six = append(six, a)
		}
	}
	return six, dns.RcodeSuccess
}

// lookUp returns the addresses of a name. What was found is used again for a moment: the
// sandbox asks, and then connects.
func (e *Egress) lookUp(ctx context.Context, g *guest, name string) ([]netip.Addr, error) {
	if all, ok := g.recall(name, time.Now()); ok {
		return all, nil
	}
	// The dot has the domains of the host not tried below.
	all, err := e.Resolver.LookupNetIP(ctx, "ip", name+".")
	if err == nil && len(all) > 0 {
		g.remember(name, all, time.Now())
	}
	return all, err
}

// forwardQuestion asks the DNS for records of a name that a sandbox may connect to.
func (e *Egress) forwardQuestion(ctx context.Context, g *guest, name string, question dns.Question) (all []dns.RR, rcode int) {
	if e.Upstream == nil || !g.lookups.enter() {
		return nil, dns.RcodeServerFailure
	}
	defer g.lookups.leave()
	g.audit("dns", Destination{Name: name, Port: dnsPort}, Verdict{Allow: true, Rule: ruleOpen})
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	r, err := e.Upstream.Exchange(ctx, questionFor(name, question.Qtype))
	if err != nil || r.Rcode != dns.RcodeSuccess && r.Rcode != dns.RcodeNameError {
		return nil, dns.RcodeServerFailure
	}
	for _, rr := range r.Answer {
		if kind := rr.Header().Rrtype; kind == question.Qtype || kind == dns.TypeCNAME {
			if dns.CanonicalName(rr.Header().Name) == name+"." {
				rr.Header().Name = question.Name // in the case in which it was asked
			}
			all = append(all, rr)
		}
	}
	return all, r.Rcode
}

// resolves reports whether the DNS is asked about a name for the sandbox now.
func (g *guest) resolves(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.gone && g.barred(g.Guest) == "" && g.policy.Resolves(name)
}

// lookups are the questions of a sandbox that the DNS has not answered yet.
type lookups chan struct{}

func (l lookups) enter() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l lookups) leave() { <-l }
