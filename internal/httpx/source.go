package httpx

import (
	"net/http"
	"net/netip"
)

// ipv6Source is the prefix that one customer of a provider has: who counts
// single IPv6 addresses counts nothing.
const ipv6Source = 64

// Source returns the address that r came from. It is the zero address if r.RemoteAddr
// is none, as in tests. The caller that sets RemoteAddr accounts for proxies in front
// of the platform.
func Source(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// SourceNetwork returns what limits per source are counted by: an IPv4 address,
// or the /64 of an IPv6 address. It is the zero prefix for the zero address.
func SourceNetwork(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = ipv6Source
	}
	network, err := a.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return network
}
