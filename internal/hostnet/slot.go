package hostnet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
)

// The address plan: one private network, cut into a /30 for each sandbox. The
// addresses are seen by the router and the sandboxes of one data directory
// only, so they may equal any that the machine's own network has.
const (
	planBase = 10<<24 | 88<<16 // 10.88.0.0/14
	planBits = 14
	slotBits = 30
	slotStep = 1 << (32 - slotBits)
	slotsMax = 1 << (slotBits - planBits)
	mtu      = 1500
)

// plan is that network.
var plan = netip.PrefixFrom(netip.AddrFrom4([4]byte{planBase >> 24, planBase >> 16 & 0xff, planBase >> 8 & 0xff, planBase & 0xff}), planBits)

// guestLink is what the sandbox calls its end of the link.
const guestLink = "eth0"

// Slot is the place of one sandbox in the network. It is the same for as long
// as the lease lasts, over restarts of the machine too.
type Slot struct {
	ID    string
	Index int
	// Path is the file of the sandbox's network namespace. Link is in it, up,
	// and has no address: the engine's own network stack owns the address, and
	// a second owner would answer its connections with resets.
	Path      string
	Link      string
	MAC       net.HardwareAddr
	IP        netip.Addr
	PrefixLen int
	// Gateway is the router's end of the link, and all that the sandbox can
	// send packets to. What becomes of them, its [Mode] says.
	Gateway    netip.Addr
	GatewayMAC net.HardwareAddr
	MTU        int
}

func newSlot(dir, id string, index int) Slot {
	gateway, ip := slotAddr(index, 1), slotAddr(index, 2)
	return Slot{
		ID: id, Index: index,
		Path: filepath.Join(dir, slotDir, strconv.Itoa(index)),
		Link: guestLink,
		MAC:  macOf(ip), IP: ip, PrefixLen: slotBits,
		Gateway: gateway, GatewayMAC: macOf(gateway),
		MTU: mtu,
	}
}

// hostLink is what the router calls its end of the link.
func (s Slot) hostLink() string { return hostLinkPrefix + strconv.Itoa(s.Index) }

const hostLinkPrefix = "sandbox"

func slotAddr(index, host int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(planBase+index*slotStep+host)) //nolint:gosec // G115: index is below slotsMax, so the sum is below 2^32
	return netip.AddrFrom4(b)
}

// macOf gives each address a locally administered MAC of its own, so that the
// neighbour tables on both sides can be filled in and never change.
func macOf(ip netip.Addr) net.HardwareAddr {
	b := ip.As4()
	return net.HardwareAddr{0x02, 0xd0, b[0], b[1], b[2], b[3]}
}

func ipNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(slotBits, 32)}
}

// parseIndex reads the name of a slot's file.
func parseIndex(name string) (int, error) {
	i, err := strconv.Atoi(name)
	if err != nil || i < 0 || i >= slotsMax || strconv.Itoa(i) != name {
		return 0, fmt.Errorf("%.40q is not the number of a slot", name)
	}
	return i, nil
}
