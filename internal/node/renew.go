package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
)

// renewIdle is how long nobody uses a sandbox before it falls asleep for a new
// checkpoint. Calls that follow each other closely come sooner, and would each end
// an attempt.
const renewIdle = time.Second

// renewable reports in how long the checkpoint of a box is due to be renewed, if
// it is to be renewed at all: 0 or less is now. Preconditions: mu is held.
func (b *Box) renewable() (in time.Duration, ok bool) {
	if b.n.CheckpointEvery <= 0 || b.blocked() != "" { // a checkpoint would leave something out
		return 0, false
	}
	due := b.saved.Add(b.n.CheckpointEvery)
	if again := b.putOff.Add(min(b.n.PauseAfter, b.n.CheckpointEvery)); again.After(due) {
		due = again // one request in this time waits for the end of an attempt, and not each
	}
	return time.Until(due), true
}

// sooner is how long a box rests that would rest for so long, if its checkpoint is
// renewed before that: at least for a time. Preconditions: mu is held.
func (b *Box) sooner(rest, least time.Duration) time.Duration {
	if in, ok := b.renewable(); ok {
		return min(rest, max(least, in))
	}
	return rest
}

// CheckpointAge is how old the last checkpoints are of the sandboxes that run: the
// age of the oldest, and how many are older than they should be. The checkpoint of
// one that an earlier process left awake is at least as old as this process. One
// that has none yet has lost nothing before its boot.
type CheckpointAge struct {
	Oldest  time.Duration
	Overdue int
}

// CheckpointAge returns how old the last checkpoints are now.
func (n *Node) CheckpointAge() (a CheckpointAge) {
	for _, b := range n.all() {
		b.mu.Lock()
		running, saved := b.phase == doze.Running, b.saved
		b.mu.Unlock()
		if !running {
			continue
		}
		if saved.IsZero() {
			saved = n.began
		}
		age := time.Since(saved)
		a.Oldest = max(a.Oldest, age)
		if n.CheckpointEvery > 0 && age > n.CheckpointEvery+overdueAfter {
			a.Overdue++
		}
	}
	return a
}

// overdueAfter is how late a checkpoint is when it counts as postponed: those that
// are due are written within seconds.
const overdueAfter = 10 * time.Second

// watchCheckpoints tells the operator, as often as checkpoints are due, which could
// not be renewed: a sandbox that is in use all the time has no moment for it.
func (n *Node) watchCheckpoints(ctx context.Context) {
	if n.CheckpointEvery <= 0 {
		return
	}
	every := time.NewTicker(n.CheckpointEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if a := n.CheckpointAge(); a.Overdue > 0 {
			slog.Warn("checkpoints are postponed: their sandboxes are in use all the time", "sandboxes", a.Overdue, "oldest", a.Oldest, "every", n.CheckpointEvery)
		}
	}
}
