package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"doze"
)

// Way is how a sandbox gets out.
type Way uint8

const (
	// WayClosed drops everything. So does the kernel with a slot that nobody said
	// anything about yet.
	WayClosed Way = iota
	// WayLane leads every TCP connection to [ProxyPort] or [LanePort] of the router
	// and every question of the DNS to [NamePort] there, whatever address it was
	// meant for. What is meant for an address that is not public is refused, but
	// for those of Names; all else is dropped.
	WayLane
	// WayOpen lets it reach public addresses, if [Options.OpenEgress] does, and the
	// proxy. TCP to others is refused, and all else is dropped.
	WayOpen
)

// Ports of the router on which [Net.Listen] and [Net.ListenPacket] serve
// sandboxes. If nobody listens, they are refused.
const (
	ProxyPort = 3128 // what a sandbox sends to ProxyIP and this port
	LanePort  = 3129 // all other TCP of one in the lane
	NamePort  = 3130 // questions of the DNS from one in the lane, by UDP and TCP
)

var (
	// ProxyIP is where a sandbox finds the proxy, the same one on every host.
	ProxyIP = netip.MustParseAddr("169.254.88.1")
	// Names are addresses that stand for names: a sandbox in the lane may connect
	// to them, and gets no further than to LanePort.
	Names = netip.MustParsePrefix("198.18.0.0/15")
)

// dnsPort is where servers of the DNS are.
const dnsPort = 53

// mailPort is closed everywhere: what leaves by it is unsolicited mail.
const mailPort = 25

// Sets of the router's table: the links that have a way.
var (
	laneSet = &nftables.Set{Name: "lane", KeyType: nftables.TypeIFName}
	openSet = &nftables.Set{Name: "open", KeyType: nftables.TypeIFName}
)

func (w Way) set() *nftables.Set {
	switch w {
	case WayLane:
		return laneSet
	case WayOpen:
		return openSet
	default:
		return nil
	}
}

// Admit gives the slot of id another way out, in one step and at once, also for
// connections that are open. A new slot is closed, and so are all after [Open].
// It is NotFound if there is no such lease.
func (n *Net) Admit(id string, w Way) error {
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

// admit is Admit for who has the turn.
func (n *Net) admit(l *lease, w Way) error {
	if l.way == w {
		return nil
	}
	err := n.router.change(func(conn *nftables.Conn) (err error) {
		link := []nftables.SetElement{{Key: linkName(l.slot.hostLink())}}
		if l.way != WayClosed {
			err = conn.SetDeleteElements(inRouter(l.way.set()), link)
		}
		if w != WayClosed && err == nil {
			err = conn.SetAddElements(inRouter(w.set()), link)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("change the way out of %s: %w", l.slot.ID, err)
	}
	l.way = w
	return nil
}

// change makes one step out of what do asks for. It keeps its connection to the
// kernel: to close one takes the kernel 10 ms and more.
func (r *router) change(do func(*nftables.Conn) error) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes == nil {
		if r.changes, err = nftables.New(nftables.WithNetNSFd(r.ns.fd()), nftables.AsLasting()); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	if err = do(r.changes); err == nil {
		err = r.changes.Flush()
	}
	if err != nil { // nobody knows what it has left to say
		err = errors.Join(err, r.changes.CloseLasting())
		r.changes = nil
	}
	return err
}

// inRouter is a set of the router's table.
func inRouter(s *nftables.Set) *nftables.Set {
	own := *s
	own.Table = &nftables.Table{Name: routerTable, Family: nftables.TableFamilyINet}
	return &own
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
// opens: all but those of the public internet of version 4.
func NotPublic(a netip.Addr) bool {
	if !a.Is4() {
		return true
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// lane adds the sets of links and what holds for those in the lane to the filter
// of the router.
func (t *table) lane(in, forward *nftables.Chain, denied *nftables.Set) error {
	names := &nftables.Set{Table: t.Table, Name: "names", KeyType: nftables.TypeIPAddr, Interval: true, Constant: true}
	if err := t.conn.AddSet(names, interval(Names)); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, s := range []*nftables.Set{laneSet, openSet, subnetMap, memberSet} {
		own := *s
		own.Table = t.Table
		if err := t.conn.AddSet(&own, nil); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	policy := nftables.ChainPolicyAccept
	nat := t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest, Policy: &policy,
	})
	t.rule(nat, toMember, accept) // unchanged, whatever its port
	for _, way := range []Way{WayLane, WayOpen} {
		t.rule(nat, fromAny(way), isIPv4, toAddr(ProxyIP), toPort(unix.IPPROTO_TCP, ProxyPort), redirect(ProxyPort))
		t.rule(in, fromAny(way), isIPv4, redirected, accept)
	}
	t.rule(nat, fromAny(WayLane), isIPv4, toPort(unix.IPPROTO_UDP, dnsPort), redirect(NamePort))
	t.rule(nat, fromAny(WayLane), isIPv4, toPort(unix.IPPROTO_TCP, dnsPort), redirect(NamePort))
	t.rule(nat, fromAny(WayLane), toAny(names), protocol(unix.IPPROTO_TCP), redirect(LanePort))
	t.rule(nat, fromAny(WayLane), toAny(denied), accept) // unchanged, to be refused
	t.rule(nat, fromAny(WayLane), isIPv4, protocol(unix.IPPROTO_TCP), redirect(LanePort))
	// Before the kernel looks for a route, of which there may be none.
	refuse := t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: "refuse", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	t.rule(refuse, established, accept)
	t.rule(refuse, redirected, accept)
	t.rule(refuse, toMember, accept)
	t.rule(refuse, fromAny(WayLane), isIPv4, protocol(unix.IPPROTO_TCP), reset)
	t.rule(refuse, fromAny(WayOpen), toAny(denied), protocol(unix.IPPROTO_TCP), reset)
	t.rule(forward, toMember, toPort(unix.IPPROTO_TCP, doze.AgentPort), reset)
	t.rule(forward, toMember, accept)
	// What was open before its sandbox came into the lane.
	t.rule(forward, fromAny(WayLane), isIPv4, protocol(unix.IPPROTO_TCP), reset)
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
)

// ctStatusDNAT is IPS_DST_NAT of the kernel.
const ctStatusDNAT = 1 << 5

// fromAny matches the links that have a way.
func fromAny(w Way) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: w.set().Name},
	}
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
