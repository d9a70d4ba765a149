package ingress

import (
	"net/netip"
	"slices"
	"strings"
)

const forwardedFor = "X-Forwarded-For"

// hopsMax bounds the entries that are read. Nobody has as many proxies of
// their own; what is left of them is the client's word.
const hopsMax = 32

// origin is where a request is from that a trusted proxy sent: the rightmost address in
// the fields that is no trusted proxy. Addresses to the left of that one are claims of
// a stranger. It is the zero address if there is none.
func (in *Ingress) origin(fields []string) (from netip.Addr) {
	hops := 0
	for _, field := range slices.Backward(fields) {
		for field != "" {
			last := field
			i := strings.LastIndexByte(field, ',')
			if field = field[:max(i, 0)]; i >= 0 {
				last = last[i+1:]
			}
			a, ok := hop(last)
			if !ok {
				return from // nobody knows what is behind it
			}
			from = a
			if hops++; !in.trusts(a) || hops == hopsMax {
				return from
			}
		}
	}
	return from
}

// hop reads one entry: an address, which may have a port.
func hop(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	if err != nil {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		a = at.Addr()
	}
	return a.Unmap().WithZone(""), true
}
