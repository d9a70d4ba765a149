package node

import (
	"context"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// rules are what the network of a box obeys. A lock of its own guards them.
type rules struct {
	leaseFor func(ctx context.Context, id string) (machine.Link, error)
	admitTo  func(id string, o fleet.Order) error

	mu    sync.Mutex  // held while a network is put in force
	order fleet.Order // guarded by mu; its network is nil before control says what it is
}

func newRules(o fleet.Order, lease func(context.Context, string) (machine.Link, error), admit func(string, fleet.Order) error) *rules {
	return &rules{leaseFor: lease, admitTo: admit, order: o}
}

// lease leases the network of a machine and has the rules of the sandbox
// obeyed there, before the machine runs.
func (r *rules) lease(ctx context.Context, machineID string) (machine.Link, error) {
	link, err := r.leaseFor(ctx, machineID)
	if err != nil {
		return link, err
	}
	return link, r.admit(machineID)
}

// admit has the rules of the sandbox obeyed for one of its machines.
func (r *rules) admit(machineID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admitTo(machineID, r.order)
}

// set replaces the rules, for the next admit.
func (r *rules) set(network *doze.Network) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order.Network = network
}

// SetNetwork implements [fleet.Node]. It waits for nothing that the sandbox is
// doing. A machine that has no network now gets the rules with its network.
func (n *Node) SetNetwork(_ context.Context, uid string, network *doze.Network) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	b.rules.set(network)
	err := b.rules.admit(n.machineOf(b))
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	return err
}
