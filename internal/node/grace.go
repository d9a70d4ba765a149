package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
)

// SetGrace implements [fleet.Node].
func (n *Node) SetGrace(_ context.Context, uid string, grace time.Duration) error {
	if b := n.box(uid); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.grace = grace
	}
	return nil
}

// part lets the processes of a box that is about to be deleted end by
// themselves, for as long as they get. Nothing in a sleeping box runs,
// so it is not woken. Whatever the agent does, part takes no longer.
func (b *Box) part(ctx context.Context) {
	b.mu.Lock()
	grace := b.grace
	if grace <= 0 || b.phase != doze.Running {
		b.mu.Unlock()
		return
	}
	b.parting = true
	b.timer.Stop()
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.parting = false
		b.arm()
	}()

	ctx, cancel := b.bound(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, grace)
	defer stop()
	if err := b.agent().Stop(ctx); err != nil {
		slog.Warn("processes did not end by themselves", "sandbox", b.order.UID, "grace", grace, "err", err)
	}
}
