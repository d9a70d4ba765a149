package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// rules are what the network of a box obeys. A lock of its own guards them.
type rules struct {
	leaseFor func(ctx context.Context, id string) (machine.Link, error)
	admitTo  func(id string, o fleet.Order) error

	mu    sync.Mutex  // held while a network is put in force
	order fleet.Order // guarded by mu; its network is nil before control says what it is

	informing turn         // held while the agent is told of variables
	known     atomic.Value // string: the variables that the agent has, as joined makes it; nil if that is not known
}

// joined makes one value of a list of variables.
func joined(env []string) string { return strings.Join(env, "\x00") }

// told takes note of the variables that the agent has.
func (r *rules) told(env []string) { r.known.Store(joined(env)) }

// informed reports whether the agent has these variables.
func (r *rules) informed(env []string) bool { return r.known.Load() == joined(env) }

func newRules(o fleet.Order, lease func(context.Context, string) (machine.Link, error), admit func(string, fleet.Order) error) *rules {
	return &rules{leaseFor: lease, admitTo: admit, order: o, informing: newTurn()}
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

// network are the rules in force; nil before control says what they are.
func (r *rules) network() *doze.Network {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.order.Network
}

// inform tells the agent of a machine that is awake which variables follow from the
// rules in force, unless it has them. They are for processes that start from now on.
func (b *Box) inform(ctx context.Context, agent agentapi.Client) error {
	if err := b.rules.informing.take(ctx); err != nil {
		return err
	}
	defer b.rules.informing.leave()
	network := b.rules.network()
	if network == nil {
		return nil // control says it before anything is reached
	}
	env := b.n.networkEnvironment(network)
	if b.rules.informed(env) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err := agent.SetVariables(ctx, agentapi.Variables{Env: env})
	if err != nil && !agentapi.Refused(err) { // one that refuses is too old, and stays as it is
		return fmt.Errorf("tell the agent its variables: %w", err)
	}
	b.rules.told(env)
	return nil
}

// informLater is inform where nothing else fails with it: the next wake tries again.
func (b *Box) informLater(ctx context.Context, agent agentapi.Client) {
	if err := b.inform(ctx, agent); err != nil {
		slog.Warn("processes have the proxy variables of before", "sandbox", b.order.UID, "err", err)
	}
}

// SetNetwork implements [fleet.Node]. It waits for nothing that the sandbox is
// doing. A machine that has no network now gets the rules with its network. One that
// sleeps gets the variables with its next wake.
func (n *Node) SetNetwork(ctx context.Context, uid string, network *doze.Network) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	return b.setNetwork(ctx, network)
}

// Egress implements [fleet.Node].
func (n *Node) Egress(_ context.Context, uid string) (doze.EgressSummary, error) {
	if n.box(uid) == nil {
		return doze.EgressSummary{Destinations: []doze.EgressDestination{}}, nil
	}
	return n.Options.Egress(uid), nil
}

// setNetwork is SetNetwork of a box.
func (b *Box) setNetwork(ctx context.Context, network *doze.Network) error {
	b.rules.set(network)
	err := b.rules.admit(b.n.machineOf(b))
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	if err == nil && b.phase() == doze.Running {
		b.informLater(ctx, b.agent())
	}
	return err
}
