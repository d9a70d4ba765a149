package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"doze/internal/machine"
	"doze/internal/step"
	"doze/internal/trace"
)

// readyLimit bounds the creation of a process ahead of its need.
const readyLimit = LimitStart

// ready is the set of sandboxes on disk whose next process exists already. Such
// a process knows the root file system and the network of its sandbox and waits
// for the memory; it saves the wake about 30 ms and costs about 11 MB. The
// sandboxes that went to disk last have one.
type ready struct {
	most int

	mu   sync.Mutex
	list []*sandbox // guarded by mu; the oldest first
}

// add puts s in, and returns who has to leave for it.
func (r *ready) add(s *sandbox) (leave []*sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, s)
	n := max(0, len(r.list)-r.most)
	leave, r.list = slices.Clone(r.list[:n]), slices.Delete(r.list, 0, n)
	return leave
}

func (r *ready) remove(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(o *sandbox) bool { return o == s })
}

// prepare creates the process of s ahead of the next wake. Without it the wake
// is slower and otherwise the same.
func (s *sandbox) prepare() {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit) //nolint:forbidigo // outlives the move to disk
	defer cancel()
	if !s.created(ctx) {
		return
	}
	for _, o := range s.d.ready.add(s) {
		if err := o.unprepare(ctx); err != nil {
			slog.Warn("give back a process", "sandbox", o.config.ID, "err", err)
		}
	}
}

func (s *sandbox) created(ctx context.Context) bool {
	s.process.Lock()
	defer s.process.Unlock()
	if s.closed || s.prepared.Load() || s.Tier() != machine.OnDisk {
		return false // a wake or an end was faster
	}
	step.Pass(step.Ahead, s.config.ID)
	if err := s.call(ctx, PathPrepare, Boot{Config: s.config}, nil); err != nil {
		slog.Warn("prepare a process", "sandbox", s.config.ID, "err", err)
		return false
	}
	s.prepared.Store(true)
	return true
}

// unprepare gives the waiting process back, if there is one.
func (s *sandbox) unprepare(ctx context.Context) error {
	s.process.Lock()
	defer s.process.Unlock()
	if !s.prepared.Swap(false) {
		return nil // it was taken by a wake
	}
	s.d.ready.remove(s)
	return s.kill(ctx)
}

// take makes sure that the process exists, and reports how long that took.
// Preconditions: process is held.
func (s *sandbox) take(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if err := step.Reach(step.Take, s.config.ID); err != nil {
		return 0, err
	}
	s.d.ready.remove(s)
	if s.prepared.Swap(false) {
		return time.Since(start), nil
	}
	err := s.timed(ctx, trace.Prepare, PathPrepare, Boot{Config: s.config})
	if errors.Is(err, errTaken) {
		err = s.takeOver(ctx)
	}
	return time.Since(start), err
}

// takeOver makes the process anew when there is one already: of a driver that
// ended while it asked for it, and which may be of another kind. One that ever
// ran is not touched. Preconditions: process is held.
func (s *sandbox) takeOver(ctx context.Context) error {
	state, err := s.engine.Load().find(ctx, s.config.ID)
	if err != nil {
		return err
	}
	if state != StateCreated {
		return fmt.Errorf("it is %s: %w", state, errTaken)
	}
	if err := s.kill(ctx); err != nil {
		return err
	}
	return s.timed(ctx, trace.Prepare, PathPrepare, Boot{Config: s.config})
}
