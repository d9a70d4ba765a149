package launcher

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine/gvisor/launcher/tune"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// calmAfter is when a guest counts as past its start or its wake. The collection of the
// engine's heap must not delay the request that woke it.
const calmAfter = time.Second

const (
	// restAfter is when a guest that was saved is taken to stay in memory: most
	// that move to disk do so earlier, and their engines end.
	restAfter = 2 * time.Second
	// restTime is what a collection of an engine's heap takes on a busy host.
	restTime = 50 * time.Millisecond
)

// stir is stirred without mu held.
func (s *sandbox) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stirred()
}

// stirred tells the engine, a little later, that its guest runs. Preconditions:
// mu is held.
func (s *sandbox) stirred() {
	if s.rest != nil {
		s.rest.Stop()
	}
	s.calm = restart(s.calm, calmAfter, func() { s.tell(tune.HeapAwake) })
}

// still tells the engine that its guest stands still and is about to be saved: a
// collection in the middle would make that longer. Preconditions: mu is held.
func (s *sandbox) still() {
	if s.calm != nil {
		s.calm.Stop()
	}
	s.tell(tune.HeapStill)
}

// saved tells the engine, a little later, that its guest stands still for long:
// what the checkpoint took is given back. Preconditions: mu is held.
func (s *sandbox) saved() {
	s.rest = restart(s.rest, restAfter, func() { s.tell(tune.HeapAsleep) })
}

// restart has a timer call do after a while, counted from now. The first time there
// is none yet.
func restart(t *time.Timer, after time.Duration, do func()) *time.Timer {
	if t == nil {
		return time.AfterFunc(after, do)
	}
	t.Reset(after)
	return t
}

// rested makes sure that the engine has given back what it does not need, before
// the rest goes to swap. Preconditions: mu is held.
func (s *sandbox) rested(ctx context.Context) {
	if s.rest == nil || !s.rest.Stop() {
		return
	}
	s.tell(tune.HeapAsleep)
	select {
	case <-ctx.Done():
	case <-time.After(restTime): // what is given back later was moved for nothing
	}
}

// tell sends the engine a signal, if it is one that waits for it: it would end
// any other process.
func (s *sandbox) tell(sig unix.Signal) {
	pid := int(s.pid.Load())
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it is gone
	}
	defer func() { _ = unix.Close(fd) }()
	if s.over() || !hostproc.Catches(pid, sig) {
		return
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		slog.Warn("tell an engine something", "sandbox", s.id, "err", err)
	}
}
