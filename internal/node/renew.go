package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// renewLook is how often the node looks for checkpoints that are overdue.
const renewLook = 2 * time.Second

// renewCheckpoints renews the checkpoints of sandboxes that are in use all the time,
// one after the other, and tells the operator about those that could not be renewed.
func (n *Node) renewCheckpoints(ctx context.Context) {
	if n.CheckpointEvery <= 0 {
		return
	}
	look := time.NewTicker(min(renewLook, n.CheckpointEvery))
	defer look.Stop()
	told := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		for _, b := range n.all() {
			if b.overdue() {
				b.renew(ctx)
			}
		}
		if time.Since(told) < n.CheckpointEvery {
			continue
		}
		told = time.Now()
		if a := n.CheckpointAge(); a.Overdue > 0 {
			slog.Warn("checkpoints are postponed: their sandboxes are in use all the time", "sandboxes", a.Overdue, "oldest", a.Oldest, "every", n.CheckpointEvery)
		}
	}
}

// overdue reports whether the box needs a new checkpoint while it is in use.
func (b *Box) overdue() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.hidden() && b.renewable() && b.checkpoint.age.Overdue(b.n.CheckpointEvery, time.Now(), b.n.began)
}

// renewable reports whether the box runs, and its checkpoint would leave nothing out.
// Preconditions: mu is held.
func (b *Box) renewable() bool {
	return b.n.GoBack && b.state.Is(doze.Running) && b.machine != nil && b.machine.Tier() == machine.Awake && b.checkpoint.blocked() == ""
}

// renew makes a new last checkpoint of a box in use, whose requests wait for a moment.
func (b *Box) renew(ctx context.Context) {
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if b.turn.take(ctx) != nil {
		return // it is being deleted
	}
	defer b.unlock()
	b.mu.Lock()
	start, m, uid := time.Now(), b.machine, b.order.UID
	able := b.renewable()
	b.checkpoint.age.Try(start)
	b.mu.Unlock()
	if !able || b.survey(m) != "" {
		return
	}
	took, err := b.renewNow(ctx, m)
	switch {
	case err == nil:
		slog.Info("renewed a checkpoint", "sandbox", uid, "took", time.Since(start), "still", took)
	case ctx.Err() != nil: // it is being deleted
	case errors.Is(err, machine.ErrTooLong):
		slog.Info("a checkpoint is not renewed", "sandbox", uid, "still", took, "err", err)
	default:
		slog.Error("renew a checkpoint", "sandbox", uid, "err", err)
	}
}

// renewNow is renew, and returns for how long requests waited. Preconditions: the turn is
// held.
func (b *Box) renewNow(ctx context.Context, m machine.Machine) (still time.Duration, err error) {
	release, err := roomFor(ctx, m, func(bytes int64) (func(), error) { return b.n.sleepRoom(ctx, m, bytes) })
	if err != nil {
		return 0, fmt.Errorf("make room for the checkpoint: %w", err)
	}
	defer release()
	if err := b.precopy(ctx, m); err != nil { // it would stand still for too long
		return 0, err
	}
	var start time.Time
	err = m.Renew(ctx, b.n.CheckpointPause, func() (func(), error) {
		start = time.Now()
		thaw, err := b.freeze("it could not go on after its checkpoint, and sleeps until the next request")
		return func() { thaw(); still = time.Since(start) }, err
	})
	if err == nil {
		b.mu.Lock()
		b.checkpoint.age.Save(start)
		b.mu.Unlock()
	}
	return still, err
}

// precopy copies the memory of a running box while requests enter it, so that it stands
// still for less time. A box that does not run is left alone. Preconditions: the turn is
// held.
func (b *Box) precopy(ctx context.Context, m machine.Machine) error {
	b.mu.Lock()
	running := b.state.Is(doze.Running)
	b.use.Copy(running)
	b.mu.Unlock()
	if !running {
		return nil
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.use.Copy(false)
		b.sinking.arm()
	}()
	return m.Precopy(ctx)
}
