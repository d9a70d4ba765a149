package hostnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// Mode is how a sandbox gets out: closed, proxied or direct.
type Mode uint8

const (
	// Closed drops everything. So does the kernel with a slot that nobody said
	// anything about yet.
	Closed Mode = iota
	// Proxied leads every TCP connection to [ProxyPort] or [RedirectPort] of the router
	// and every question of the DNS to [NamePort] there, whatever address it was
	// meant for. What is meant for an address that is not public is refused, but
	// for those of Names; all else is dropped, but for what [Net.Datagrams] lets out.
	// [Net.Echoes] hears of echo requests.
	Proxied
	// Direct lets it reach public addresses, if [Options.OpenEgress] does, and the
	// proxy. TCP to others is refused, and all else is dropped. Questions of the DNS
	// to ProxyIP go to the first of [Net.Resolvers]: a sandbox that was made in the
	// mode [Proxied] asks there.
	Direct
)

// Ports of the router on which [Net.Listen] and [Net.ListenPacket] serve
// sandboxes. If nobody listens, they are refused.
const (
	ProxyPort    = 3128 // what a sandbox sends to ProxyIP and this port
	RedirectPort = 3129 // all other TCP of a Proxied sandbox
	NamePort     = 3130 // questions of the DNS of a Proxied sandbox, by UDP and TCP
)

var (
	// ProxyIP is where a sandbox finds the proxy, the same one on every host, and may
	// ask for names, whatever its mode. Where nobody answers it is refused.
	ProxyIP = netip.MustParseAddr("169.254.88.1")
	// Names are addresses that stand for names: a Proxied sandbox may connect
	// to them, and gets no further than to RedirectPort.
	Names = netip.MustParsePrefix("198.18.0.0/15")
)

// dnsPort is where servers of the DNS are, by each of dnsProtocols.
const dnsPort = 53

var dnsProtocols = []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP}

// mailPort is closed everywhere: what leaves by it is unsolicited mail.
const mailPort = 25

// Sets of the router's table: the links of each mode.
var (
	proxiedSet = &nftables.Set{Name: "proxied", KeyType: nftables.TypeIFName}
	directSet  = &nftables.Set{Name: "direct", KeyType: nftables.TypeIFName}
)

func (w Mode) set() *nftables.Set {
	switch w {
	case Proxied:
		return proxiedSet
	case Direct:
		return directSet
	default:
		return nil
	}
}

// Admit changes the mode of the slot of id at once, also for
// connections that are open. A new slot is closed, and so are all after [Open].
// It is NotFound if there is no such lease. If somebody else changed the filter,
// no mode is opened: it is Unavailable until the next Open, which sets it anew.
func (n *Net) Admit(id string, w Mode) error {
	l, back, err := n.take(id)
	if err != nil {
		return err
	}
	defer back()
	return n.admit(l, w)
}

// take returns the lease of id with its turn, which back gives back. It is NotFound
// if there is none, or its slot is not there.
func (n *Net) take(id string) (l *lease, back func(), err error) {
	n.mu.Lock()
	l = n.leases[id]
	n.mu.Unlock()
	if l == nil {
		return nil, nil, doze.Errorf(doze.NotFound, "there is no lease %s", id)
	}
	<-l.turn
	if l.gone || !l.ready {
		l.turn <- struct{}{}
		return nil, nil, doze.Errorf(doze.NotFound, "the lease %s has no slot", id)
	}
	return l, func() { l.turn <- struct{}{} }, nil
}

// admit is Admit with the turn held.
func (n *Net) admit(l *lease, w Mode) error {
	step := n.router.open
	if w == Closed {
		step = n.router.change
	}
	err := step(func(conn *nftables.Conn) (err error) {
		if l.mode == w {
			return nil // it has to be asked all the same
		}
		link := []nftables.SetElement{{Key: linkName(l.slot.hostLink())}}
		if l.mode != Closed {
			err = without(conn, inRouter(l.mode.set()), link)
		}
		if w != Closed && err == nil {
			err = conn.SetAddElements(inRouter(w.set()), link)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("change the egress mode of %s: %w", l.slot.ID, err)
	}
	l.mode = w
	if w != Closed {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.went[l.slot.Index] = true
	}
	return nil
}

// ownTable is the router's table.
var ownTable = &nftables.Table{Name: routerTable, Family: nftables.TableFamilyINet}

// in is a set in a table.
func in(t *nftables.Table, s *nftables.Set) *nftables.Set {
	own := *s
	own.Table = t
	return &own
}

// inRouter is a set of the router's table.
func inRouter(s *nftables.Set) *nftables.Set { return in(ownTable, s) }

// sets adds empty sets.
func (t *table) sets(all ...*nftables.Set) error {
	for _, s := range all {
		if err := t.conn.AddSet(in(t.Table, s), nil); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	return nil
}

// Listen serves sandboxes by TCP on a port of the router.
func (n *Net) Listen(ctx context.Context, port uint16) (l net.Listener, err error) {
	err = n.router.ns.do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp4", anywhere(port))
		return err
	})
	return l, err
}

// ListenPacket serves sandboxes by UDP on a port of the router.
func (n *Net) ListenPacket(ctx context.Context, port uint16) (c net.PacketConn, err error) {
	err = n.router.ns.do(func() (err error) {
		c, err = new(net.ListenConfig).ListenPacket(ctx, "udp4", anywhere(port))
		return err
	})
	return c, err
}

func anywhere(port uint16) string { return ":" + strconv.Itoa(int(port)) }

// NotPublic reports whether nobody may reach an address, whatever the operator
// opens: all but those of the public internet.
func NotPublic(a netip.Addr) bool {
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	if a.Is4() {
		return slices.ContainsFunc(notPublic, within)
	}
	return !public6.Contains(a) || slices.ContainsFunc(notPublic6, within)
}

// egressRules adds the sets of links, and the rules of each mode, to the filter
// of the router.
func (t *table) egressRules(input, forward *nftables.Chain, denied *nftables.Set, resolvers []netip.Addr, opened []netip.Prefix) error {
	names := &nftables.Set{Table: t.Table, Name: "names", KeyType: nftables.TypeIPAddr, Interval: true, Constant: true}
	if err := t.conn.AddSet(names, interval(Names)); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	networks, err := t.networks("opened", opened)
	if err != nil {
		return err
	}
	if err := t.sets(proxiedSet, directSet, subnetMap, memberSet, datagramMap, echoSet); err != nil {
		return err
	}
	if err := t.note(); err != nil {
		return err
	}
	policy := nftables.ChainPolicyAccept
	nat := t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest, Policy: &policy,
	})
	t.rule(nat, toMember, accept) // unchanged, whatever its port
	for _, mode := range []Mode{Proxied, Direct} {
		t.rule(nat, fromAny(mode), isIPv4, toAddr(ProxyIP), toPort(unix.IPPROTO_TCP, ProxyPort), redirect(ProxyPort))
		t.rule(input, fromAny(mode), isIPv4, redirected, accept)
	}
	for _, number := range dnsProtocols {
		t.rule(nat, fromAny(Proxied), isIPv4, toPort(number, dnsPort), redirect(NamePort))
		if len(resolvers) > 0 {
			t.rule(nat, fromAny(Direct), isIPv4, toAddr(ProxyIP), toPort(number, dnsPort), dnat(resolvers[0]))
		}
	}
	t.rule(nat, fromAny(Proxied), toAny(names), protocol(unix.IPPROTO_TCP), redirect(RedirectPort))
	t.rule(nat, fromAny(Proxied), toAny(networks), protocol(unix.IPPROTO_TCP), redirect(RedirectPort))
	t.rule(nat, fromAny(Proxied), toAny(denied), accept) // unchanged, to be refused
	t.rule(nat, fromAny(Proxied), isIPv4, protocol(unix.IPPROTO_TCP), redirect(RedirectPort))
	// Before the kernel looks for a route, of which there may be none.
	refuse := t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: "refuse", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	t.rule(refuse, established, accept)
	t.rule(refuse, redirected, accept)
	t.rule(refuse, toMember, accept)
	t.refuse(refuse, reset, fromAny(Proxied), isIPv4, protocol(unix.IPPROTO_TCP))
	t.refuse(refuse, reset, fromAny(Direct), toAny(denied), protocol(unix.IPPROTO_TCP))
	t.refuse(refuse, reset, fromAny(Direct), isIPv4, toPort(unix.IPPROTO_TCP, mailPort))
	t.rule(refuse, fromAny(Direct), toNone(denied), accept)
	t.datagrams(refuse, denied)
	t.echoes(refuse)
	for _, number := range dnsProtocols { // a lookup fails at once, and does not hang
		t.refuse(refuse, unreachable, fromSandbox, isIPv4, toAddr(ProxyIP), toPort(number, dnsPort))
	}
	t.refuse(refuse, drop, fromSandbox)
	t.refuse(forward, reset, toMember, toPort(unix.IPPROTO_TCP, doze.AgentPort))
	t.rule(forward, toMember, accept)
	// What was open before its sandbox became Proxied.
	t.refuse(forward, reset, fromAny(Proxied), isIPv4, protocol(unix.IPPROTO_TCP))
	return nil
}

// Parts of rules.
var (
	// redirected are packets of connections whose destination we changed.
	redirected = []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATUS},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(ctStatusDNAT), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
	reset = []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	// unreachable says that nobody listens at a port.
	unreachable = []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}
)

// ctStatusDNAT is IPS_DST_NAT of the kernel.
const ctStatusDNAT = 1 << 5

// fromAny matches the links of each mode.
func fromAny(w Mode) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: w.set().Name},
	}
}

// fromSandbox matches the links of all sandboxes.
var fromSandbox = []expr.Any{
	&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
	&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(hostLinkPrefix)}, // and whatever follows
}

func protocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
	}
}

// toPort matches a protocol and its destination port.
func toPort(number byte, port uint16) []expr.Any {
	const offset, length = 2, 2
	return append(
		protocol(number),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	)
}

// redirect leads a connection to a port of the router.
func redirect(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Redir{RegisterProtoMin: 1},
	}
}

// dnat leads a connection to another address.
func dnat(to netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}
}
