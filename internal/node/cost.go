package node

import (
	"context"
	"errors"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// Cost is what one sandbox takes of the host now.
type Cost struct {
	Phase doze.Phase
	Tier  machine.Tier
	Ready bool // on disk, with a process that waits for the next wake
	machine.Stats
}

// Costs returns what all sandboxes that have a machine take of the host now. One
// that ends meanwhile is left out.
func (n *Node) Costs(ctx context.Context) (all []Cost) {
	for _, b := range n.all() {
		if c, err := costOf(ctx, b); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// A Consumer is one sandbox and what it takes and has done.
type Consumer struct {
	UID, Workspace, Name string
	Cost                 *Cost // nil without a machine
	Usage                doze.Usage
}

// Consumers returns what Costs does of sandboxes, with what each has done. A look at the link
// of each makes it slower.
func (n *Node) Consumers(ctx context.Context) (all []Consumer) {
	for _, b := range n.all() {
		if b.hidden() {
			continue
		}
		c := Consumer{UID: b.order.UID, Workspace: b.order.Workspace, Name: b.order.Name}
		cost, err := costOf(ctx, b)
		if err == nil {
			c.Cost = &cost
		}
		c.Usage = *b.consumption(ctx, cost, err)
		all = append(all, c)
	}
	return all
}

// errNoMachine is what costOf returns for a sandbox that takes nothing.
var errNoMachine = errors.New("it has no machine")

func costOf(ctx context.Context, b *Box) (Cost, error) {
	b.mu.Lock()
	m, phase := b.machine, b.state.Phase()
	b.mu.Unlock()
	if m == nil {
		return Cost{}, errNoMachine
	}
	s, err := b.stats(ctx, m)
	return Cost{Phase: phase, Tier: m.Tier(), Ready: m.Ready(), Stats: s}, err
}

// Cost returns what a sandbox takes of the host now.
func (n *Node) Cost(ctx context.Context, uid string) (machine.Stats, error) {
	b := n.box(uid)
	if b == nil {
		return machine.Stats{}, errUnknown
	}
	c, err := costOf(ctx, b)
	if errors.Is(err, errNoMachine) {
		return machine.Stats{}, nil
	}
	return c.Stats, err
}
