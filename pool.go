package doze

import (
	"iter"
	"net/netip"
	"slices"
)

// AddressPoolMax bounds the addresses of a pool: each one that is used is an
// address of an interface of the host.
const AddressPoolMax = 1 << 12

// AddressPool has the addresses that egress IPs get: networks of version 4 that
// do not overlap. Every address of a network is given out.
type AddressPool []netip.Prefix

// ParseAddressPool reads addresses and networks in CIDR form. What is wrong is
// Invalid.
func ParseAddressPool(all []string) (AddressPool, error) {
	var pool AddressPool
	total := 0
	for _, s := range all {
		network, err := ParseNetwork(s)
		switch {
		case err != nil:
			return nil, err
		case !network.Addr().IsGlobalUnicast():
			return nil, Errorf(Invalid, "%s cannot be the address of a host", s)
		case slices.ContainsFunc(pool, network.Overlaps):
			return nil, Errorf(Invalid, "%s overlaps another one", s)
		}
		if total += 1 << min(32-network.Bits(), 31); total > AddressPoolMax {
			return nil, Errorf(Invalid, "at most %d addresses are allowed", AddressPoolMax)
		}
		pool = append(pool, network)
	}
	return pool, nil
}

// ParseNetwork reads an address of version 4, or a network in CIDR form. What is
// wrong is Invalid.
func ParseNetwork(s string) (netip.Prefix, error) {
	network, err := parseNetwork(s)
	if err == nil && !network.Addr().Is4() {
		err = Errorf(Invalid, "%s must be of IPv4", clip(s))
	}
	return network, err
}

// parseNetwork is ParseNetwork for both versions of IP.
func parseNetwork(s string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(s)
	if err != nil {
		var one netip.Addr
		if one, err = netip.ParseAddr(s); err == nil && one.Zone() == "" {
			network, err = one.Prefix(one.BitLen())
		}
	}
	switch {
	case err != nil || !network.IsValid():
		return netip.Prefix{}, Errorf(Invalid, "%q must be an address or a network, such as 203.0.113.7 or 203.0.113.0/28", clip(s))
	case network != network.Masked():
		return netip.Prefix{}, Errorf(Invalid, "%s has bits behind its network: write %s, or the address alone", s, network.Masked())
	}
	return network, nil
}

// PrivateNetworksMax bounds the list of networks that an operator opens: each is an
// element of a set of the packet filter.
const PrivateNetworksMax = 256

// unopenable are networks that no operator can open for sandboxes. They have the
// machine's own and link-local addresses, with the metadata services of clouds. They also
// have the addresses that stand for names, and those of groups.
var unopenable = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// ParsePrivateNetworks reads the networks that an operator opens for all sandboxes,
// although they are not public: addresses and networks in CIDR form. What is wrong is
// Invalid.
func ParsePrivateNetworks(all []string) (networks []netip.Prefix, err error) {
	if len(all) > PrivateNetworksMax {
		return nil, Errorf(Invalid, "at most %d networks are allowed", PrivateNetworksMax)
	}
	for _, s := range all {
		network, err := ParseNetwork(s)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(unopenable, network.Overlaps); i >= 0 {
			return nil, Errorf(Invalid, "%s overlaps %s, which stays closed to sandboxes", s, unopenable[i])
		}
		if i := slices.IndexFunc(networks, network.Overlaps); i >= 0 {
			return nil, Errorf(Invalid, "%s overlaps %s: name one of them", s, networks[i])
		}
		networks = append(networks, network)
	}
	return networks, nil
}

// All yields every address, in the order of the pool.
func (p AddressPool) All() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, network := range p {
			for a := network.Addr(); network.Contains(a); a = a.Next() {
				if !yield(a) {
					return
				}
			}
		}
	}
}
