package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flowsMax bounds the connections that one change of a subnet ends at once. Of more,
// each ends when one of its sides sends something.
const flowsMax = 4096

// endFlows ends the TCP connections between a sandbox and others that it does not reach
// any more. The filter resets the sender of a packet on such a connection. So each side
// gets a packet that does not fit, which it must answer, even if it has nothing to
// send.
func (r *router) endFlows(s Slot) error {
	return r.ns.do(func() error {
		flows, err := whole(func() ([]*netlink.ConntrackFlow, error) {
			return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		})
		if err != nil {
			return fmt.Errorf("list connections between sandboxes: %w", err)
		}
		raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return fmt.Errorf("end connections between sandboxes: %w", err)
		}
		ended := 0
		for _, f := range flows {
			from, ok := netip.AddrFromSlice(f.Forward.SrcIP.To4())
			to, is := netip.AddrFromSlice(f.Forward.DstIP.To4())
			if !ok || !is || f.Forward.Protocol != unix.IPPROTO_TCP || from != s.IP && to != s.IP || !ofSandbox(from) || !ofSandbox(to) || ended == flowsMax {
				continue
			}
			ended++
			one, other := netip.AddrPortFrom(from, f.Forward.SrcPort), netip.AddrPortFrom(to, f.Forward.DstPort)
			err = errors.Join(err, question(raw, one, other), question(raw, other, one))
		}
		return errors.Join(err, unix.Close(raw))
	})
}

// ofSandbox reports whether an address is one of a sandbox, and not its gateway's.
func ofSandbox(a netip.Addr) bool { return plan.Contains(a) && a.As4()[3]%slotStep == 2 }

// question sends an empty segment of TCP that is out of any window.
func question(raw int, from, to netip.AddrPort) error {
	const (
		segment = 20
		ack     = 0x10
	)
	b := header4(unix.IPPROTO_TCP, segment, from.Addr(), to.Addr())
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, from.Port()), to.Port())
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, segment/4<<4, ack, 0, 0, 0, 0, 0, 0)
	const sumOffset = 16
	summed := append(slices.Clone(b[sourceOffset:]), 0, unix.IPPROTO_TCP, 0, segment) // with the addresses
	binary.BigEndian.PutUint16(b[headerLen+sumOffset:], checksum(summed))
	return unix.Sendto(raw, b, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
}

const (
	headerLen = 20 // of IPv4, without options
	lifetime  = 64 // of packets that we make
)

// header4 is the header of an IPv4 packet with so many bytes behind it. The kernel adds it
// up.
func header4(protocol byte, length int, from, to netip.Addr) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(headerLen+length)) //nolint:gosec // G115: packets of ours are short
	b = append(b, 0, 0, 0x40, 0, lifetime, protocol, 0, 0)
	return append(append(b, from.AsSlice()...), to.AsSlice()...)
}

// checksum is that of RFC 1071. Over a message that has its own, it is 0.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
