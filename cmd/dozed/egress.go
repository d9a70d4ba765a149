package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"

	"doze"
	"doze/internal/egress"
	"doze/internal/fleet"
	"doze/internal/hostnet"
	"doze/internal/quota"
)

// proxyAddress is where every sandbox finds the proxy.
var proxyAddress = netip.AddrPortFrom(hostnet.ProxyIP, hostnet.ProxyPort).String()

// openEgress listens to what sandboxes send out. Nobody is served yet: whoever
// connects waits.
func (p *platform) openEgress(ctx context.Context) error {
	routing, err := newRouting(filepath.Join(p.config.Data, egressFile))
	if err != nil {
		return err
	}
	p.routing = routing
	o := egress.Options{
		Interceptor: routing,
		Pool:        hostnet.Names, Resolver: resolver(p.config.Resolver), Denied: denied,
		Closed: p.config.Egress == egressClosed, Decided: p.metrics.Decided,
		Meter:  p.traffic.of,
		Barred: func(g egress.Guest) string { return p.quotas.Barred(g.Workspace) },
	}
	var errs [4]error
	o.Lane, errs[0] = p.net.Listen(ctx, hostnet.LanePort)
	o.Proxy, errs[1] = p.net.Listen(ctx, hostnet.ProxyPort)
	o.Names, errs[2] = p.net.Listen(ctx, hostnet.NamePort)
	o.Questions, errs[3] = p.net.ListenPacket(ctx, hostnet.NamePort)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("listen to sandboxes: %w", err)
	}
	p.egress = egress.New(o)
	if p.refusals, err = p.net.Watch(); err != nil {
		return err
	}
	return nil
}

// watchRefusals writes down what the filter refuses, and what it lets past the
// proxy, until ctx ends.
func (p *platform) watchRefusals(ctx context.Context) error {
	p.refusals.Run(ctx, func(n hostnet.Note) {
		p.egress.Note(n.Slot.IP, egress.Packet{Protocol: n.Protocol, To: n.To, Passed: n.Passed, Omitted: n.Omitted})
	})
	return nil
}

// denied reports whether no sandbox may reach an address, from an address of this
// machine that may be invalid: it is not public, or this machine itself, or all in
// a network of it. If the kernel does not say, all are denied.
func denied(from, to netip.Addr) bool {
	if hostnet.NotPublic(to) {
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
func (p *platform) admit(id string, o fleet.Order) error {
	slot, ok := p.net.Slot(id)
	if !ok {
		return doze.Errorf(doze.NotFound, "there is no lease %s", id)
	}
	if o.Network == nil {
		err := errors.Join(p.net.Admit(id, hostnet.WayClosed), p.net.Join(id, ""), p.net.Datagrams(id, netip.Addr{}))
		p.egress.Forget(slot.IP)
		p.routing.forget(slot.IP)
		return err
	}
	who := egress.Guest{UID: o.UID, Workspace: o.Workspace, Name: o.Name, IP: slot.IP}
	if err := p.routing.admit(who, o.Issuer(), o.Network); err != nil {
		return err
	}
	if err := p.egress.Admit(who, o.Network); err != nil {
		return err
	}
	if err := p.leaveFrom(id, o.Network); err != nil {
		return errors.Join(err, p.net.Admit(id, hostnet.WayClosed))
	}
	way := hostnet.WayClosed
	switch {
	case o.Network.Led(), p.config.Egress == egressOpen:
		way = hostnet.WayLane
	case p.config.Egress == egressDirect:
		way = hostnet.WayOpen
	}
	if err := p.net.Join(id, o.Network.Segment); err != nil {
		return err
	}
	return p.net.Admit(id, way)
}

// leaveFrom has what a sandbox sends leave from its dedicated address, if it has
// one.
func (p *platform) leaveFrom(id string, n *doze.Network) error {
	if err := p.net.Dedicate(id, n.Source()); err != nil {
		return err
	}
	var source netip.Addr
	if p.config.datagrams() {
		source = n.DatagramSource()
	}
	return p.net.Datagrams(id, source)
}

// release gives an address back.
func (p *platform) release(id string) error {
	if slot, ok := p.net.Slot(id); ok {
		p.egress.Forget(slot.IP)
		p.routing.forget(slot.IP)
	}
	return p.net.Release(id)
}

// traffic has one meter for each workspace, which counts for all its sandboxes.
type traffic struct {
	quotas *quota.Book
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
