package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// Disable implements [fleet.Node]. Requests in flight are cut off.
func (n *Node) Disable(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := b.refuse(ctx, doze.Disable, doze.Disabling, doze.Disabled); err != nil {
		return err
	}
	b.hangUp()
	if err := b.turn.take(ctx); err != nil {
		return err
	}
	defer b.unlock()
	defer b.hangUp() // requests that came in while its agent was asked
	return b.halt(ctx)
}

// refuse moves the box on, to one of the phases in which no request is let in,
// unless it is in one of them.
func (b *Box) refuse(ctx context.Context, on doze.Trigger, to ...doze.Phase) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.state.Is(to...) {
		if !b.sinking.stop() { // the end of a move to a lower tier is a change
			err := b.move(on, "")
			if err == nil {
				break
			}
			if !b.state.Is(doze.Suspending, doze.Waking, doze.Starting) {
				return err
			}
		}
		if err := b.wait(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// halt puts a box that refuses requests to sleep. Preconditions: the turn is
// held.
func (b *Box) halt(ctx context.Context) error {
	switch phase := b.phase(); phase {
	case doze.Disabled:
		return nil // another Disable was first
	case doze.Disabling:
	default:
		return doze.Errorf(doze.Conflict, "the sandbox is %s", phase)
	}
	if b.isAbsent() { // its memory may stay where it is
		return b.halted()
	}
	m, err := b.handle(ctx)
	if err != nil {
		return fmt.Errorf("find the machine: %w", err)
	}
	// In the pause nothing is lost; disk is what makes it cheap, and is
	// tried again, unless it would lose something.
	to := machine.OnDisk
	if b.survey(m) != "" {
		to = machine.Paused
	}
	if err := b.saveBlockers(m); err != nil {
		return err
	}
	if err := b.n.descend(ctx, m, to); err != nil {
		slog.Error("disable", "sandbox", b.order.UID, "tier", m.Tier().String(), "err", err)
		if m.Tier() == machine.Awake {
			return fmt.Errorf("pause: %w", err)
		}
	}
	if err := b.n.save(b, doze.Disabled, ""); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine = m
	if m.Tier() >= machine.Saved {
		b.checkpoint.age.Save(time.Now())
	}
	b.sinking.tried.Halt(m.Tier(), to)
	return b.move(doze.Halted, "")
}

// halted says that a box sleeps which has no machine here. Preconditions: the turn is
// held.
func (b *Box) halted() error {
	if err := b.n.save(b, doze.Disabled, ""); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.move(doze.Halted, "")
}

// Enable implements [fleet.Node].
func (n *Node) Enable(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	if err := b.turn.take(ctx); err != nil { // a Disable may be under way
		return err
	}
	defer b.unlock()
	switch phase := b.phase(); {
	case phase == doze.Disabled:
	case phase == doze.Disabling || phase == doze.Failed || phase.Ended():
		return doze.Errorf(doze.Conflict, "the sandbox is %s", phase)
	default:
		return nil
	}
	if err := n.save(b, doze.Standby, ""); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.move(doze.Enable, "") // or it is being deleted
}
