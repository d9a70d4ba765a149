package serve

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
)

// outside accepts connections from other hosts alone.
type outside struct {
	net.Listener

	local func() ([]net.Addr, error) // the addresses of this system
}

// Outside returns ln without connections that begin in this system: it closes them and
// reads nothing of them. It is for machines whose processes must not ask their agent for
// anything, whatever address they choose for their end.
func Outside(ln net.Listener) net.Listener { return outside{ln, net.InterfaceAddrs} }

// Accept implements [net.Listener].
func (l outside) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || !l.inside(c) {
			return c, err
		}
		slog.Warn("a connection from inside is refused", "from", c.RemoteAddr().String())
		_ = c.Close() // nothing was read or written
	}
}

// inside reports whether a connection begins in this system. An end that is not known
// counts as inside.
func (l outside) inside(c net.Conn) bool {
	from, to := address(c.RemoteAddr()), address(c.LocalAddr())
	if !from.IsValid() || !to.IsValid() || from.IsLoopback() || to.IsLoopback() || from == to {
		return true
	}
	own, err := l.local()
	return err != nil || slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		if !ok {
			return true // an address of a kind that nobody knows
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		return !ok || ip.Unmap() == from
	})
}

// address is that of one end of a connection, without its zone.
func address(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}
