package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A Note is about a packet of a sandbox that the filter let go nowhere, or about the
// first one of a flow that goes past the proxy.
type Note struct {
	Slot     Slot   // of the link that it came from, whatever source it claims
	Protocol string // one of [Protocols]
	To       netip.AddrPort
	Passed   bool   // out of the router: the machine itself may refuse it still
	Omitted  uint64 // about so many of the same link there is no note; since the one before
}

// Protocols are what refused packets are counted by.
var Protocols = []string{"tcp", "udp", "icmp", other}

// other are all protocols that have no number here.
const other = "other"

var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP}

const (
	// noteRate and noteBurst bound how many refused packets of one link the kernel
	// tells in a second, and as many flows. So a flood costs us nothing and hides no
	// refusal of other links. All are counted.
	noteRate, noteBurst = 10, 100
	// noteTimeout is how long the kernel remembers how many there were, in seconds.
	noteTimeout = 60
	// noteGroup is where they are told. The namespace is ours, and so are all groups.
	noteGroup = 1
	// noteLength is how much of a packet is told: the longest header of IPv4, and
	// that of TCP up to its flags.
	noteLength = 60 + 14
)

// Chains that count what they get, tell of it, and give it back.
const (
	noteChain = "note" // what is refused
	passChain = "pass" // the first packets of flows that pass
)

// What counters count. The kernel begins with the second one when it tells of a
// packet that passes.
const (
	countRefused = "refused"
	countPassed  = "passed"
)

var (
	// notedSet and passedSet are the links of which a packet was told of late.
	notedSet  = &nftables.Set{Name: "noted", KeyType: nftables.TypeIFName, Dynamic: true, HasTimeout: true, Size: slotsMax}
	passedSet = &nftables.Set{Name: "passed", KeyType: nftables.TypeIFName, Dynamic: true, HasTimeout: true, Size: slotsMax}
	// omittedSet counts for each link what was not told.
	omittedSet = &nftables.Set{Name: "omitted", KeyType: nftables.TypeIFName, Dynamic: true, Size: slotsMax}
)

// count has a chain count what it gets, and returns it.
func (t *table) count(chain, what string) *nftables.Chain {
	c := t.conn.AddChain(&nftables.Chain{Table: t.Table, Name: chain})
	for _, name := range Protocols {
		counter := counterOf(t.Table, what, name)
		t.conn.AddObj(counter)
		t.rule(c, named(name), []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter.Name}})
	}
	return c
}

// note adds the chains that tell.
func (t *table) note() error {
	if err := t.sets(notedSet, passedSet, omittedSet); err != nil {
		return err
	}
	t.tell(t.count(noteChain, countRefused), notedSet, noteLog)
	t.tell(t.count(passChain, countPassed), passedSet, passLog)
	return nil
}

// tell adds to a chain how packets are told of, up to the limit for each link of a
// set, and counted from there on.
func (t *table) tell(c *nftables.Chain, s *nftables.Set, log *expr.Log) {
	t.rule(c, isIPv4, perLink(s, noteTimeout*time.Second, noteLimit), []expr.Any{log, &expr.Verdict{Kind: expr.VerdictReturn}})
	t.rule(c, perLink(omittedSet, 0, &expr.Counter{}))
}

// perLink keeps an expression for each link that packets come from.
func perLink(s *nftables.Set, timeout time.Duration, e expr.Any) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Dynset{SrcRegKey: 1, SetName: s.Name, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: timeout, Exprs: []expr.Any{e}},
	}
}

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// Parts of the rules that tell of packets.
var (
	noteLimit = &expr.Limit{Type: expr.LimitTypePkts, Rate: noteRate, Unit: expr.LimitTimeSecond, Burst: noteBurst}
	noteLog   = &expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: noteGroup, Snaplen: noteLength}
	passLog   = &expr.Log{Key: noteLog.Key | 1<<unix.NFTA_LOG_PREFIX, Group: noteGroup, Snaplen: noteLength, Data: []byte(countPassed)}
)

// refuse adds to a chain how packets are refused that match, and notes them.
func (t *table) refuse(c *nftables.Chain, how []expr.Any, match ...[]expr.Any) {
	t.rule(c, append(match, jump(noteChain))...)
	t.rule(c, append(match, how)...)
}

// named matches one of [Protocols].
func named(name string) []expr.Any {
	if number, ok := protocols[name]; ok {
		return protocol(number)
	}
	parts := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}}
	for _, number := range protocols {
		parts = append(parts, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{number}})
	}
	return parts
}

// counterOf is the counter of packets of a protocol.
func counterOf(t *nftables.Table, what, name string) *nftables.NamedObj {
	return &nftables.NamedObj{Table: t, Name: what + "_" + name, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}}
}

// Counts are packets that the filters have counted since [Open], by protocol.
type Counts struct {
	Refused map[string]uint64
	Passed  map[string]uint64 // the first ones of flows that go past the proxy
}

// Counts returns what the filters have counted. On an error, what it could not read
// is missing: a part of a sum would be none.
func (n *Net) Counts() (c Counts, err error) {
	router, err := countsOf(&n.router.changer, ownTable)
	if err != nil {
		return c, fmt.Errorf("count packets of sandboxes: %w", err)
	}
	c.Passed = router[countPassed]
	if n.uplink != "" { // for what is meant for the machine itself
		machine, err := countsOf(&n.outside, n.outsideTable())
		if err != nil {
			return c, fmt.Errorf("count packets of sandboxes to the machine: %w", err)
		}
		for name, packets := range machine[countRefused] {
			router[countRefused][name] += packets
		}
	}
	c.Refused = router[countRefused]
	return c, nil
}

// countsOf asks the kernel for all counters of a table, by what they count and by
// protocol.
func countsOf(c *changer, t *nftables.Table) (counts map[string]map[string]uint64, err error) {
	counts = map[string]map[string]uint64{countRefused: {}, countPassed: {}}
	err = c.change(func(conn *nftables.Conn) error {
		objects, err := conn.GetNamedObjects(t)
		if err == nil && len(objects) == 0 {
			err = fmt.Errorf("the table %s has no counters", t.Name)
		}
		for _, o := range objects {
			named, ok := o.(*nftables.NamedObj)
			if !ok {
				continue
			}
			what, name, _ := strings.Cut(named.Name, "_")
			if counter, ok := named.Obj.(*expr.Counter); ok && counts[what] != nil {
				counts[what][name] = counter.Packets
			}
		}
		return err
	})
	return counts, err
}

// omitted is how many packets of each link were not told of since [Open].
func (n *Net) omitted() (map[string]uint64, error) {
	all := map[string]uint64{}
	err := n.router.changer.change(func(conn *nftables.Conn) error {
		elements, err := conn.GetSetElements(inRouter(omittedSet))
		for _, e := range elements {
			if e.Counter != nil {
				all[strings.TrimRight(string(e.Key), "\x00")] = e.Counter.Packets
			}
		}
		return err
	})
	return all, err
}

// omitNothing begins anew for the next sandbox that gets the link of a slot.
func (r *router) omitNothing(s Slot) error {
	link := []nftables.SetElement{{Key: linkName(s.hostLink())}}
	return r.change(func(conn *nftables.Conn) error { return without(conn, inRouter(omittedSet), link) })
}

// A Watch is told by the kernel of packets that were refused and of flows that go
// past the proxy, up to a number in a second for each link.
type Watch struct {
	net  *Net
	conn *netlink.Conn
}

const (
	// handoverTime is how long the kernel may take to end the watch of a process
	// that was killed, on a busy machine.
	handoverTime  = 10 * time.Second
	handoverPause = 10 * time.Millisecond
)

// Watch begins to watch. Nobody else may watch the same network.
func (n *Net) Watch() (*Watch, error) {
	conn, err := awaitLog(n.router.ns, noteGroup, noteLength)
	if err != nil {
		return nil, fmt.Errorf("watch refused packets: %w", err)
	}
	return &Watch{net: n, conn: conn}, nil
}

// awaitLog is bindLog, which first waits until the process that has the group has ended.
func awaitLog(ns netns, group uint16, length uint32) (*netlink.Conn, error) {
	for deadline := time.Now().Add(handoverTime); ; time.Sleep(handoverPause) {
		conn, err := bindLog(ns, group, length)
		if !errors.Is(err, unix.EPERM) || time.Now().After(deadline) { // EPERM: somebody else has it
			return conn, err
		}
	}
}

// bindLog opens a connection to which the kernel tells of packets of a namespace, as
// rules with the group say. It gets at most so many bytes of each packet.
// What does not fit into its queue is lost, and counted all the same.
func bindLog(ns netns, group uint16, length uint32) (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.fd()})
	if err != nil {
		return nil, err
	}
	err = conn.SetOption(netlink.NoENOBUFS, true)
	for _, a := range []netlink.Attribute{
		{Type: nfulaCfgCmd, Data: []byte{nfulnlCfgCmdBind}},
		{Type: nfulaCfgMode, Data: append(binary.BigEndian.AppendUint32(nil, length), nfulnlCopyPacket, 0)},
	} {
		err = errors.Join(err, configure(conn, group, a))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the kernel needs nfnetlink_log: %w", err), conn.Close())
	}
	return conn, nil
}

// Messages of the kernel about logged packets, and their attributes: see
// linux/netfilter/nfnetlink_log.h.
const (
	nfulnlMsgPacket  = unix.NFNL_SUBSYS_ULOG << 8
	nfulnlMsgConfig  = nfulnlMsgPacket | 1
	nfulnlCfgCmdBind = 1
	nfulnlCopyPacket = 2
	nfulaCfgCmd      = 1
	nfulaCfgMode     = 2
	nfulaIndev       = 4
	nfulaPayload     = 9
	nfulaPrefix      = 10
	nfHeaderLen      = 4 // family, version and group, before the attributes
)

func configure(conn *netlink.Conn, group uint16, a netlink.Attribute) error {
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{a})
	if err != nil {
		return err
	}
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: nfulnlMsgConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, group), attributes...),
	})
	return err
}

// Close ends the watch, if Run is not called.
func (w *Watch) Close() error { return w.conn.Close() }

// Run tells what the kernel does until ctx ends, and closes the watch.
func (w *Watch) Run(ctx context.Context, told func(Note)) {
	hear(ctx, w.conn, "refused packets are counted, and not written down", func(packets [][]byte) {
		omitted, err := w.net.omitted()
		if err != nil {
			slog.Error("how many packets are not written down is not known", "err", err)
		}
		for _, attributes := range packets {
			if note, ok := w.read(attributes, omitted); ok {
				told(note)
			}
		}
	})
}

// hear tells of packets that the kernel tells of, by their attributes, until ctx ends. It
// closes the connection then: closing it again is no error. If the connection fails before,
// hear says what is lost.
func hear(ctx context.Context, conn *netlink.Conn, lost string, told func(packets [][]byte)) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // nothing is lost
	defer stop()
	for {
		messages, err := conn.Receive()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			slog.Error("the kernel tells of no packets any more", "lost", lost, "err", err)
			<-ctx.Done()
			return
		}
		var packets [][]byte
		for _, m := range messages {
			if m.Header.Type == nfulnlMsgPacket && len(m.Data) >= nfHeaderLen {
				packets = append(packets, m.Data[nfHeaderLen:])
			}
		}
		told(packets)
	}
}

// read reads a message. It may be about a sandbox that is gone meanwhile.
func (w *Watch) read(attributes []byte, omitted map[string]uint64) (note Note, ok bool) {
	from, packet, prefix := w.net.packet(attributes)
	if from == nil || !begins(packet) {
		return note, false
	}
	if note.Protocol, note.To, ok = destination(packet); !ok {
		return note, false
	}
	note.Passed = prefix == countPassed
	note.Slot, note.Omitted = from.slot, from.omit(omitted[from.slot.hostLink()])
	return note, true
}

// packet returns what the attributes of a message say: the lease whose link a packet came
// by, which is nil if there is none, its beginning, and the prefix of the rule.
func (n *Net) packet(attributes []byte) (from *lease, packet []byte, prefix string) {
	all, err := netlink.UnmarshalAttributes(attributes)
	if err != nil {
		return nil, nil, ""
	}
	for _, a := range all {
		switch a.Type {
		case nfulaIndev:
			if len(a.Data) == 4 {
				from = n.leaseOf(int(binary.BigEndian.Uint32(a.Data)))
			}
		case nfulaPayload:
			packet = a.Data
		case nfulaPrefix:
			prefix = strings.TrimRight(string(a.Data), "\x00")
		}
	}
	return from, packet, prefix
}

// omit is how many packets were not told of since the note before, out of those
// that the link has had.
func (l *lease) omit(all uint64) uint64 {
	since := max(all, l.omitted.Load()) // all is 0 if it is not known
	return since - l.omitted.Swap(since)
}

// leaseOf is the lease whose link has a number in the router.
func (n *Net) leaseOf(link int) *lease {
	l, err := n.router.handle.LinkByIndex(link)
	if err != nil {
		return nil
	}
	number, ours := strings.CutPrefix(l.Attrs().Name, hostLinkPrefix)
	index, err := parseIndex(number)
	if !ours || err != nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.used[index]
}

// begins reports whether a packet may begin something: all but a packet of TCP that
// goes on with a connection. Of connections that the platform made to a sandbox, the
// kernel may have forgotten one while its end inside still sends probes.
func begins(packet []byte) bool {
	const (
		number, header = 9, 20
		flags          = 13 // in the header of TCP
		syn, ack       = 0x02, 0x10
	)
	if len(packet) < header || packet[number] != unix.IPPROTO_TCP {
		return true
	}
	at := int(packet[0]&0xf)*4 + flags
	return len(packet) <= at || packet[at]&(syn|ack) == syn
}

// destination is where the beginning of a packet says that it goes. Without a
// port, that is 0.
func destination(packet []byte) (protocol string, to netip.AddrPort, ok bool) {
	const (
		shortest, unit   = 20, 4
		fragment, number = 6, 9
		fragmentOffset   = 1<<13 - 1
		portOffset       = 2
	)
	if len(packet) < shortest || packet[0]>>4 != 4 {
		return "", to, false
	}
	protocol = other
	for name, n := range protocols {
		if packet[number] == n {
			protocol = name
		}
	}
	var port uint16
	header := int(packet[0]&0xf) * unit
	if hasPorts := protocol == "tcp" || protocol == "udp"; hasPorts && header >= shortest && len(packet) >= header+portOffset+2 &&
		binary.BigEndian.Uint16(packet[fragment:])&fragmentOffset == 0 {
		port = binary.BigEndian.Uint16(packet[header+portOffset:])
	}
	return protocol, netip.AddrPortFrom(netip.AddrFrom4([4]byte(packet[destinationOffset:])), port), true
}
