package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Local reports whether what this process sends to an address stays on this machine, or
// goes to all in a network. It asks the kernel's routes and not the addresses of
// interfaces: a route of the type local makes a whole network the machine's own. A
// destination that a route closes counts as the machine's, too. Rules of the operator
// may be about the source from, which may be invalid.
func Local(from, to netip.Addr) (bool, error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return false, nil // it goes nowhere
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
		return true, nil // the operator has closed it by a route
	}
	if err != nil {
		return false, fmt.Errorf("look for the route to %s: %w", to, err)
	}
	if from.IsValid() {
		// If the machine does not have the source, there is no such route, and
		// nobody can dial.
		more, _ := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{SrcAddr: from.AsSlice()})
		routes = append(routes, more...)
	}
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST {
			return true, nil
		}
	}
	return false, nil
}

// toMachine matches packets to the machine's own addresses, to all in one of its
// networks, and to groups, by the kernel's table of local routes.
var toMachine = []expr.Any{
	&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
	&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_UNICAST)},
}

// refuseMachine refuses packets out of the uplink for the machine itself, before rules
// of the operator can send them elsewhere. A port that is forwarded to a container is
// the machine's as well.
func (t *table) refuseMachine(uplink string, note *nftables.Chain) {
	policy := nftables.ChainPolicyAccept
	c := t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: "prerouting", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw, Policy: &policy,
	})
	t.rule(c, from(uplink), isIPv4, toMachine, jump(note.Name))
	t.rule(c, from(uplink), isIPv4, toMachine, protocol(unix.IPPROTO_TCP), reset)
	t.rule(c, from(uplink), isIPv4, toMachine, drop)
}
