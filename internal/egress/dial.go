package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/outproxy"
)

const (
	// dialTime bounds the question to the DNS and the connection to one address.
	dialTime = 15 * time.Second
	// addressesTried is how many addresses of a name are tried.
	addressesTried = 4
)

// Resolver asks the DNS. A [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// found are the addresses that a destination has, which were looked up.
type found struct {
	to        Destination
	addresses []netip.Addr
	// named says that the proxy of this host gets the name: see through.
	named bool
}

// dial connects to d, at addresses that were found before, if they are of d. The
// address that is checked is the one that is dialled: what a sandbox was told
// about a name does not matter.
func (e *Egress) dial(ctx context.Context, g *guest, d Destination, before *found) (up *net.TCPConn, err error) {
	if why := g.claim(); why != "" {
		return nil, doze.Wrap(crowded(why), doze.Exhausted, "the sandbox has too many connections: %s", why)
	}
	defer func() {
		if err != nil {
			g.waive()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if before == nil || before.to != d {
		if before, err = e.find(ctx, g, d); err != nil {
			return nil, err
		}
	}
	if before.named {
		if up, err = e.tunnel(ctx, g, d, netip.Addr{}); err != nil {
			return nil, err
		}
		return up, g.hold(up)
	}
	for _, a := range before.addresses {
		a = a.Unmap()
		if e.Through.Carries(d.Name, a, d.Port) {
			up, err = e.tunnel(ctx, g, d, a)
		} else {
			up, err = e.straight(ctx, g, d, a)
		}
		if err == nil {
			return up, g.hold(up)
		}
		if refused, is := errors.AsType[*outproxy.Error](err); is && refused.Ours {
			break // the next address has the same proxy
		}
	}
	return nil, err
}

// hold has a connection that was made for the sandbox end with it.
func (g *guest) hold(up *net.TCPConn) error {
	if !g.track(up) {
		refuse(up)
		return broken(ruleClosed)
	}
	return nil
}

// straight connects to an address of d from this host.
func (e *Egress) straight(ctx context.Context, g *guest, d Destination, a netip.Addr) (*net.TCPConn, error) {
	source, err := g.rules().Source(d, a)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{ControlContext: e.guard(source)}
	if source.IsValid() && source.Is4() != a.Is4() {
		return nil, broken(ruleNoSource) // a dedicated address reaches those of its own version
	}
	if source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	c, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, d.Port).String())
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("a connection of the kind %T", c)
	}
	// The kernel has chosen the source by now, and a route may have become one to this
	// machine since guard looked. Nothing was sent yet.
	if local, err := netip.ParseAddrPort(tcp.LocalAddr().String()); err != nil || e.Denied(local.Addr(), a) {
		refuse(tcp)
		return nil, broken(rulePrivate)
	}
	return tcp, nil
}

// find returns the addresses of d that are tried, at least one.
func (e *Egress) find(ctx context.Context, g *guest, d Destination) (*found, error) {
	if d.Name == "" {
		return &found{to: d, addresses: []netip.Addr{d.IP}}, nil
	}
	if e.Through.Resolves() {
		return e.findNamed(ctx, g, d)
	}
	// The dot keeps the domains of the host from being tried below.
	addresses, err := e.lookUp(ctx, g, d.Name)
	if err != nil {
		return nil, doze.Wrap(err, doze.Unavailable, "the name %s cannot be resolved", d.Name)
	}
	if len(addresses) == 0 {
		return nil, doze.Errorf(doze.Unavailable, "the name %s has no address", d.Name)
	}
	return &found{to: d, addresses: tried(addresses)}, nil
}

// tried are the addresses of a name that are tried, in this order. Those of version 4 go
// first: a host that has no way for version 6 loses no time. There is room for one of
// version 6.
func tried(all []netip.Addr) []netip.Addr {
	var four, six []netip.Addr
	for _, a := range all {
		if a = a.Unmap(); a.Is4() {
			four = append(four, a)
		} else {
			six = append(six, a)
		}
	}
	if len(six) > 0 {
		four = four[:min(len(four), addressesTried-1)]
	}
	four = append(four, six...)
	return four[:min(len(four), addressesTried)]
}

// reachable returns the addresses of d for dial, or the rule that dial would find
// broken at every one of them, before anybody is told that there is a way. If
// anything else is wrong, dial finds out.
func (e *Egress) reachable(ctx context.Context, g *guest, d Destination) (*found, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	at, err := e.find(ctx, g, d)
	if err != nil {
		return nil, err
	}
	if at.named {
		return at, nil
	}
	for _, a := range at.addresses {
		if _, err = e.source(g, d, a.Unmap()); err == nil {
			return at, nil
		}
	}
	return nil, err
}

// source is the address from which a sandbox reaches d by the address a, which is invalid
// for that of the platform. It is the rule that does not allow it, if there is one.
func (e *Egress) source(g *guest, d Destination, a netip.Addr) (netip.Addr, error) {
	source, err := g.rules().Source(d, a)
	if err == nil && e.Denied(source, a) {
		err = broken(rulePrivate)
	}
	return source, err
}

// guard looks at each address at the last moment before it is dialled from a
// source, which may be invalid. The port
// that we leave from is chosen with the destination: many sandboxes may share a
// dedicated address.
func (e *Egress) guard(source netip.Addr) func(_ context.Context, _, address string, c syscall.RawConn) error {
	return func(_ context.Context, _, address string, c syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if e.Denied(source, to.Addr().Unmap()) {
			return broken(rulePrivate)
		}
		var option error
		if !to.Addr().Unmap().Is4() {
			return nil
		}
		err = c.Control(func(fd uintptr) {
			option = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		})
		return errors.Join(err, option)
	}
}
