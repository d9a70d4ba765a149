package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The router has no way out, so ping has none either. The kernel tells of each echo request
// of a [Proxied] sandbox and drops it. The reader of [Echoes] may ask in its place, and give
// the sandbox the answer.

// An Echo is an echo request of ICMP, as RFC 792 has it.
type Echo struct {
	Slot    Slot // of the sandbox that sent it
	To      netip.Addr
	ID, Seq uint16
	Data    []byte
}

const (
	// EchoMost is how many bytes of data a request may have: one packet's.
	EchoMost = 1472
	// echoRate and echoBurst bound how many requests of one link are told of in a second.
	// All others are refused, as other protocols are.
	echoRate, echoBurst = 20, 40
	// echoGroup is where they are told.
	echoGroup = 2
	// echoLength is how much of a packet is told: the longest header of IPv4, that of ICMP, and
	// the data.
	echoLength = 60 + echoHeader + EchoMost
	echoHeader = 8
	// ttlLeast is what a request must have left. With less, somebody looks for the routers on
	// the way, and we would hide them.
	ttlLeast = 32
	// Types of ICMP.
	typeEchoReply, typeEcho = 0, 8
)

// echoSet are the links of which a request was told of late.
var echoSet = &nftables.Set{Name: "echoes", KeyType: nftables.TypeIFName, Dynamic: true, HasTimeout: true, Size: slotsMax}

var (
	echoLimit = &expr.Limit{Type: expr.LimitTypePkts, Rate: echoRate, Unit: expr.LimitTimeSecond, Burst: echoBurst}
	// echoLog tells at once, and does not wait for more.
	echoLog = &expr.Log{
		Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_QTHRESHOLD,
		Group: echoGroup, Snaplen: echoLength, QThreshold: 1,
	}
	// isEcho matches echo requests.
	isEcho = append(protocol(unix.IPPROTO_ICMP),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{typeEcho}},
	)
)

// echoes adds to a chain how echo requests are told of.
func (t *table) echoes(c *nftables.Chain) {
	t.rule(c, fromAny(Proxied), isIPv4, isEcho, perLink(echoSet, noteTimeout*time.Second, echoLimit), []expr.Any{echoLog}, drop)
}

// Echoes are the echo requests of all sandboxes of a network.
type Echoes struct {
	net   *Net
	conn  *netlink.Conn
	raw   int // in the router
	close func() error
}

// Echoes begins to hear of echo requests. Nobody else may do so for the same network.
func (n *Net) Echoes() (*Echoes, error) {
	conn, err := awaitLog(n.router.ns, echoGroup, echoLength)
	if err != nil {
		return nil, fmt.Errorf("hear of echo requests: %w", err)
	}
	e := &Echoes{net: n, conn: conn}
	if err := n.router.ns.do(func() (err error) {
		e.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("answer echo requests: %w", err), conn.Close())
	}
	e.close = sync.OnceValue(func() error { return errors.Join(conn.Close(), unix.Close(e.raw)) })
	return e, nil
}

// Close ends what Echoes began. Nobody may call Answer after that.
func (e *Echoes) Close() error { return e.close() }

// Run tells of each request until ctx ends.
func (e *Echoes) Run(ctx context.Context, asked func(Echo)) {
	hear(ctx, e.conn, "echo requests of sandboxes are not answered", func(packets [][]byte) {
		for _, attributes := range packets {
			if echo, ok := e.read(attributes); ok {
				asked(echo)
			}
		}
	})
}

// read reads a message. It may be about a sandbox that is gone meanwhile.
func (e *Echoes) read(attributes []byte) (echo Echo, ok bool) {
	from, packet, _ := e.net.packet(attributes)
	if from == nil {
		return echo, false
	}
	source, echo, ok := parseEcho(packet)
	echo.Slot = from.slot
	return echo, ok && source == from.slot.IP // or the answer would be another sandbox's
}

// parseEcho reads a packet of IPv4 that is a whole echo request.
func parseEcho(packet []byte) (from netip.Addr, echo Echo, ok bool) {
	const (
		shortest, unit     = 20, 4
		length, fragment   = 2, 6
		ttl, number        = 8, 9
		moreOrOffset       = 1<<14 - 1
		idOffset, seqStart = 4, 6
	)
	if len(packet) < shortest || packet[0]>>4 != 4 || packet[number] != unix.IPPROTO_ICMP || packet[ttl] < ttlLeast {
		return from, echo, false
	}
	header, all := int(packet[0]&0xf)*unit, int(binary.BigEndian.Uint16(packet[length:]))
	if header < shortest || all < header+echoHeader || all > len(packet) || binary.BigEndian.Uint16(packet[fragment:])&moreOrOffset != 0 {
		return from, echo, false
	}
	message := packet[header:all]
	if message[0] != typeEcho || message[1] != 0 || checksum(message) != 0 || len(message) > echoHeader+EchoMost {
		return from, echo, false
	}
	echo = Echo{
		To: netip.AddrFrom4([4]byte(packet[destinationOffset:])),
		ID: binary.BigEndian.Uint16(message[idOffset:]), Seq: binary.BigEndian.Uint16(message[seqStart:]),
		Data: append([]byte{}, message[echoHeader:]...),
	}
	return netip.AddrFrom4([4]byte(packet[sourceOffset:])), echo, true
}

// Answer gives a sandbox, by its address, the answer to an echo request.
func (e *Echoes) Answer(sandbox netip.Addr, echo Echo) error {
	if !ofSandbox(sandbox) || !echo.To.Is4() || len(echo.Data) > EchoMost {
		return fmt.Errorf("no answer of %v with %d bytes to %v", echo.To, len(echo.Data), sandbox)
	}
	if err := unix.Sendto(e.raw, reply(sandbox, echo), 0, &unix.SockaddrInet4{Addr: sandbox.As4()}); err != nil {
		return fmt.Errorf("answer an echo request: %w", err)
	}
	return nil
}

// reply is the packet that answers a request.
func reply(sandbox netip.Addr, echo Echo) []byte {
	b := header4(unix.IPPROTO_ICMP, echoHeader+len(echo.Data), echo.To, sandbox)
	b = append(b, typeEchoReply, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, echo.ID), echo.Seq)
	b = append(b, echo.Data...)
	const sumOffset = 2
	binary.BigEndian.PutUint16(b[headerLen+sumOffset:], checksum(b[headerLen:]))
	return b
}
