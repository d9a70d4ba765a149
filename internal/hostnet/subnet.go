package hostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// Sets of the router's table: the number of the subnet that a link is in, and the
// addresses that are in a subnet.
var (
	subnetMap = &nftables.Set{Name: "subnets", IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeMark}
	memberSet = &nftables.Set{Name: "members", Concatenation: true, KeyType: nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeIPAddr)}
)

// A subnet is a number that the packet filter knows, and how many leases are in
// it. It is gone with the last of them.
type subnet struct {
	number  uint32
	members int
}

// Join puts the slot of id into a subnet, in one step and at once, and takes it
// out of the one that it was in; the empty name is none. Slots of one subnet reach
// each other at every port but that of the agent, whatever their ways out are. A
// new slot is in none, and so are all after [Open]. It is NotFound if there is no
// such lease.
func (n *Net) Join(id, name string) error {
	l, back, err := n.take(id)
	if err != nil {
		return err
	}
	defer back()
	return n.join(l, name)
}

// join is Join with the turn held.
func (n *Net) join(l *lease, name string) error {
	if l.subnet == name {
		return nil
	}
	was, is := n.enter(l.subnet), n.enter(name)
	err := n.move(l.slot, was, is)
	n.leave(l.subnet)
	if err != nil {
		n.leave(name)
		return fmt.Errorf("change the subnet of %s: %w", l.slot.ID, err)
	}
	n.leave(l.subnet)
	l.subnet = name
	if was != 0 {
		if err := n.router.endFlows(l.slot); err != nil { // of which no packet passes all the same
			slog.Warn("connections of a sandbox that left its subnet do not end by themselves", "sandbox", l.slot.ID, "err", err)
		}
	}
	return nil
}

// move takes a slot out of the subnet with one number, and puts it into that with
// the other; 0 is none.
func (n *Net) move(s Slot, was, is uint32) error {
	link, address := linkName(s.hostLink()), s.IP.AsSlice()
	step := n.router.change
	if is != 0 {
		step = n.router.open
	}
	return step(func(conn *nftables.Conn) error {
		if is != 0 { // to forward leads nowhere but to members: see filter
			if err := n.router.ns.do(func() error { return set([]sysctl{{"ipv4/ip_forward", "1"}}) }); err != nil {
				return err
			}
		}
		for _, step := range []struct {
			number uint32
			change func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error
		}{{was, without}, {is, (*nftables.Conn).SetAddElements}} {
			if step.number == 0 {
				continue
			}
			number := binaryutil.NativeEndian.PutUint32(step.number)
			if err := errors.Join(
				step.change(conn, inRouter(subnetMap), []nftables.SetElement{{Key: link, Val: number}}),
				step.change(conn, inRouter(memberSet), []nftables.SetElement{{Key: slices.Concat(number, address)}}),
			); err != nil {
				return err
			}
		}
		return nil
	})
}

// enter counts one more who needs a subnet, and returns its number, or 0 for none.
func (n *Net) enter(name string) uint32 {
	if name == "" {
		return 0
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subnets[name]
	if s == nil {
		n.lastSubnet++
		s = &subnet{number: n.lastSubnet}
		n.subnets[name] = s
	}
	s.members++
	return s.number
}

// leave takes enter back.
func (n *Net) leave(name string) {
	if name == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subnets[name]
	if s.members--; s.members == 0 {
		delete(n.subnets, name)
	}
}

// toMember matches IPv4 packets to an address of the subnet that their link is in.
// That they come from the address of their link, the kernel has checked.
var toMember = func() []expr.Any {
	const whole, half, rest = 1, 12, 13 // registers of 16 and, behind the first, of 4 bytes
	return append(
		append([]expr.Any{}, isIPv4...),
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: whole},
		&expr.Lookup{SourceRegister: whole, DestRegister: half, IsDestRegSet: true, SetName: subnetMap.Name},
		&expr.Payload{DestRegister: rest, Base: expr.PayloadBaseNetworkHeader, Offset: destinationOffset, Len: addressLen},
		&expr.Lookup{SourceRegister: half, SetName: memberSet.Name},
	)
}()
