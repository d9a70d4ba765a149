package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
)

// yieldSink is how long a move down that a request has ended is not tried again:
// the request is about to wake the sandbox, unless its caller has left.
const yieldSink = 100 * time.Millisecond

// pressureEvery is how often memory is looked at.
const pressureEvery = 2 * time.Second

// way is the way down of a sandbox that nobody uses: the tiers, and when each of
// them is due. The first counts from the last use, the others from the pause.
// Which of them a sandbox skips, see [Box.next].
var way = [...]struct {
	to    machine.Tier
	after func(*Options) time.Duration
}{
	{machine.Paused, func(o *Options) time.Duration { return o.PauseAfter }},
	{machine.Saved, func(o *Options) time.Duration { return o.SaveAfter }},
	{machine.Swapped, func(o *Options) time.Duration { return o.SwapAfter }},
	{machine.OnDisk, func(o *Options) time.Duration { return o.DiskAfter }},
}

// swaps reports whether sandboxes of this node are moved to swap at all.
func (o *Options) swaps() bool {
	return o.SwapAfter > 0 && o.SwapAfter < o.DiskAfter && o.Driver.Traits().Swap
}

// due returns after how long in a pause a tier is reached.
func (o *Options) due(t machine.Tier) time.Duration {
	for _, s := range way[1:] {
		if s.to == t {
			return s.after(o)
		}
	}
	return 0
}

// next returns the tier after the one that a sleeping box is in. Preconditions:
// mu is held, it is not on disk.
func (b *Box) next(t machine.Tier) machine.Tier {
	if b.phase == doze.Disabled {
		return machine.OnDisk // it will not be woken soon
	}
	for _, s := range way {
		if s.to > t && (s.to != machine.Swapped || b.swaps()) {
			return s.to
		}
	}
	return machine.OnDisk
}

// swaps reports whether the memory of b is moved to swap. Preconditions: mu is
// held.
func (b *Box) swaps() bool { return b.n.swaps() && !b.unswappable }

// rest returns for how long the box stays as it is if nobody uses it. It
// reports false if that is for ever. Preconditions: mu is held.
func (b *Box) rest() (time.Duration, bool) {
	if b.machine == nil || b.sinking != nil || b.parting {
		return 0, false
	}
	tier := b.machine.Tier()
	switch {
	case b.phase == doze.Running && b.restless:
		return max(b.n.PauseAfter, retrySink), b.holds == 0
	case b.phase == doze.Running:
		return b.sooner(b.n.PauseAfter, renewIdle), b.holds == 0
	case !b.asleep() || tier == machine.OnDisk:
		return 0, false
	case b.blockedAt(b.machine) != "":
		return 0, false // until it was awake again
	case b.stuck:
		return retrySink, true
	case b.phase == doze.Disabled:
		return 0, true
	}
	since := tier
	if tier == machine.Saved && b.unswappable {
		since = machine.Swapped // it was tried then
	}
	rest := max(0, b.n.due(b.next(tier))-b.n.due(since))
	if tier == machine.Paused {
		rest = b.sooner(rest, 0)
	}
	if !b.asked.IsZero() {
		rest = max(rest, yieldSink)
	}
	return rest, true
}

// asleep reports whether b is in a phase in which its machine sleeps.
// Preconditions: mu is held.
func (b *Box) asleep() bool { return b.phase == doze.Standby || b.phase == doze.Disabled }

// sink starts the move of a sleeping box to a lower tier, and returns a channel
// that is closed when it has ended. A request that comes meanwhile ends it
// early. Preconditions: mu is held, the box sleeps, no move is under way.
func (b *Box) sink(to machine.Tier) <-chan struct{} {
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(b.life)
	from := b.machine.Tier()
	began := b.spawn(func() {
		defer close(done)
		defer cancel()
		start := time.Now()
		b.change(ctx, func(m machine.Machine) error {
			if err := failpoint.Reach(failpoint.Sink, b.order.UID); err != nil {
				return err
			}
			return b.n.descend(ctx, m, to)
		}, func(err error) {
			b.sinking = nil
			if b.machine != nil && from < machine.Saved && b.machine.Tier() >= machine.Saved {
				b.saved = start
			} else if ctx.Err() != nil {
				b.putOff = time.Now()
			}
			b.sank(err, ctx.Err() != nil, to, time.Since(start))
			b.signal()
			b.arm()
		})
	})
	if !began {
		cancel()
		close(done)
		return done
	}
	b.sinking, b.asked = cancel, time.Time{} // whoever waited for an earlier wake has left
	b.timer.Stop()
	return done
}

// descend moves a machine to a lower tier, as far as the disk has room: without
// it goes no further than a pause, in which nothing is lost.
func (n *Node) descend(ctx context.Context, m machine.Machine, to machine.Tier) error {
	if to < machine.Saved {
		return m.Suspend(ctx, to)
	}
	release, err := roomFor(ctx, m, func(bytes int64) (func(), error) { return n.sleepRoom(ctx, m, bytes) })
	if err != nil {
		return errors.Join(fmt.Errorf("make room for the checkpoint: %w", err), m.Suspend(ctx, machine.Paused))
	}
	defer release()
	return m.Suspend(ctx, to)
}

// sleepRoom takes room on the disk for the next checkpoint of a machine. If there
// is not enough, it takes what the next needs beyond the last one, which goes as
// soon as the next is complete, or before that if the disk is full.
func (n *Node) sleepRoom(ctx context.Context, m machine.Machine, bytes int64) (release func(), err error) {
	release, err = n.SleepRoom(bytes)
	if err == nil {
		return release, nil
	}
	s, unknown := m.Stats(ctx)
	if unknown != nil || s.DiskBytes == 0 {
		return nil, err
	}
	return n.SleepRoom(max(0, bytes-s.DiskBytes))
}

// sank takes note of how a move to a lower tier ended. Preconditions: mu is
// held.
func (b *Box) sank(err error, cut bool, to machine.Tier, took time.Duration) {
	switch {
	case err == nil:
		b.stuck = false
		b.n.Sank(to, took, nil)
		slog.Info("sank", "sandbox", b.order.UID, "tier", to.String(), "took", took)
	case cut || !b.asleep():
	case to == machine.Swapped && b.machine != nil && b.machine.Tier() == machine.Saved:
		b.n.Sank(to, took, err)
		slog.Warn("a sandbox stays in memory until it is due on disk", "sandbox", b.order.UID, "tier", to.String(), "err", err)
		b.unswappable = true // until it was awake again
	default:
		b.n.Sank(to, took, err)
		slog.Error("sink", "sandbox", b.order.UID, "tier", to.String(), "err", err)
		if !b.stuck {
			b.note("it could not be moved to disk and stays in memory: " + failure(err))
		}
		b.stuck = true
	}
}

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
		n.lower(ctx, n.short, machine.OnDisk, (*Box).inMemory)
		n.lower(ctx, over, machine.Swapped, (*Box).swappable)
		n.lower(ctx, over, machine.OnDisk, (*Box).beyondSwap)
		n.lower(ctx, func() bool { return n.short() || over() }, machine.OnDisk, (*Box).ready)
	}
}

// lower moves boxes that fit to a tier as long as it must.
func (n *Node) lower(ctx context.Context, must func() bool, to machine.Tier, fits func(*Box) bool) {
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
func (n *Node) sinkOldest(to machine.Tier, fits func(*Box) bool) <-chan struct{} {
	var oldest *Box
	var since time.Time
	for _, b := range n.all() {
		b.mu.Lock()
		if b.spare() && fits(b) && (oldest == nil || b.lastUsed.Before(since)) {
			oldest, since = b, b.lastUsed
		}
		b.mu.Unlock()
	}
	if oldest == nil {
		return nil
	}
	oldest.mu.Lock()
	defer oldest.mu.Unlock()
	if !oldest.spare() || !fits(oldest) {
		return nil // a request came just now
	}
	return oldest.sink(to)
}

// spare reports whether the box sleeps and can be moved. One that could not be
// moved waits for its own next try, so that others have theirs. Preconditions:
// mu is held.
func (b *Box) spare() bool {
	return b.asleep() && b.machine != nil && b.sinking == nil && !b.stuck && b.blockedAt(b.machine) == ""
}

// inMemory reports whether a spare box has its memory. Preconditions: mu is
// held.
func (b *Box) inMemory() bool { return b.machine.Tier() < machine.OnDisk }

// swappable reports whether a spare box has its memory in RAM, and would not
// have it in swap. Preconditions: mu is held.
func (b *Box) swappable() bool { return b.machine.Tier() < machine.Swapped && b.swaps() }

// beyondSwap reports whether a spare box has its memory, and swap cannot take it
// from RAM. A box that falls asleep between two looks at the budget goes to swap
// at the next look. Preconditions: mu is held.
func (b *Box) beyondSwap() bool { return b.inMemory() && !b.swappable() }

// ready reports whether a process waits for the wake of a spare box on disk.
// Preconditions: mu is held.
func (b *Box) ready() bool { return b.machine.Ready() }

// Cost is what one sandbox takes of the host now.
type Cost struct {
	Phase doze.Phase
	Tier  machine.Tier
	Ready bool // on disk, with a process that waits for the next wake
	machine.Stats
}

// Costs returns what all sandboxes that have a machine take of the host now. One
// that ends meanwhile is left out.
func (n *Node) Costs(ctx context.Context) (all []Cost) {
	for _, b := range n.all() {
		if c, err := b.cost(ctx); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// errNoMachine is what cost returns for a sandbox that takes nothing.
var errNoMachine = errors.New("it has no machine")

func (b *Box) cost(ctx context.Context) (Cost, error) {
	b.mu.Lock()
	m, phase := b.machine, b.phase
	b.mu.Unlock()
	if m == nil {
		return Cost{}, errNoMachine
	}
	s, err := m.Stats(ctx)
	return Cost{Phase: phase, Tier: m.Tier(), Ready: m.Ready(), Stats: s}, err
}
