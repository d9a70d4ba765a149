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

// A checkpoint leaves out what processes inside changed of the network: of that of
// the sandbox, where they may, see [machine.Config], and network namespaces that
// they made, which everybody may. A sandbox that has something of that sleeps in
// memory only, and is not copied. Its agent says so while it is awake.

// unsaved is the public text of what a checkpoint would leave out.
func unsaved(by agentapi.Blockers) string {
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

// unasked is what a checkpoint would leave out if nobody knows.
const unasked = "what it may have changed of its network"

// intend asks the agent what it intends, without waking its sandbox.
func (b *Box) intend(ctx context.Context) (in agentapi.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	return b.agent().State(ctx)
}

// mayTie reports whether processes in b may change what a checkpoint leaves out
// and the engine saves nevertheless. It does not while there are namespaces.
func (b *Box) mayTie() bool { return b.order.IPTables || b.order.Tun }

// tied returns what a checkpoint of the machine of b would leave out, as far as
// that is known; nothing if it has a checkpoint. Preconditions: mu is held.
func (b *Box) tied(m machine.Machine) string {
	if m.Tier() > machine.Paused || b.n.Driver.Traits().Network {
		return ""
	}
	return b.unsaved
}

// tie takes note of what the agent of an awake machine said, or of why it said
// nothing. Preconditions: mu is held.
func (b *Box) tie(m machine.Machine, in agentapi.State, err error) {
	was := b.unsaved
	if b.unsaved = unsaved(in.Blockers); err != nil && b.mayTie() {
		b.unsaved = unasked
	}
	if now := b.tied(m); now != "" && now != was {
		b.note("while it sleeps it stays in memory, and a restart of the host loses it: a checkpoint would leave out " + now)
	}
}

// noteTie writes down what a checkpoint of a machine that is about to fall asleep
// would leave out: the next process cannot ask, and must not make one.
// Preconditions: the turn is held.
func (b *Box) noteTie(m machine.Machine) error {
	b.mu.Lock()
	was, tied := b.noted, b.tied(m)
	b.mu.Unlock()
	if tied == was {
		return nil
	}
	b.noted = tied
	if err := b.n.keep(b, doze.Standby, ""); err != nil {
		b.noted = was
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// survey returns what tied does, and asks the agent of a machine that is awake.
// Preconditions: the turn is held.
func (n *Node) survey(b *Box, m machine.Machine) (tied string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Tier() == machine.Awake && b.phase != doze.Suspending { // where it was asked just now
		b.mu.Unlock()
		in, err := b.intend(b.life)
		if err != nil {
			slog.Warn("an agent does not say what a checkpoint would leave out", "sandbox", b.order.UID, "err", err)
		}
		b.mu.Lock()
		b.tie(m, in, err)
	}
	return b.tied(m)
}

// untied is a Conflict if a copy of the machine would leave something out.
// Preconditions: the turn is held.
func (n *Node) untied(b *Box, m machine.Machine) error {
	if tied := n.survey(b, m); tied != "" {
		return doze.Errorf(doze.Conflict, "a snapshot would leave out %s: put the network inside back as it was, then try again", tied)
	}
	return nil
}
