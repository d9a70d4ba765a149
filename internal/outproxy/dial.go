package outproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// addressesTried is how many addresses of a name are tried.
const addressesTried = 4

// errSelf is why nobody reaches the proxy through itself.
var errSelf = errors.New("it is the upstream proxy itself")

// DialChecked connects to host:port, as d does without a proxy. Allowed returns why an
// address is refused: d.Control asks it for what is dialled from here. If the proxy resolves
// names, one address that is refused is enough to refuse the name.
func (p *Proxy) DialChecked(ctx context.Context, d *net.Dialer, network, address string, allowed func(netip.Addr) error) (c net.Conn, err error) {
	if p == nil {
		return d.DialContext(ctx, network, address)
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("the port of %s: %w", address, err)
	}
	ip, literal := netip.ParseAddr(host)
	found := []netip.Addr{ip}
	if literal != nil {
		if found, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil && !p.resolves {
			return nil, err
		}
	}
	named := p.resolves && literal != nil && p.Carries(host, netip.Addr{}, uint16(port))
	if p.Is(address) {
		return nil, errSelf
	}
	var tried []netip.Addr
	for _, a := range found {
		a = a.Unmap()
		bad := allowed(a)
		if p.Has(a) {
			bad = errSelf
		}
		switch {
		case bad == nil:
			tried = append(tried, a)
			named = named && p.Carries(host, a, uint16(port))
		case named:
			return nil, bad
		default:
			err = bad
		}
	}
	if named {
		return p.tunnel(ctx, address)
	}
	for _, a := range tried[:min(len(tried), addressesTried)] {
		to := netip.AddrPortFrom(a, uint16(port)).String()
		if p.Carries(host, a, uint16(port)) {
			c, err = p.tunnel(ctx, to)
		} else {
			c, err = d.DialContext(ctx, network, to)
		}
		if err == nil {
			return c, nil
		}
	}
	return nil, err
}

// tunnel is Dial with the type that a transport wants.
func (p *Proxy) tunnel(ctx context.Context, to string) (net.Conn, error) {
	c, err := p.Dial(ctx, to)
	if err != nil {
		return nil, err // and no connection that is nil
	}
	return c, nil
}
