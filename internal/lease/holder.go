// Package lease has both ends of a lease. The holder is a node, which runs sandboxes as
// long as its lease is good. The granter is control, which lets others have them after
// that. Each end measures by its own monotonic clock, and asks no clock of the other end.
// The holder counts from before it asked, and the granter from after it answered.
package lease

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/bell"
)

const (
	// renewals is how often a lease is renewed in its time: some may be lost.
	renewals = 6
	// soft is the part of a lease after which its holder stops by itself, in order. What is
	// left is for that to be done, before a [Guard] stops what still runs.
	soft = 0.8
)

// Every is how long after a renewal the next one is due.
func Every(ttl time.Duration) time.Duration { return ttl / renewals }

// Actions are what a [Holder] does. Each is called by one goroutine.
type Actions struct {
	// Fence has nothing run any more, and returns when that is so.
	Fence func(ctx context.Context)
	// Unfence has run again what ran before.
	Unfence func(ctx context.Context)
	// Check is called after each renewal while nothing is fenced. A guard that read the end of an
	// earlier lease may have stopped all since, and no guard undoes that.
	Check func(ctx context.Context)
	// Tell says until when the lease is good, for guards. Zero is for ever.
	Tell func(until time.Time)
}

// A Holder is a node with a lease. One that was never granted a lease needs none: nobody
// else may have what it has. It is safe for concurrent use.
type Holder struct {
	do   Actions
	bell bell.Bell

	mu     sync.Mutex
	until  time.Time     // guarded by mu; zero: it needs no lease
	ttl    time.Duration // guarded by mu
	fenced bool          // guarded by mu
}

// NewHolder returns a holder that acts while Run runs.
func NewHolder(do Actions) *Holder { return &Holder{do: do, bell: bell.New()} }

// Extend takes over a lease that was asked for at a moment, or that none is needed if ttl
// is 0. Only what came back to the holder counts: a renewal that was asked for earlier
// never shortens it.
func (h *Holder) Extend(asked time.Time, ttl time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := asked.Add(ttl)
	switch {
	case ttl <= 0:
		until, ttl = time.Time{}, 0
	case h.ttl == ttl && until.Before(h.until):
		return
	}
	h.until, h.ttl = until, ttl
	h.do.Tell(until)
	h.bell.Ring()
}

// Resume takes up a lease that an earlier process of the holder had until a moment. If that
// is over, the holder counts as fenced. Call it before Run.
func (h *Holder) Resume(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until, h.fenced = until, !time.Now().Before(until)
}

// Fenced reports whether nothing may run now.
func (h *Holder) Fenced() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fenced
}

// TTL is how long the lease is good after it was asked for, or 0 if none is needed.
func (h *Holder) TTL() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ttl
}

// Left is how long the lease is still good. ok is false if none is needed.
func (h *Holder) Left() (left time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.until), !h.until.IsZero()
}

// next returns what is to be done now, and after which time to look again.
func (h *Holder) next(now time.Time) (fence, unfence bool, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	stop := h.until.Add(-time.Duration((1 - soft) * float64(h.ttl)))
	good := h.until.IsZero() || now.Before(stop)
	fence, unfence = !good && !h.fenced, good && h.fenced
	h.fenced = !good
	if wait = time.Hour; good && !h.until.IsZero() {
		wait = stop.Sub(now)
	}
	return fence, unfence, wait
}

// Run fences when the lease is about to end, and unfences when it is good again, until
// ctx ends. What is fenced then stays so.
func (h *Holder) Run(ctx context.Context) error {
	for {
		fence, unfence, wait := h.next(time.Now())
		switch {
		case fence:
			slog.WarnContext(ctx, "the lease of this node is about to end: its sandboxes stop until it is renewed")
			h.do.Fence(ctx)
		case unfence:
			slog.InfoContext(ctx, "the lease of this node is good again: its sandboxes go on")
			h.do.Unfence(ctx)
		case !h.Fenced():
			h.do.Check(ctx)
		}
		if !h.bell.Wait(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}
