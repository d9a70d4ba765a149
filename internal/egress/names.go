package egress

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

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
)

// names gives each name that a sandbox asks for an address of its own, which
// leads back to the name and nowhere else. So no name leaves the host before
// somebody may connect to it.
type names struct {
	pool      netip.Prefix
	questions *rate.Limiter

	mu        sync.Mutex
	next      uint32                // guarded by mu; place in the pool
	addresses map[string]netip.Addr // guarded by mu
	meanings  map[netip.Addr]string // guarded by mu
	order     []string              // guarded by mu; the oldest first
}

func newNames(pool netip.Prefix) *names {
	// What an earlier process of ours said about an address is most likely not
	// what we say: see nameTTL.
	return &names{
		pool: pool, questions: rate.NewLimiter(questionRate, questionBurst), next: rand.Uint32N(size(pool)), //nolint:gosec // G404: nothing secret
		addresses: map[string]netip.Addr{}, meanings: map[netip.Addr]string{},
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

// ServeDNS answers a question of a sandbox.
func (e *Egress) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	g := e.guest(w.RemoteAddr())
	if g == nil {
		return
	}
	_ = w.WriteMsg(g.answer(q)) // who asked asks again
}

// answer is what a sandbox gets, without a question to any other server. Every valid
// name has an address. There are IPv4 addresses only: no keys that hide a name, and no
// hints at other protocols.
func (n *names) answer(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	switch {
	case q.Response || q.Opcode != dns.OpcodeQuery || len(q.Question) != 1:
		return m.SetRcodeFormatError(q)
	case q.Question[0].Qclass != dns.ClassINET || !n.questions.Allow():
		return m.SetRcode(q, dns.RcodeRefused)
	}
	m.SetReply(q)
	m.RecursionAvailable = true
	question := q.Question[0]
	name, ok := doze.ParseHost(question.Name)
	switch {
	case !ok:
		m.Rcode = dns.RcodeNameError
	case question.Qtype == dns.TypeA:
		a := n.address(name)
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: nameTTL},
			A:   net.IP(a.AsSlice()),
		}}
	}
	return m
}
