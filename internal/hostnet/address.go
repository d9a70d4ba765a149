package hostnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
)

// added is what we added to an interface of the machine. The file is written
// before an address is added, and after one was removed.
type added struct {
	Link      string       `json:"link"`
	Addresses []netip.Addr `json:"addresses"`
}

// Dedicate makes sure that the machine has an address as long as the lease of id
// wants it, instead of the one that it wanted before; an invalid one is none.
// Addresses that the machine has anyway are left alone. If it cannot have it, the
// lease wants none.
func (n *Net) Dedicate(id string, a netip.Addr) error {
	n.addresses.Lock()
	defer n.addresses.Unlock()
	if n.dedicated[id] == a {
		return nil
	}
	delete(n.dedicated, id)
	if a.IsValid() {
		if err := n.addAddress(a); err != nil {
			return doze.Wrap(err, doze.Unavailable, "the address %s cannot be added to this host: its operator has to look at --egress-interface", a)
		}
		n.dedicated[id] = a
	}
	return n.dropUnwanted()
}

// SweepAddresses removes the addresses that an earlier process added and that no
// lease wants. Until it is called they stay, since who wants them is not known.
func (n *Net) SweepAddresses() error {
	n.addresses.Lock()
	defer n.addresses.Unlock()
	n.swept = true
	return n.dropUnwanted()
}

// dropUnwanted removes what we added and nobody wants.
// Preconditions: addresses is held.
func (n *Net) dropUnwanted() error {
	if !n.swept {
		return nil
	}
	wanted := slices.Collect(maps.Values(n.dedicated))
	for _, a := range slices.Clone(n.added.Addresses) {
		if slices.Contains(wanted, a) {
			continue
		}
		if err := n.removeAddress(a); err != nil {
			return err
		}
	}
	return nil
}

// addAddress adds an address to the interface, unless the machine has it.
// Preconditions: addresses is held.
func (n *Net) addAddress(a netip.Addr) error {
	h, err := netlinkIn(n.machine)
	if err != nil {
		return err
	}
	defer h.Close()
	all, err := whole(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list the machine's addresses: %w", err)
	}
	if slices.ContainsFunc(all, func(has netlink.Addr) bool { return has.IP.Equal(a.AsSlice()) }) {
		return nil
	}
	link, err := h.LinkByName(n.o.EgressLink)
	if err != nil {
		return fmt.Errorf("find the interface %q: %w", n.o.EgressLink, err)
	}
	if !slices.Contains(n.added.Addresses, a) {
		n.added.Addresses = append(n.added.Addresses, a)
		if err := n.noteAddresses(); err != nil {
			return err
		}
	}
	return h.AddrAdd(link, alone(a))
}

// removeAddress takes an address back that we added. It may be gone already, and
// so may its interface.
// Preconditions: addresses is held.
func (n *Net) removeAddress(a netip.Addr) error {
	h, err := netlinkIn(n.machine)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(n.added.Link)
	if err == nil {
		err = h.AddrDel(link, alone(a))
	}
	if err != nil && !notFound(err) && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove the address %s from %s: %w", a, n.added.Link, err)
	}
	n.added.Addresses = slices.DeleteFunc(n.added.Addresses, func(x netip.Addr) bool { return x == a })
	return n.noteAddresses()
}

// alone is an address without a network: the interface has that already.
func alone(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
}

func (n *Net) noteAddresses() error {
	b, err := json.Marshal(n.added)
	if err != nil {
		return err
	}
	// A loss of power takes the addresses too: an older file would do, an empty one
	// would not.
	return durable.Replace(filepath.Join(n.dir, addressFile), b, 0o600)
}

// loadAddresses reads what an earlier process added. Of another interface, we
// take it back.
func (n *Net) loadAddresses() error {
	b, err := os.ReadFile(filepath.Join(n.dir, addressFile))
	if err == nil {
		err = json.Unmarshal(b, &n.added)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if n.added.Link != n.o.EgressLink {
		err = n.removeAddresses()
		n.added.Link = n.o.EgressLink
		return err
	}
	return nil
}

// removeAddresses takes everything back.
func (n *Net) removeAddresses() error {
	n.addresses.Lock()
	defer n.addresses.Unlock()
	var errs []error
	for _, a := range slices.Clone(n.added.Addresses) {
		errs = append(errs, n.removeAddress(a))
	}
	return errors.Join(errs...)
}
