package hostnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// notPublic are the networks that no sandbox may reach, whatever the operator
// opens: private ones, link-local ones with the metadata services of clouds,
// shared and reserved ones.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("240.0.0.0/4"), // and the broadcast address
}

// public6 is what is given out of IPv6. Everything else is closed: addresses of the host
// and of links, unique local ones and groups. So are 64:ff9b::/96 and ::ffff:0:0/96, whose
// addresses have one of IPv4 in them.
var public6 = netip.MustParsePrefix("2000::/3")

// notPublic6 are the networks in public6 that are not public. Those of Teredo and 6to4
// lead to an address of IPv4, which may be any.
var notPublic6 = []netip.Prefix{
	netip.MustParsePrefix("2001::/23"), // of protocols, with Teredo
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), // 6to4
	netip.MustParsePrefix("3fff::/20"), // for documents
}

// making is held while a table is made that has sets: the library numbers those of
// all tables, and does not lock that number.
var making sync.Mutex

// A table is a ruleset in the making. Nothing of it is in force before apply,
// which replaces the whole table in one step.
type table struct {
	conn *nftables.Conn
	*nftables.Table
}

func newTable(in netns, name string) (*table, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(in.fd()))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	t := &table{conn, &nftables.Table{Name: name, Family: nftables.TableFamilyINet}}
	t.remove()
	conn.AddTable(t.Table)
	return t, nil
}

// remove deletes the table if it is there: to add it first makes that certain.
func (t *table) remove() {
	t.conn.AddTable(t.Table)
	t.conn.DelTable(t.Table)
}

func (t *table) apply() error {
	if err := t.conn.Flush(); err != nil {
		return fmt.Errorf("set the packet filter %s: %w", t.Name, err)
	}
	return nil
}

func (t *table) chain(name string, hook *nftables.ChainHook, policy nftables.ChainPolicy) *nftables.Chain {
	return t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: name, Type: nftables.ChainTypeFilter,
		Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
}

// sourceNAT adds the chain in which packets that leave get another source.
func (t *table) sourceNAT() *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	return t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &policy,
	})
}

func (t *table) rule(c *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	t.conn.AddRule(&nftables.Rule{Table: t.Table, Chain: c, Exprs: all})
}

// denied adds the set of networks that nobody may reach.
func (t *table) denied() (*nftables.Set, error) { return t.networks("not_public", notPublic) }

// networks adds a set of networks, which may be empty.
func (t *table) networks(name string, all []netip.Prefix) (*nftables.Set, error) {
	s := &nftables.Set{Table: t.Table, Name: name, KeyType: nftables.TypeIPAddr, Interval: true, Constant: true}
	var elements []nftables.SetElement
	for _, p := range all {
		elements = append(elements, interval(p)...)
	}
	if err := t.conn.AddSet(s, elements); err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return s, nil
}

// interval are the elements of a set that stand for a network.
func interval(p netip.Prefix) []nftables.SetElement {
	first := p.Masked().Addr().As4()
	elements := []nftables.SetElement{{Key: first[:]}}
	// The end of an interval is the first address behind it; behind the last
	// network there is none.
	behind := uint64(binary.BigEndian.Uint32(first[:])) + 1<<(32-p.Bits())
	if behind < 1<<32 {
		elements = append(elements, nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, uint32(behind)), IntervalEnd: true})
	}
	return elements
}

// Parts of rules.
var (
	accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop   = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	// masquerade gives packets the address of the link that they leave by.
	masquerade = []expr.Any{&expr.Masq{}}

	// established are packets of connections that the other side opened, and
	// answers are those and the errors that belong to them.
	established = inState(expr.CtStateBitESTABLISHED)
	answers     = inState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)

	isIPv4 = []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}
	isIPv6 = []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV6}},
	}
)

func inState(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func from(link string) []expr.Any { return onLink(expr.MetaKeyIIFNAME, link) }
func to(link string) []expr.Any   { return onLink(expr.MetaKeyOIFNAME, link) }

func onLink(key expr.MetaKey, link string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: linkName(link)},
	}
}

// linkName is the name of a link as the kernel compares it.
func linkName(link string) []byte {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, link)
	return name
}

// toAddr matches the destination of an IPv4 packet.
func toAddr(a netip.Addr) []expr.Any { return address(destinationOffset, a) }

// fromAddr matches the source of an IPv4 packet.
func fromAddr(a netip.Addr) []expr.Any { return address(sourceOffset, a) }

// Places in the header of an IPv4 packet.
const (
	sourceOffset      = 12
	destinationOffset = 16
	addressLen        = 4
)

func address(offset uint32, a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: addressLen},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}

// toAny matches IPv4 packets whose destination is in a set.
func toAny(s *nftables.Set) []expr.Any { return destinations(s, false) }

// toNone matches IPv4 packets whose destination is not in a set.
func toNone(s *nftables.Set) []expr.Any { return destinations(s, true) }

func destinations(s *nftables.Set, others bool) []expr.Any {
	return append(append([]expr.Any{}, isIPv4...),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destinationOffset, Len: addressLen},
		&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: others},
	)
}
