package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/egress"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/hostnet"
	"github.com/dozehq/doze/internal/intercept"
)

// proxyAddress is where every sandbox finds the proxy.
var proxyAddress = netip.AddrPortFrom(hostnet.ProxyIP, hostnet.ProxyPort).String()

// openEgress listens to what sandboxes send out. It serves nobody yet: new connections
// wait.
func (h *Host) openEgress(ctx context.Context) error {
	opened, err := openSecrets(filepath.Join(h.o.Data, EgressFile), intercept.Defaults{GuestReferences: h.o.GuestReferences, Unmasked: h.o.Unmasked})
	if err != nil {
		return err
	}
	h.secrets = opened
	o := egress.Options{
		Interceptor: opened,
		Pool:        hostnet.Names, Resolver: h.o.Resolver, Denied: h.denied, Private: len(h.o.Opened) > 0,
		Upstream: upstream(h.o.DNS), Through: h.o.Through,
		Closed: h.o.Egress == EgressClosed, Decided: h.o.Metrics.Decided,
		Refused: func(g egress.Guest, message string) { h.node.Remark(g.UID, message) },
		Meter:   h.traffic.of,
		Barred:  func(g egress.Guest) string { return h.o.Quotas.Barred(g.Workspace) },
	}
	var errs [4]error
	o.Redirected, errs[0] = h.net.Listen(ctx, hostnet.RedirectPort)
	o.Proxy, errs[1] = h.net.Listen(ctx, hostnet.ProxyPort)
	o.Names, errs[2] = h.net.Listen(ctx, hostnet.NamePort)
	o.Questions, errs[3] = h.net.ListenPacket(ctx, hostnet.NamePort)
	heard, err := h.net.Echoes()
	if err == nil {
		o.Echoes = echoes{heard}
		o.ICMP, err = icmp.ListenPacket("ip4:icmp", netip.IPv4Unspecified().String())
	}
	if err := errors.Join(errors.Join(errs[:]...), err); err != nil {
		return fmt.Errorf("listen to sandboxes: %w", err)
	}
	if err := onlyAnswers(o.ICMP); err != nil {
		return err
	}
	h.egress = egress.New(o)
	if h.refusals, err = h.net.Watch(); err != nil {
		return err
	}
	return nil
}

// onlyAnswers has the kernel hold back all messages but answers to echo requests.
func onlyAnswers(c *icmp.PacketConn) error {
	var f ipv4.ICMPFilter
	f.SetAll(true)
	f.Accept(ipv4.ICMPTypeEchoReply)
	if err := c.IPv4PacketConn().SetICMPFilter(&f); err != nil {
		return fmt.Errorf("hear of answers to echo requests: %w", err)
	}
	return nil
}

// echoes are the echo requests of sandboxes, as their egress knows them.
type echoes struct{ heard *hostnet.Echoes }

// Run implements [egress.Echoes].
func (e echoes) Run(ctx context.Context, asked func(egress.Echo)) {
	e.heard.Run(ctx, func(q hostnet.Echo) {
		asked(egress.Echo{Sandbox: q.Slot.IP, To: q.To, ID: q.ID, Seq: q.Seq, Data: q.Data})
	})
}

// Answer implements [egress.Echoes].
func (e echoes) Answer(q egress.Echo) error {
	return e.heard.Answer(q.Sandbox, hostnet.Echo{To: q.To, ID: q.ID, Seq: q.Seq, Data: q.Data})
}

// Close implements [egress.Echoes].
func (e echoes) Close() error { return e.heard.Close() }

// upstream answers questions about records that are no addresses.
func upstream(server string) egress.Servers {
	if server == "" {
		return nil
	}
	return egress.Servers{server}
}

// watchRefusals writes down what the filter refuses, and what it lets past the
// proxy, until ctx ends.
func (h *Host) watchRefusals(ctx context.Context) error {
	h.refusals.Run(ctx, func(n hostnet.Note) {
		h.egress.Note(n.Slot.IP, egress.Packet{Protocol: n.Protocol, To: n.To, Passed: n.Passed, Omitted: n.Omitted})
	})
	return nil
}

// denied reports whether no sandbox may reach an address. It denies addresses that are
// not public, unless the operator opened their network. It denies those of this machine
// and broadcast addresses of its networks in any case. The source from may be invalid. If
// the kernel gives no answer, every address is denied.
func (h *Host) denied(from, to netip.Addr) bool {
	opened := slices.ContainsFunc(h.o.Opened, func(p netip.Prefix) bool { return p.Contains(to) })
	if !opened && hostnet.NotPublic(to) {
		return true
	}
	local, err := hostnet.Local(from, to)
	if err != nil {
		slog.Error("nobody knows whether an address is this machine's: it is refused to sandboxes", "err", err)
	}
	return local || err != nil
}

// admit has the network of an order obeyed for the slot of a machine. The policy
// is there before the way is.
func (h *Host) admit(id string, o fleet.Order) error {
	slot, ok := h.net.Slot(id)
	if !ok {
		return doze.Errorf(doze.NotFound, "there is no lease %s", id)
	}
	if o.Network == nil {
		err := errors.Join(h.net.Admit(id, hostnet.Closed), h.net.Join(id, ""), h.net.Datagrams(id, netip.Addr{}))
		h.egress.Forget(slot.IP)
		h.secrets.forget(slot.IP)
		return err
	}
	who := egress.Guest{UID: o.UID, Workspace: o.Workspace, Name: o.Name, IP: slot.IP}
	if err := h.secrets.admit(who, o.Issuer(), o.Network); err != nil {
		return err
	}
	if err := h.egress.Admit(who, o.Network); err != nil {
		return err
	}
	if err := h.leaveFrom(id, o.Network); err != nil {
		return errors.Join(err, h.net.Admit(id, hostnet.Closed))
	}
	mode := hostnet.Closed
	switch {
	case o.Network.Led(), h.o.Egress == EgressOpen:
		mode = hostnet.Proxied
	case h.o.Egress == EgressDirect:
		mode = hostnet.Direct
	}
	if err := h.net.Join(id, o.Network.Segment); err != nil {
		return err
	}
	return h.net.Admit(id, mode)
}

// leaveFrom has what a sandbox sends leave from its dedicated address, if it has
// one.
func (h *Host) leaveFrom(id string, n *doze.Network) error {
	if err := h.net.Dedicate(id, n.Source()); err != nil {
		return err
	}
	var source netip.Addr
	if h.datagrams() {
		source = n.DatagramSource()
	}
	return h.net.Datagrams(id, source)
}

// release gives an address back.
func (h *Host) release(id string) error {
	if slot, ok := h.net.Slot(id); ok {
		h.egress.Forget(slot.IP)
		h.secrets.forget(slot.IP)
	}
	return h.net.Release(id)
}

// traffic has one meter for each workspace, which counts for all its sandboxes.
type traffic struct {
	quotas Quotas
	mu     sync.Mutex
	all    map[string]*egress.Traffic // guarded by mu; by workspace
}

// of returns the meter of a sandbox's workspace.
func (t *traffic) of(g egress.Guest) *egress.Traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.all[g.Workspace]
	if m == nil {
		m = new(egress.Traffic)
		t.all[g.Workspace] = m
		t.quotas.Meter(g.Workspace, func() uint64 { return m.Sent.Load() + m.Received.Load() })
	}
	return m
}

// resolvers are the servers of the DNS that sandboxes ask. They stay right for a
// sandbox under every later setting. In the mode Proxied, every question is redirected
// to the proxy. The proxy always answers, if only that the name does not exist.
func (h *Host) resolvers() ([]netip.Addr, error) {
	if h.o.Egress == EgressDirect {
		public, err := h.net.Resolvers()
		if err != nil || len(public) > 0 {
			return public, err
		}
		slog.Warn("sandboxes without network rules can resolve no names: /etc/resolv.conf has no public name server")
	}
	return []netip.Addr{hostnet.ProxyIP}, nil
}

// datagrams reports whether UDP can leave from dedicated addresses.
func (h *Host) datagrams() bool { return h.o.Egress != EgressClosed && h.o.EgressLink != "" }
