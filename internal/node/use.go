package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
)

// inUse reports whether somebody uses the box. Preconditions: mu is held.
func (b *Box) inUse() bool { return b.holds > 0 || b.kept || b.arriving() }

// used is when the box was last used: now, if it is. Preconditions: mu is held.
func (b *Box) used() time.Time {
	if b.inUse() {
		return time.Now()
	}
	return b.lastUsed
}

// arriving reports whether the box is on its way to run for somebody.
// Preconditions: mu is held.
func (b *Box) arriving() bool {
	return b.phase == doze.Starting || b.phase == doze.Waking || b.phase == doze.Unarchiving
}

// heed takes note of what the agent of a running box said when it was asked, or
// of why it said nothing, and reports whether the box must stay awake: for a
// process, or for a request that came meanwhile. Preconditions: mu is held.
func (b *Box) heed(asked time.Time, in agentapi.State, err error) bool {
	if b.phase != doze.Running {
		return true // what it said, or why it said nothing, is of before
	}
	busy := in.KeepAlive > 0
	switch {
	case err == nil:
		b.silent = 0
	case b.life.Err() == nil:
		busy = b.silent < silentMax
		slog.Warn("an agent does not say whether its sandbox must stay awake", "sandbox", b.order.UID, "times", b.silent, "err", err)
	}
	if b.holds > 0 || b.parting || !b.lastUsed.Before(asked) {
		return true
	}
	if in.KeptAgo != nil { // it was used until a process ended, and not until we looked
		if ended := asked.Add(-time.Duration(*in.KeptAgo) * time.Millisecond); ended.After(b.lastUsed) {
			b.lastUsed = ended
		}
	}
	if b.kept = busy; busy {
		b.lastUsed, b.putOff = time.Now(), time.Now()
		b.arm()
	}
	return busy
}

// Consult implements [fleet.Node].
func (n *Node) Consult(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	unknown := b.phase == doze.Running && b.holds == 0
	b.mu.Unlock()
	if !unknown {
		return nil
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	asked := time.Now()
	in, err := b.intend(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heed(asked, in, err) // an agent that does not answer has lost its say
	return nil
}

// Retire implements [fleet.Node].
func (n *Node) Retire(_ context.Context, uid string, since time.Time) (bool, error) {
	b := n.box(uid)
	if b == nil {
		return true, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retired = !b.inUse() && !b.lastUsed.After(since)
	return b.retired, nil
}

// Reinstate implements [fleet.Node].
func (n *Node) Reinstate(_ context.Context, uid string) error {
	if b := n.box(uid); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.retired = false
	}
	return nil
}
