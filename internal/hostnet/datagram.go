package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// UDP leaves from a dedicated address by two translations: the router gives it an
// address that stands for the dedicated one on the uplink, and the machine gives it
// the dedicated one. The machine has that itself, and believes nobody else who
// says so.
var (
	// standIns are addresses that stand for dedicated ones. They are link-local, as
	// those of the uplink.
	standIns = netip.MustParsePrefix("169.254.96.0/20")
	// datagramMap has the stand-in of each link whose UDP leaves from a dedicated
	// address; it is in the router's table.
	datagramMap = &nftables.Set{Name: "datagrams", IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeIPAddr}
	// sourceMap has the address for each stand-in; it is in the machine's table.
	sourceMap = &nftables.Set{Name: "sources", IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeIPAddr}
)

// standInsMax is how many dedicated addresses can have UDP at a time.
const standInsMax = 1 << 12

// dnsTLSPort is where servers of the DNS are that speak TLS or QUIC: nobody but us
// answers questions.
const dnsTLSPort = 853

// A standIn is in use by some leases.
type standIn struct {
	addr  netip.Addr
	users int
}

// Datagrams lets the slot of id send UDP to public addresses, but for questions of the
// DNS. The source is a dedicated address of the machine, which replaces the one before.
// An invalid address ends that. The change is for open sockets, too. A new slot sends
// no UDP, and no slot does after [Open]. It needs [Options.OpenDatagrams]. The error is
// NotFound if there is no such lease.
func (n *Net) Datagrams(id string, from netip.Addr) error {
	l, back, err := n.take(id)
	if err != nil {
		return err
	}
	defer back()
	return n.datagrams(l, from)
}

// datagrams is Datagrams with the turn held.
func (n *Net) datagrams(l *lease, from netip.Addr) error {
	if l.source == from {
		return nil
	}
	if !n.o.OpenDatagrams {
		return doze.Errorf(doze.Unavailable, "UDP has no way to dedicated addresses")
	}
	n.sources.Lock()
	defer n.sources.Unlock()
	if err := n.stopDatagrams(l); err != nil {
		return fmt.Errorf("end the UDP of %s: %w", l.slot.ID, err)
	}
	if !from.IsValid() {
		return nil
	}
	if err := n.startDatagrams(l, from); err != nil {
		return fmt.Errorf("let the UDP of %s out: %w", l.slot.ID, err)
	}
	return nil
}

// startDatagrams opens the way from the machine's end. What the link sent before is
// translated anew.
// Preconditions: sources is held.
func (n *Net) startDatagrams(l *lease, from netip.Addr) error {
	s, err := n.enterStandIn(from)
	if err != nil {
		return err
	}
	n.mu.Lock()
	went := n.went[l.slot.Index] // or nothing of it came through: see forgetAllFlows
	n.mu.Unlock()
	if went {
		err = forgetFlows(n.router.ns, netip.PrefixFrom(l.slot.IP, l.slot.IP.BitLen()))
	}
	if err == nil {
		err = n.router.open(func(conn *nftables.Conn) error {
			return conn.SetAddElements(inRouter(datagramMap), []nftables.SetElement{{Key: linkName(l.slot.hostLink()), Val: s.AsSlice()}})
		})
	}
	if err != nil {
		return errors.Join(err, n.leaveStandIn(from))
	}
	l.source = from
	return nil
}

// stopDatagrams takes startDatagrams back.
// Preconditions: sources is held.
func (n *Net) stopDatagrams(l *lease) error {
	if !l.source.IsValid() {
		return nil
	}
	s := n.standIns[l.source].addr
	err := n.router.change(func(conn *nftables.Conn) error {
		return without(conn, inRouter(datagramMap), []nftables.SetElement{{Key: linkName(l.slot.hostLink()), Val: s.AsSlice()}})
	})
	if err != nil {
		return err
	}
	from := l.source
	l.source = netip.Addr{}
	return n.leaveStandIn(from)
}

// enterStandIn returns what stands for a dedicated address, for one more lease.
// Preconditions: sources is held.
func (n *Net) enterStandIn(from netip.Addr) (netip.Addr, error) {
	if s := n.standIns[from]; s != nil {
		s.users++
		return s.addr, nil
	}
	if len(n.standIns) == standInsMax {
		return netip.Addr{}, doze.Errorf(doze.Exhausted, "UDP leaves from %d dedicated addresses already", standInsMax)
	}
	s := &standIn{addr: n.freeStandIn(), users: 1}
	if n.oldStandIns { // whom it stood for before does not matter any more
		if err := forgetFlows(n.machine, netip.PrefixFrom(s.addr, s.addr.BitLen())); err != nil {
			return netip.Addr{}, err
		}
	}
	if err := n.translate((*nftables.Conn).SetAddElements, s.addr, from); err != nil {
		return netip.Addr{}, err
	}
	n.standIns[from] = s
	return s.addr, nil
}

// leaveStandIn takes enterStandIn back.
// Preconditions: sources is held.
func (n *Net) leaveStandIn(from netip.Addr) error {
	s := n.standIns[from]
	if s.users--; s.users > 0 {
		return nil
	}
	if err := n.translate((*nftables.Conn).SetDeleteElements, s.addr, from); err != nil {
		return err // it stays, for the next one
	}
	delete(n.standIns, from)
	return nil
}

// translate changes what a stand-in stands for, in the machine.
func (n *Net) translate(change func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error, standIn, from netip.Addr) error {
	return n.outside.change(func(conn *nftables.Conn) error {
		return change(conn, in(n.outsideTable(), sourceMap), []nftables.SetElement{{Key: standIn.AsSlice(), Val: from.AsSlice()}})
	})
}

// outsideTable is the table in the machine.
func (n *Net) outsideTable() *nftables.Table {
	return &nftables.Table{Name: n.uplink, Family: nftables.TableFamilyINet}
}

// freeStandIn is one that nobody uses. They go round, so that each rests.
// Preconditions: sources is held; there is one.
func (n *Net) freeStandIn() netip.Addr {
	used := map[netip.Addr]bool{}
	for _, s := range n.standIns {
		used[s.addr] = true
	}
	first := standIns.Addr().As4()
	for {
		a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(first[:])+n.nextStandIn)))
		n.nextStandIn = (n.nextStandIn + 1) % standInsMax
		n.oldStandIns = n.oldStandIns || n.nextStandIn == 0
		if !used[a] {
			return a
		}
	}
}

// forgetAllFlows forgets what sandboxes sent to an earlier process of ours, for all
// of them at once: to ask takes the kernel 5 ms, however little it knows.
// Preconditions: no link has a way out.
func (n *Net) forgetAllFlows() error {
	return errors.Join(forgetFlows(n.router.ns, plan), forgetFlows(n.machine, standIns))
}

// forgetFlows has a namespace translate anew what a network sends by UDP.
func forgetFlows(ns netns, from netip.Prefix) error {
	var f netlink.ConntrackFilter
	network := &net.IPNet{IP: from.Addr().AsSlice(), Mask: net.CIDRMask(from.Bits(), from.Addr().BitLen())}
	if err := errors.Join(f.AddIPNet(netlink.ConntrackOrigSrcIP, network), f.AddProtocol(unix.IPPROTO_UDP)); err != nil {
		return err
	}
	return ns.do(func() error {
		_, err := whole(func() ([]struct{}, error) {
			_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, &f)
			return nil, err
		})
		return err
	})
}

// datagrams adds what holds for UDP of links that have a dedicated address.
func (t *table) datagrams(refuse *nftables.Chain, denied *nftables.Set) {
	t.refuse(refuse, drop, fromAny(Proxied), toPort(unix.IPPROTO_UDP, dnsTLSPort))
	t.rule(refuse, fromAny(Proxied), standsIn, toNone(denied), protocol(unix.IPPROTO_UDP), accept)
}

// standsIn matches links that have a stand-in, and puts that into a register.
var standsIn = translation(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, datagramMap)

// fromStandIn matches IPv4 packets from an address that stands for another one, and
// puts that into a register.
var fromStandIn = translation(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: addressLen}, sourceMap)

// translation puts into a register what a map has for a key.
func translation(key expr.Any, m *nftables.Set) []expr.Any {
	return []expr.Any{key, &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: m.Name}}
}

// snat gives packets the source that a translation has found.
var snat = []expr.Any{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1}}
