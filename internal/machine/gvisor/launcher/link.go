package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/dozehq/doze/internal/machine"
)

// packetBuffer is the size of gVisor's own packet sockets
// (runsc/sandbox/network.go).
const packetBuffer = 4 << 20

// ethPAll is ETH_P_ALL in network byte order, as a packet socket binds it.
const ethPAll = 0x0300

// inNetNS runs do in a network namespace, on a thread that is thrown away: no
// other goroutine ever runs on it.
func inNetNS(path string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		done <- func() error {
			ns, err := os.Open(path)
			if err != nil {
				return fmt.Errorf("open network namespace: %w", err)
			}
			defer func() { _ = ns.Close() }()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace: %w", err)
			}
			return do()
		}()
	}()
	return <-done
}

// noLoopback6 says that lo has no ::1, in the namespace of the process that opens it. No link
// of a sandbox but lo speaks IPv6. A host without IPv6 does not have it.
const noLoopback6 = "/proc/sys/net/ipv6/conf/lo/disable_ipv6"

// loopback is lo of a machine that is restored: as the engine copies it from
// where dress has set it up, so that it is the same whichever way a machine starts.
func loopback() boot.LoopbackLink {
	lo := boot.DefaultLoopbackLink
	if _, err := os.Stat(noLoopback6); errors.Is(err, fs.ErrNotExist) {
		lo.Addresses, lo.Routes = lo.Addresses[:1], lo.Routes[:1] // those of IPv4
	}
	return lo
}

// dress puts address, neighbour and route on the guest's end of a link, from
// where the engine copies them when it starts a machine and takes them off.
func dress(l machine.Link) error {
	return inNetNS(l.NetNS, func() error {
		link, err := netlink.LinkByName(l.Name)
		if err != nil {
			return fmt.Errorf("find %s: %w", l.Name, err)
		}
		mac, err := net.ParseMAC(l.GatewayMAC)
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo: %w", err)
		}
		if err := os.WriteFile(noLoopback6, []byte("0"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) { // sysctl: it exists
			return fmt.Errorf("set lo up for IPv6: %w", err)
		}
		if err := netlink.LinkSetUp(loopback); err != nil { // the engine copies links that are up
			return fmt.Errorf("set lo up: %w", err)
		}
		index, gateway := link.Attrs().Index, net.ParseIP(l.Gateway)
		own := &net.IPNet{IP: net.ParseIP(l.IP), Mask: net.CIDRMask(l.PrefixLen, 32)}
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: own}); err != nil {
			return fmt.Errorf("set the address: %w", err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", l.Name, err)
		}
		if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: mac}); err != nil {
			return fmt.Errorf("set the neighbour: %w", err)
		}
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: index, Gw: gateway}); err != nil {
			return fmt.Errorf("set the route: %w", err)
		}
		return nil
	})
}

// linkArgs describes a link to a machine that is restored: an open packet socket on the
// guest's end. That end has no address of its own, because the host would answer for it
// (with a reset) next to the guest.
func linkArgs(l machine.Link) (*boot.CreateLinksAndRoutesArgs, error) {
	mac, err := net.ParseMAC(l.MAC)
	if err != nil {
		return nil, fmt.Errorf("address of the link: %w", err)
	}
	gatewayMAC, err := net.ParseMAC(l.GatewayMAC)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	socket, gsoMax, err := packetSocket(l)
	if err != nil {
		return nil, err
	}
	own, gateway := net.ParseIP(l.IP).To4(), net.ParseIP(l.Gateway).To4()
	mask, everywhere := net.CIDRMask(l.PrefixLen, 32), net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	args := &boot.CreateLinksAndRoutesArgs{
		LoopbackLinks: []boot.LoopbackLink{loopback()},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: l.Name, MTU: l.MTU, LinkAddress: mac, NumChannels: 1,
			Addresses:         []boot.IPWithPrefix{{Address: own, PrefixLen: l.PrefixLen}},
			Routes:            []boot.Route{{Destination: net.IPNet{IP: own.Mask(mask), Mask: mask}}},
			Neighbors:         []boot.Neighbor{{IP: gateway, HardwareAddr: gatewayMAC}},
			RXChecksumOffload: true, QDisc: config.QDiscFIFO, GSOMaxSize: gsoMax,
		}},
		Defaultv4Gateway: boot.DefaultRoute{Name: l.Name, Route: boot.Route{Destination: everywhere, Gateway: gateway}},
		IsRestore:        true,
	}
	args.Files = []*os.File{socket}
	return args, nil
}

// packetSocket opens a packet socket as gVisor does when it starts a machine:
// large segments are cut by the host. It returns their size too.
func packetSocket(l machine.Link) (socket *os.File, gsoMax uint32, err error) {
	err = inNetNS(l.NetNS, func() error {
		link, err := netlink.LinkByName(l.Name)
		if err != nil {
			return fmt.Errorf("find %s: %w", l.Name, err)
		}
		gsoMax = link.Attrs().GSOMaxSize
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		err = errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: link.Attrs().Index}),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetBuffer),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, packetBuffer),
		)
		if err != nil {
			return errors.Join(fmt.Errorf("set up a packet socket: %w", err), unix.Close(fd))
		}
		socket = os.NewFile(uintptr(fd), "packet")
		return nil
	})
	return socket, gsoMax, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // the engine has its own copy
	}
}
