package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
)

// Consult implements [fleet.Node].
func (n *Node) Consult(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	unknown := b.state.Is(doze.Running) && b.use.Holds() == 0
	b.mu.Unlock()
	if !unknown {
		return nil
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	asked := time.Now()
	in, err := intend(ctx, b.agent())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heed(answer(asked, in, err, b.life.Err() != nil), err) // an agent that does not answer has lost its say
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
	return b.gate.Retire(b.use.UnusedSince(b.state.Phase(), since)), nil
}

// Reinstate implements [fleet.Node].
func (n *Node) Reinstate(_ context.Context, uid string) error {
	if b := n.box(uid); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gate.Reinstate()
	}
	return nil
}

// SetGrace implements [fleet.Node].
func (n *Node) SetGrace(_ context.Context, uid string, grace time.Duration) error {
	if b := n.box(uid); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.use.SetGrace(grace)
	}
	return nil
}

// part lets the processes of a box that is about to be deleted end by
// themselves, for as long as they get. Nothing in a sleeping box runs,
// so it is not woken. Whatever the agent does, part takes no longer.
func (b *Box) part(ctx context.Context) {
	b.mu.Lock()
	grace := b.use.Grace()
	if !b.use.Part(b.state.Phase()) {
		b.mu.Unlock()
		return
	}
	b.sinking.timer.Stop()
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.use.Parted()
		b.sinking.arm()
	}()

	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	ctx, stop := context.WithTimeout(ctx, grace)
	defer stop()
	if err := b.agent().Stop(ctx); err != nil {
		slog.Warn("processes did not end by themselves", "sandbox", b.order.UID, "grace", grace, "err", err)
	}
}
