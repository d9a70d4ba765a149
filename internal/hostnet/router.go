package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A router is the namespace that has the host ends of all links. It has no
// other way out, unless the operator opens one.
type router struct {
	changer
	handle      *netlink.Handle
	generations *generations
	guard       *guard
}

// openRouter finds the router of dir, or makes it. Its filter is set anew in
// both cases.
func openRouter(dir string, o Options) (_ *router, err error) {
	path := filepath.Join(dir, routerFile)
	settings := closedRouter
	if o.uplinked() {
		settings = append(append([]sysctl{}, closedRouter...), sysctl{"ipv4/ip_forward", "1"})
	}
	r := &router{}
	r.ns, err = openNetns(path)
	switch {
	case err == nil:
		if err := r.ns.do(func() (err error) {
			r.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
			return errors.Join(err, set(settings))
		}); err != nil {
			return nil, errors.Join(fmt.Errorf("adopt the router: %w", err), r.close())
		}
	case errors.Is(err, fs.ErrNotExist):
		if err := dropNetns(path); err != nil {
			return nil, fmt.Errorf("make the router: %w", err)
		}
		if r.ns, r.handle, err = newNetns(path, settings); err != nil {
			return nil, fmt.Errorf("make the router: %w", err)
		}
	default:
		return nil, fmt.Errorf("open the router: %w", err)
	}
	if err := r.filter(o); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.generations, err = countGenerations(r.ns, func() error { return r.shut(o) }); err == nil {
		r.guard, err = guardOf(r.ns, r.generations.check)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// dumpTries is how often a list is asked for that somebody changed meanwhile.
const dumpTries = 10

// whole returns a list of the kernel that nobody changed while it was told.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func (r *router) close() error {
	if r.handle != nil {
		r.handle.Close()
	}
	err := errors.Join(r.guard.close(), r.changer.close())
	if r.generations != nil {
		err = errors.Join(err, r.generations.close())
	}
	return errors.Join(err, r.ns.Close())
}

// routerTable is the filter of the router.
const routerTable = "doze"

// filter lets in what answers a connection of ours and what is led to our own
// ports, and forwards nothing but what the options open, to the public internet. No
// link has a way out at first: see [Net.Admit] and [Net.Datagrams].
func (r *router) filter(o Options) error {
	making.Lock()
	defer making.Unlock()
	t, err := newTable(r.ns, routerTable)
	if err != nil {
		return err
	}
	denied, err := t.denied()
	if err != nil {
		return err
	}
	input := t.chain("input", nftables.ChainHookInput, nftables.ChainPolicyDrop)
	t.rule(input, isIPv4, established, accept)
	forward := t.chain("forward", nftables.ChainHookForward, nftables.ChainPolicyDrop)
	resolvers, err := o.resolvers()
	if err != nil {
		return err
	}
	if err := t.egressRules(input, forward, denied, resolvers, o.Opened); err != nil {
		return err
	}
	if o.uplinked() {
		t.rule(forward, isIPv4, from(uplinkInner), answers, accept)
		t.rule(forward, fromAny(Proxied), standsIn, toNone(denied), to(uplinkInner), protocol(unix.IPPROTO_UDP), accept)
		source := t.sourceNAT() // which has the first packet of each flow
		t.rule(source, to(uplinkInner), jump(passChain))
		t.rule(source, to(uplinkInner), standsIn, snat)
		if o.OpenEgress {
			t.rule(forward, fromAny(Direct), toNone(denied), to(uplinkInner), accept)
			t.rule(source, to(uplinkInner), masquerade)
		}
	}
	// What was open before its sandbox went another way.
	t.refuse(forward, drop, fromSandbox)
	return t.apply()
}

// wire makes the namespace of a slot and the link to it. On an error nothing
// is left.
func (r *router) wire(s Slot) (err error) {
	ns, guest, err := newNetns(s.Path, noIPv6)
	if err != nil {
		return err
	}
	defer func() {
		guest.Close()
		err = errors.Join(err, ns.Close())
		if err != nil {
			err = errors.Join(err, r.unwire(s))
		}
	}()
	link := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{
			Name: s.hostLink(), MTU: s.MTU, HardwareAddr: s.GatewayMAC, Flags: net.FlagUp, TxQLen: -1,
		},
		PeerName: s.Link, PeerHardwareAddr: s.MAC, PeerNamespace: netlink.NsFd(ns.fd()),
	}
	if err := r.handle.LinkAdd(link); err != nil {
		return fmt.Errorf("make a link: %w", err)
	}
	host, err := r.handle.LinkByName(s.hostLink())
	if err != nil {
		return fmt.Errorf("find the link: %w", err)
	}
	if err := r.handle.AddrAdd(host, &netlink.Addr{IPNet: ipNet(s.Gateway)}); err != nil {
		return fmt.Errorf("set the gateway address: %w", err)
	}
	// No packet waits for an answer to "who has": a sandbox that sleeps gives
	// none for seconds, and one that lies would give a wrong one.
	if err := r.handle.NeighSet(&netlink.Neigh{
		LinkIndex: host.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: s.IP.AsSlice(), HardwareAddr: s.MAC,
	}); err != nil {
		return fmt.Errorf("set the neighbour: %w", err)
	}
	peer, err := guest.LinkByName(s.Link)
	if err != nil {
		return fmt.Errorf("find the sandbox's end: %w", err)
	}
	if err := guest.LinkSetUp(peer); err != nil {
		return fmt.Errorf("start the sandbox's end: %w", err)
	}
	return nil
}

// wired reports whether all of a slot is there. A lease is written down after
// its slot is complete, and forgotten before the slot is taken apart, so to
// find both ends is enough.
func (r *router) wired(s Slot) bool {
	ns, err := openNetns(s.Path)
	if err != nil {
		return false
	}
	defer func() { _ = ns.Close() }()
	_, err = r.handle.LinkByName(s.hostLink())
	return err == nil
}

// unwire takes a slot apart, as far as it is there.
func (r *router) unwire(s Slot) error {
	return errors.Join(r.unlink(s.hostLink()), dropNetns(s.Path))
}

func (r *router) unlink(name string) error { return unlink(r.handle, name) }

// unlink removes a link, and with it the other end. It may be gone already.
func unlink(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkDel(link)
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("remove the link %s: %w", name, err)
	}
	return nil
}

func notFound(err error) bool {
	_, ok := errors.AsType[netlink.LinkNotFoundError](err)
	return ok || errors.Is(err, unix.ENODEV)
}
