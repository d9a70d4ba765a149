package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// A machine in swap first needs some hundred scattered pages of its agent and its
// engine when it wakes. Read one by one, they take ten times as long as the wake
// itself. So we record the pages that a wake used, and bring them back right after the
// next move to swap. The first wake has nothing to learn from: all of the engine is
// read while it wakes.

const (
	// hotMost bounds what stays in RAM of the memory of a machine in swap, in
	// bytes: a wake with one request uses less.
	hotMost = 4 << 20
	// hotProcesses bounds of how many processes something stays.
	hotProcesses = 64
)

// learnAfter is when a wake from swap is over: its first request has been
// answered, and not much else has happened.
const learnAfter = 100 * time.Millisecond

// reclaim moves the memory of a paused machine to swap, until ctx ends, but for
// what its wake needs first.
func (s *sandbox) reclaim(ctx context.Context) (r gvisor.Reclaimed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return r, fmt.Errorf("%s: %w", s.id, errGone)
	}
	if !s.paused {
		return r, errors.New("a machine must be paused before its memory is moved to swap")
	}
	if err := failpoint.Reach(failpoint.Push, s.id); err != nil {
		return r, err
	}
	s.rested(ctx)
	if err := hostproc.PageOut(int(s.pid.Load())); err != nil {
		return r, err
	}
	g := s.group.Load()
	if r.Left, err = g.Reclaim(ctx); err != nil {
		return r, err
	}
	if r.Moved = g.Swapped(); r.Moved == 0 {
		return r, nil
	}
	if err := cmp.Or(failpoint.Reach(failpoint.Pushed, s.id), s.mark(markSwapped, true)); err != nil {
		return r, err
	}
	s.swapped = true
	if err := s.warm(); err != nil {
		slog.WarnContext(ctx, "bring back what a wake needs", "sandbox", s.id, "err", err)
	}
	s.note()
	return r, nil
}

// warm brings back what a wake needs first, of the machine's memory and of the
// processes that the guest's run in: those have some pages for themselves.
// Preconditions: mu is held.
func (s *sandbox) warm() error {
	if len(s.hot) == 0 { // nothing is known
		return nil
	}
	engine := int(s.pid.Load())
	err := hostproc.PageIn(engine, s.hot)
	guests := hostproc.Tree(engine)[1:]
	for _, pid := range guests[:min(len(guests), hotProcesses)] {
		if bad := hostproc.Fetch(pid); !hostproc.Gone(bad) {
			err = errors.Join(err, bad)
		}
	}
	return err
}

// fetch reads what an engine has for itself back from swap, all at once. The
// engine reads what it needs first by itself, should it be faster.
func fetch(ctx context.Context, engine int) {
	if err := hostproc.Fetch(engine); err != nil && !hostproc.Gone(err) {
		slog.WarnContext(ctx, "read an engine from swap", "pid", engine, "err", err)
	}
}

// learn looks, a little later, at what a wake from swap used. Preconditions: mu
// is held.
func (s *sandbox) learn() {
	time.AfterFunc(learnAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over() || s.paused && s.swapped {
			return
		}
		used, err := hostproc.InUse(int(s.pid.Load()))
		if err != nil {
			slog.Warn("look at what a wake used", "sandbox", s.id, "err", err)
			return
		}
		s.hot = recent(used, s.hot, hotMost/os.Getpagesize())
	})
}

// recent returns used and what fits of older pages: the engine's heap is not in
// the same place twice.
func recent(used, older []uint64, most int) []uint64 {
	known := make(map[uint64]bool, len(used))
	for _, page := range used {
		known[page] = true
	}
	for _, page := range older {
		if !known[page] {
			used = append(used, page)
		}
	}
	return used[:min(len(used), most)]
}
