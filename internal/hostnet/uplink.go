package hostnet

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
)

// The uplink is a link between the router and the machine. Its addresses are
// link-local ones, which no other network of the operator is made of.
var (
	uplinkOuterIP = netip.MustParseAddr("169.254.88.253")
	uplinkInnerIP = netip.MustParseAddr("169.254.88.254")
)

// uplinkInner is what the router calls its end.
const uplinkInner = "uplink"

// changes is what we did to the namespace of the machine. The file is written
// before the first of them, and removed after the last was taken back.
type changes struct {
	Name    string `json:"name"`    // of the link and of the nftables table
	Forward string `json:"forward"` // net.ipv4.ip_forward as it was
}

const forwardSysctl = "/proc/sys/net/ipv4/ip_forward"

// openUplink connects the router with the machine. The filters come first:
// there is no moment in which a packet could pass that should not.
func (n *Net) openUplink() (err error) {
	c, err := n.changes()
	if errors.Is(err, fs.ErrNotExist) {
		c, err = n.announce()
	}
	if err != nil {
		return fmt.Errorf("open egress: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open egress: %w", err), n.closeUplink())
		}
	}()
	h, err := netlinkIn(n.machine)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := errors.Join(unlink(h, c.Name), n.router.unlink(uplinkInner)); err != nil {
		return err
	}
	if err := uplinkFree(h); err != nil {
		return err
	}
	n.uplink = c.Name
	if err := n.guardMachine(c.Name); err != nil {
		return err
	}
	if n.guard, err = guardOf(n.machine, n.restore); err != nil {
		return err
	}
	if err := n.linkMachine(h, c.Name); err != nil {
		return err
	}
	return n.machine.do(func() error { return os.WriteFile(forwardSysctl, []byte("1"), 0) })
}

// closeUplink takes back everything in the machine's namespace. It does not
// matter how far an earlier process came.
func (n *Net) closeUplink() error {
	c, err := n.changes()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("close egress: %w", err)
	}
	err = n.guard.close() // which would set it again
	n.guard = nil
	if err != nil {
		return fmt.Errorf("close egress: %w", err)
	}
	h, err := netlinkIn(n.machine)
	if err != nil {
		return fmt.Errorf("close egress: %w", err)
	}
	defer h.Close()
	t, err := newTable(n.machine, c.Name)
	if err != nil {
		return fmt.Errorf("close egress: %w", err)
	}
	t.remove()
	err = errors.Join(
		unlink(h, c.Name),
		n.router.unlink(uplinkInner),
		t.apply(),
		n.machine.do(func() error { return os.WriteFile(forwardSysctl, []byte(c.Forward), 0) }),
	)
	if err != nil {
		return fmt.Errorf("close egress: %w", err)
	}
	return os.Remove(filepath.Join(n.dir, uplinkFile))
}

func (n *Net) changes() (c changes, err error) {
	b, err := os.ReadFile(filepath.Join(n.dir, uplinkFile))
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(b, &c)
}

// announce writes down what is about to change.
func (n *Net) announce() (c changes, err error) {
	var unique [4]byte
	rand.Read(unique[:])
	c.Name = fmt.Sprintf("doze%x", unique) // a link has at most 15 letters
	err = n.machine.do(func() error {
		b, err := os.ReadFile(forwardSysctl)
		c.Forward = strings.TrimSpace(string(b))
		return err
	})
	if err != nil {
		return c, err
	}
	b, err := json.Marshal(c)
	if err != nil {
		return c, err
	}
	return c, durable.Replace(filepath.Join(n.dir, uplinkFile), b, 0o600) // an empty one would stop the next start
}

func netlinkIn(ns netns) (h *netlink.Handle, err error) {
	err = ns.do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return h, err
}

// uplinkFree refuses to take addresses that the machine has already.
func uplinkFree(h *netlink.Handle) error {
	addrs, err := whole(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list the machine's addresses: %w", err)
	}
	ours := ipNet(uplinkOuterIP)
	for _, a := range addrs {
		if ours.Contains(a.IP) || a.Mask != nil && a.Contains(ours.IP) && ones(a.Mask) >= slotBits {
			return doze.Errorf(doze.Conflict, "the machine has the address %s, which the uplink needs: another installation may have opened egress", a.IPNet)
		}
	}
	return nil
}

func ones(m net.IPMask) int {
	n, _ := m.Size()
	return n
}

// guardMachine sets the filter around the uplink. What comes out of it may
// only pass through the machine, and only to the public internet.
// Preconditions: sources is held, or nobody else is about.
func (n *Net) guardMachine(name string) error {
	making.Lock()
	defer making.Unlock()
	t, err := newTable(n.machine, name)
	if err != nil {
		return err
	}
	denied, err := t.denied()
	if err != nil {
		return err
	}
	if err := t.sets(sourceMap); err != nil {
		return err
	}
	for from, s := range n.standIns {
		if err := t.conn.SetAddElements(in(t.Table, sourceMap), []nftables.SetElement{{Key: s.addr.AsSlice(), Val: from.AsSlice()}}); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	machineNote := t.count(noteChain, countRefused) // to tell is the router's: the groups here are the operator's
	t.refuseMachine(name, machineNote)
	input := t.chain("input", nftables.ChainHookInput, nftables.ChainPolicyAccept)
	t.rule(input, from(name), jump(machineNote.Name))
	t.rule(input, from(name), isIPv4, protocol(unix.IPPROTO_TCP), reset) // all addresses of the machine itself
	t.rule(input, from(name), drop)
	forward := t.chain("forward", nftables.ChainHookForward, nftables.ChainPolicyAccept)
	t.rule(forward, from(name), isIPv6, drop)
	t.rule(forward, from(name), toAny(denied), drop)
	t.rule(forward, to(name), isIPv4, answers, accept)
	t.rule(forward, to(name), drop)
	t.rule(forward, from(name), isIPv4, fromAddr(uplinkInnerIP), accept)
	t.rule(forward, from(name), isIPv4, fromStandIn, accept)
	t.rule(forward, from(name), drop)
	source := t.sourceNAT()
	t.rule(source, isIPv4, fromStandIn, snat)
	t.rule(source, isIPv4, fromAddr(uplinkInnerIP), masquerade)
	if err := t.apply(); err != nil {
		return err
	}
	n.guards, err = n.guarded()
	return err
}

// linkMachine makes the link and the router's way out.
func (n *Net) linkMachine(h *netlink.Handle, name string) error {
	outerMAC, innerMAC := macOf(uplinkOuterIP), macOf(uplinkInnerIP)
	err := h.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu, HardwareAddr: outerMAC, TxQLen: -1},
		PeerName:  uplinkInner, PeerHardwareAddr: innerMAC, PeerNamespace: netlink.NsFd(n.router.ns.fd()),
	})
	if err != nil {
		return fmt.Errorf("make the uplink: %w", err)
	}
	if err := n.machine.do(func() error {
		return set([]sysctl{{"ipv6/conf/" + name + "/disable_ipv6", "1"}})
	}); err != nil {
		return err
	}
	for _, end := range []struct {
		h        *netlink.Handle
		link     string
		ip, peer netip.Addr
	}{
		{h, name, uplinkOuterIP, uplinkInnerIP},
		{n.router.handle, uplinkInner, uplinkInnerIP, uplinkOuterIP},
	} {
		link, err := end.h.LinkByName(end.link)
		if err != nil {
			return fmt.Errorf("find the uplink: %w", err)
		}
		err = errors.Join(
			end.h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(end.ip)}),
			end.h.LinkSetUp(link),
			end.h.NeighSet(&netlink.Neigh{
				LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
				IP: end.peer.AsSlice(), HardwareAddr: macOf(end.peer),
			}),
		)
		if err != nil {
			return fmt.Errorf("set up the uplink: %w", err)
		}
	}
	if err := n.router.handle.RouteReplace(&netlink.Route{Gw: uplinkOuterIP.AsSlice()}); err != nil {
		return fmt.Errorf("set the way out: %w", err)
	}
	back := &netlink.Route{Dst: &net.IPNet{IP: standIns.Addr().AsSlice(), Mask: net.CIDRMask(standIns.Bits(), 32)}, Gw: uplinkInnerIP.AsSlice()}
	if err := h.RouteReplace(back); err != nil {
		return fmt.Errorf("set the way back: %w", err)
	}
	return nil
}

// resolversMax is how many name servers the C library reads, too.
const resolversMax = 3

// Resolvers returns the name servers that sandboxes can reach: none while
// egress is closed, and otherwise those of the machine that have a public
// IPv4 address. A machine that only has a private or local one, such as
// 127.0.0.53, needs servers for its sandboxes in its configuration.
func (n *Net) Resolvers() ([]netip.Addr, error) { return n.o.resolvers() }

func (o Options) resolvers() ([]netip.Addr, error) {
	if !o.OpenEgress {
		return nil, nil
	}
	f, err := os.Open(cmp.Or(o.resolvConf, "/etc/resolv.conf"))
	if err != nil {
		return nil, fmt.Errorf("read the name servers: %w", err)
	}
	defer func() { _ = f.Close() }()
	return resolvers(f)
}

func resolvers(conf io.Reader) (all []netip.Addr, err error) {
	lines := bufio.NewScanner(conf)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" || len(all) == resolversMax {
			continue
		}
		a, err := netip.ParseAddr(fields[1])
		if err == nil && a.Is4() && !NotPublic(a) {
			all = append(all, a)
		}
	}
	return all, lines.Err()
}
