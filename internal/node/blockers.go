package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/machine"
)

// Checkpoint blockers are what processes inside changed of the network, and a
// checkpoint of a driver without [machine.Traits.Network] leaves out: changes to the
// network of the sandbox, where they may make some, see [machine.Config], and network
// namespaces, which every process may make. A sandbox with a blocker sleeps in memory
// only, and is not copied. Its agent names them while it is awake.

// blockersText is the public text of blockers.
func blockersText(by agentapi.Blockers) string {
	var all []string
	if by.Links {
		all = append(all, "its network links, addresses and routes")
	}
	if by.Rules {
		all = append(all, "its filter rules")
	}
	if by.Namespaces {
		all = append(all, "network namespaces that its processes have made")
	}
	return strings.Join(all, " and ")
}

// unknownBlockers is the same when the agent does not say.
const unknownBlockers = "what it may have changed of its network"

// intend asks the agent what it intends, without waking its sandbox.
func (b *Box) intend(ctx context.Context) (in agentapi.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	return b.agent().State(ctx)
}

// changesNetwork reports whether processes in b may change the network of the
// sandbox, which the engine saves without a word. It does not save namespaces.
func (b *Box) changesNetwork() bool { return b.order.IPTables || b.order.Tun }

// blocked returns what a checkpoint of b would leave out, as far as that is known.
// Preconditions: mu is held.
func (b *Box) blocked() string {
	if b.n.Driver.Traits().Network {
		return ""
	}
	return b.blockers
}

// blockedAt is blocked for a machine that may have a checkpoint: then nothing is
// left out. Preconditions: mu is held.
func (b *Box) blockedAt(m machine.Machine) string {
	if m.Tier() > machine.Paused {
		return ""
	}
	return b.blocked()
}

// learn takes note of what the agent of an awake machine said, or of why it said
// nothing. Preconditions: mu is held.
func (b *Box) learn(m machine.Machine, in agentapi.State, err error) {
	was := b.blockers
	if b.blockers = blockersText(in.Blockers); err != nil && b.changesNetwork() {
		b.blockers = unknownBlockers
	}
	if now := b.blockedAt(m); now != "" && now != was {
		b.note("while it sleeps it stays in memory, and a restart of the host loses it: a checkpoint would leave out " + now)
	}
}

// keepBlockers writes down what a checkpoint of a machine that is about to fall
// asleep would leave out: the next process cannot ask, and must not make one.
// Preconditions: the turn is held.
func (b *Box) keepBlockers(m machine.Machine) error {
	b.mu.Lock()
	was, blocked := b.noted, b.blockedAt(m)
	b.mu.Unlock()
	if blocked == was {
		return nil
	}
	b.noted = blocked
	if err := b.n.keep(b, doze.Standby, ""); err != nil {
		b.noted = was
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// survey returns what blockedAt does, and asks the agent of a machine that is awake.
// Preconditions: the turn is held.
func (n *Node) survey(b *Box, m machine.Machine) (blocked string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Tier() == machine.Awake && b.phase != doze.Suspending { // where it was asked just now
		b.mu.Unlock()
		in, err := b.intend(b.life)
		if err != nil {
			slog.Warn("an agent does not say what a checkpoint would leave out", "sandbox", b.order.UID, "err", err)
		}
		b.mu.Lock()
		b.learn(m, in, err)
	}
	return b.blockedAt(m)
}

// copyable is a Conflict if a copy of the machine would leave something out.
// Preconditions: the turn is held.
func (n *Node) copyable(b *Box, m machine.Machine) error {
	if blocked := n.survey(b, m); blocked != "" {
		return doze.Errorf(doze.Conflict, "a snapshot would leave out %s: put the network inside back as it was, then try again", blocked)
	}
	return nil
}
