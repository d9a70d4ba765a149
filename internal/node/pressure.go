package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
)

// pressureEvery is how often memory is looked at.
const pressureEvery = 2 * time.Second

// fit reports whether moving a sandbox helps.
type fit func(*descent.Schedule, *descent.Sandbox) bool

// relieve moves sleeping sandboxes to lower tiers while memory is short, the
// longest unused first, one at a time.
func (n *Node) relieve(ctx context.Context) {
	every := time.NewTicker(pressureEvery)
	defer every.Stop()
	over := func() bool { return n.over(ctx) }
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		if n.short() || over() {
			n.ahead.shrink(ctx, 0, time.Time{})
		}
		// A host that is short is helped by what gives memory back soonest; the
		// budget by what costs the next wake least.
		n.lower(ctx, n.short, machine.OnDisk, (*descent.Schedule).InMemory)
		n.lower(ctx, over, machine.Swapped, (*descent.Schedule).Swappable)
		n.lower(ctx, over, machine.OnDisk, (*descent.Schedule).BeyondSwap)
		n.lower(ctx, func() bool { return n.short() || over() }, machine.OnDisk, (*descent.Schedule).Prepared)
	}
}

// lower moves boxes that fit to a tier as long as it must.
func (n *Node) lower(ctx context.Context, must func() bool, to machine.Tier, fits fit) {
	for ctx.Err() == nil && must() {
		done := n.sinkOldest(to, fits)
		if done == nil {
			return
		}
		<-done // it ends with the node, too
	}
}

// short reports whether the host is short of memory.
func (n *Node) short() bool {
	free, err := n.Available()
	if err != nil {
		slog.Warn("read the memory that is left", "err", err)
		return false
	}
	return free < n.Reserve
}

// over reports whether sandboxes take more memory than the budget.
func (n *Node) over(ctx context.Context) bool {
	if n.Budget == 0 {
		return false
	}
	var used int64
	for _, c := range n.Costs(ctx) {
		used += c.MemoryBytes
	}
	return used > n.Budget
}

// sinkOldest starts to move one sandbox that fits to a tier. It returns nil if
// there is none, or else a channel that is closed at the end of the move.
func (n *Node) sinkOldest(to machine.Tier, fits fit) <-chan struct{} {
	var oldest *Box
	var since time.Time
	for _, b := range n.all() {
		b.mu.Lock()
		if used := b.use.Last(); b.sinking.movable(fits) && (oldest == nil || used.Before(since)) {
			oldest, since = b, used
		}
		b.mu.Unlock()
	}
	if oldest == nil {
		return nil
	}
	oldest.mu.Lock()
	defer oldest.mu.Unlock()
	if !oldest.sinking.movable(fits) {
		return nil // a request came just now
	}
	return oldest.sinking.sink(to)
}

// movable reports whether the box sleeps and can be moved, and whether that helps.
// Preconditions: mu is held.
func (s *sinking) movable(helps fit) bool {
	b := s.b
	now := b.sleeper()
	if b.schedule().Movable(&now) != descent.None {
		return false
	}
	now.Prepared = b.machine.Ready()
	return helps(b.schedule(), &now)
}
