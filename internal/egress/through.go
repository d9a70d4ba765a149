package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/outproxy"
)

// tunnel connects to d through the proxy of this host, at one of its addresses. With an
// invalid one, the proxy chooses. The address is checked here, since the
// dialer sees that of the proxy alone.
func (e *Egress) tunnel(ctx context.Context, g *guest, d Destination, a netip.Addr) (*net.TCPConn, error) {
	host := d.Name
	switch source, err := g.rules().Source(d, a); {
	case err != nil:
		return nil, err
	case source.IsValid():
		return nil, broken(ruleNoSource) // what passes the proxy leaves from the proxy
	case a.IsValid() && e.Denied(netip.Addr{}, a):
		return nil, broken(rulePrivate)
	case a.IsValid():
		host = a.String()
	}
	c, err := e.Through.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(int(d.Port))))
	return c, unproxied(d, err)
}

// unproxied gives an error of the proxy the words that a sandbox may read.
func unproxied(d Destination, err error) error {
	if refused, is := errors.AsType[*outproxy.Error](err); is {
		return doze.Wrap(err, doze.Unavailable, "%s cannot be reached: %s", d.host(), refused.Why)
	}
	return err
}

// findNamed is find for a name that the proxy of this host resolves. What this host knows of
// the name counts all the same: with one address that no sandbox may reach, the name is
// refused. So names of the operator's own network stay closed. A name whose addresses are on
// this side of the proxy, or an exception, is dialled from here.
func (e *Egress) findNamed(ctx context.Context, g *guest, d Destination) (*found, error) {
	if e.Through.Is(net.JoinHostPort(d.Name, strconv.Itoa(int(d.Port)))) {
		return nil, broken(rulePrivate)
	}
	brief, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addresses, err := e.lookUp(brief, g, d.Name)
	if err != nil {
		addresses = nil
		g.remember(d.Name, nil, time.Now()) // the next connection does not wait for the DNS
	}
	if slices.ContainsFunc(addresses, func(a netip.Addr) bool { return e.Denied(netip.Addr{}, a.Unmap()) }) {
		return nil, broken(rulePrivate)
	}
	here := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return e.Through.Carries(d.Name, a.Unmap(), d.Port) })
	switch {
	case len(here) > 0:
		return &found{to: d, addresses: tried(here)}, nil
	case !e.Through.Carries(d.Name, netip.Addr{}, d.Port):
		return nil, doze.Wrap(err, doze.Unavailable, "the name %s cannot be resolved", d.Name)
	}
	return &found{to: d, named: true}, nil
}

// openProxy connects to the proxy itself, for requests of a sandbox.
func (e *Egress) openProxy(ctx context.Context, g *guest) (net.Conn, error) {
	if why := g.claim(); why != "" {
		return nil, doze.Wrap(crowded(why), doze.Exhausted, "the sandbox has too many connections: %s", why)
	}
	up, err := e.Through.Open(ctx)
	if err == nil {
		err = g.hold(up)
	}
	if err != nil {
		g.waive()
		return nil, err
	}
	return g.counted(ctx, up), nil
}

// requests carries requests in clear of a sandbox. A proxy that resolves names gets them as
// they are: many make tunnels to the ports of TLS alone.
type requests struct {
	*http.Transport

	egress *Egress
	guest  *guest
}

// throughKey is where the context of a request has the URL of the proxy that it goes to.
type throughKey struct{}

// chosen is that proxy, or nil.
func chosen(r *http.Request) (*url.URL, error) {
	u, _ := r.Context().Value(throughKey{}).(*url.URL)
	return u, nil
}

// RoundTrip implements [http.RoundTripper].
func (t *requests) RoundTrip(r *http.Request) (*http.Response, error) {
	through := t.egress.Through
	to, ok := authority(r.URL.Host, httpPort)
	if !ok || to.Name == "" || !through.Resolves() {
		return t.Transport.RoundTrip(r)
	}
	at, err := t.egress.find(r.Context(), t.guest, to)
	if err != nil {
		return nil, err
	}
	if at.named {
		if _, err := t.guest.rules().Source(to, netip.Addr{}); err != nil {
			return nil, err
		}
		r = r.WithContext(context.WithValue(r.Context(), throughKey{}, through.URL()))
	}
	resp, err := t.Transport.RoundTrip(r)
	if err == nil && at.named && resp.StatusCode == http.StatusProxyAuthRequired {
		_ = resp.Body.Close() // what the proxy wrote is not for the sandbox, which has no credentials
		err = through.Refused(resp.StatusCode, r.URL.Host)
	}
	if err != nil {
		return nil, unproxied(to, err)
	}
	return resp, nil
}
