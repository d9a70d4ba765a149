package node

import (
	"context"
	"fmt"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/idle"
)

// sleepTries is how often Sleep looks again after something else moved the sandbox: each
// look follows the end of a move.
const sleepTries = 20

// sleepPause is how long Sleep waits after a use that came while it asked the agent.
const sleepPause = 10 * time.Millisecond

// Wake implements [fleet.Node].
func (n *Node) Wake(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	release, err := b.Hold(ctx, doze.AgentPort)
	if err != nil {
		return err
	}
	release()
	return nil
}

// Sleep implements [fleet.Node].
func (n *Node) Sleep(ctx context.Context, uid string, deep bool) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	to := machine.Paused
	if deep {
		to = machine.OnDisk
	}
	for range sleepTries {
		if there, err := b.sleepTo(ctx, to); there || err != nil {
			return err
		}
	}
	return errBusy("it was used again and again")
}

// errBusy is the refusal of a sandbox that is in use.
func errBusy(why string) error {
	return doze.Errorf(doze.Conflict, "the sandbox is in use and stays awake: %s", why)
}

// sleepTo makes the next move of a box on its way to a tier, or waits for the one that is
// under way. It reports whether the box is there.
func (b *Box) sleepTo(ctx context.Context, to machine.Tier) (there bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch phase := b.state.Phase(); {
	case phase == doze.Running:
		return false, b.pauseNow(ctx)
	case phase == doze.Suspending, phase == doze.Waking, phase == doze.Starting, b.sinking.cancel != nil:
		return false, b.wait(ctx, nil)
	case phase != doze.Standby || b.machine == nil:
		return false, doze.Errorf(doze.Conflict, "the sandbox is %s: only one that runs can be put to sleep", phase.Status())
	case b.machine.Tier() >= to:
		return true, nil
	}
	if why := b.checkpoint.blockedAt(b.machine.Tier()); why != "" {
		return false, doze.Errorf(doze.Conflict, "the sandbox sleeps in memory only: its checkpoint would leave out %s", why)
	}
	sunk := b.sinking.sink(to)
	if err := b.until(ctx, sunk); err != nil {
		return false, err
	}
	if b.state.Is(doze.Standby) && b.machine != nil && b.machine.Tier() < to && !b.wakes.awaited() {
		return false, doze.Errorf(doze.Unavailable, "the sandbox sleeps, and could not be moved to disk: the log of the platform says why")
	}
	return false, nil
}

// pauseNow pauses a box that runs, if nobody uses it. What its processes compute is no
// reason to stay awake: the caller knows of it. Preconditions: mu is held.
func (b *Box) pauseNow(ctx context.Context) error {
	if why := b.use.Busy(b.state.Phase()); why != idle.None {
		return errBusy(why.String())
	}
	var why idle.Reason
	done := make(chan struct{})
	began := b.life.spawn(func() {
		defer close(done)
		why = b.sinking.suspend(true)
	})
	if !began {
		return context.Cause(b.life)
	}
	if err := b.until(ctx, done); err != nil {
		return err
	}
	switch {
	case why == idle.Recent: // that use may be over in a moment
		over, cancel := context.WithTimeout(ctx, sleepPause)
		defer cancel()
		return b.until(ctx, over.Done())
	case why != idle.None && why != idle.Moved:
		return errBusy(why.String())
	case why == idle.None && b.state.Is(doze.Running) && !b.wakes.awaited():
		return fmt.Errorf("pause: %w", doze.Errorf(doze.Unavailable, "the sandbox could not be put to sleep and runs on: the log of the platform says why"))
	}
	return nil
}

// until waits for the end of something that needs mu. Preconditions: mu is held.
func (b *Box) until(ctx context.Context, done <-chan struct{}) error {
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.life.Done():
		return context.Cause(b.life)
	}
}
