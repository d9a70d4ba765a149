package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
)

// space makes a network namespace that lives as a file.
func (h *Host) space(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(h.Dir, "net-"+name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		return unix.Mount(own, path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatal("make a network namespace:", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spaces = append(h.spaces, path)
	return path
}

// onThread runs do on a thread that is thrown away.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- do()
	}()
	return <-done
}

// inside runs do in a network namespace.
func inside(path string, do func() error) error {
	return onThread(func() error {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			return err
		}
		defer func() { _ = ns.Close() }()
		if err := netns.Set(ns); err != nil {
			return err
		}
		return do()
	})
}

// link makes a pair of interfaces between the host's namespace and a new one.
func (h *Host) link(t *testing.T, id string) machine.Link {
	t.Helper()
	n := h.links.Add(1)
	l := machine.Link{
		NetNS: h.space(t, id), Name: "eth0", MTU: 1500, PrefixLen: 30,
		IP: fmt.Sprintf("10.99.%d.2", n), MAC: mac(n, 2).String(),
		Gateway: fmt.Sprintf("10.99.%d.1", n), GatewayMAC: mac(n, 1).String(),
	}
	near, far := mac(n, 1), mac(n, 2)
	err := inside(h.netns, func() error {
		space, err := netns.GetFromPath(l.NetNS)
		if err != nil {
			return err
		}
		defer func() { _ = space.Close() }()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = fmt.Sprintf("m%d", n), near, l.MTU
		pair := &netlink.Veth{
			LinkAttrs: attrs, PeerName: l.Name, PeerHardwareAddr: far, PeerNamespace: netlink.NsFd(space),
		}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		made, err := netlink.LinkByName(attrs.Name)
		if err != nil {
			return err
		}
		index := made.Attrs().Index
		return errors.Join(
			netlink.AddrAdd(made, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(l.Gateway), Mask: net.CIDRMask(l.PrefixLen, 32)}}),
			netlink.LinkSetUp(made),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(l.IP), HardwareAddr: far}),
		)
	})
	if err == nil {
		err = inside(l.NetNS, func() error {
			own, err := netlink.LinkByName(l.Name)
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(own)
		})
	}
	if err != nil {
		t.Fatal("make a link:", err)
	}
	return l
}

// mac is the address of an end of the n-th link.
func mac(n int64, end byte) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, 0, byte(n), end} //nolint:gosec // G115: no test has 256 machines on one host
}

// Dial connects to a port at the far end of a link.
func (h *Host) Dial(ctx context.Context, l machine.Link, port uint16) (conn net.Conn, err error) {
	err = inside(h.netns, func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "tcp4", net.JoinHostPort(l.IP, strconv.Itoa(int(port))))
		return err
	})
	return conn, err
}
