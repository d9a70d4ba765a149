package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/runsc/boot"

	"doze/internal/machine/gvisor"
)

// A flip is a pause or a resume: one message to the engine over a connection
// that is kept. gVisor's own calls take a lock and rewrite a file of state each
// time, which is half of the wake of a paused machine.
//
// Pauses nest in the engine and it does not tell their number, so we must know
// what it did even if we die in between. Two empty files in the bundle say so:
// marks are set and taken away around the call, and where they leave a doubt
// the engine's stacks tell (halted).
const (
	markFlipping = "flipping" // a call is or was under way
	markPaused   = "paused"   // the last call that ended was a pause
	markRestored = "restored" // it was created for an image and runs
)

// haltedPoll is the pause between looks at an engine that is still busy with a
// call of our predecessor.
const haltedPoll = 10 * time.Millisecond

func (s *sandbox) pause(ctx context.Context) error { return s.flip(ctx, true) }

func (s *sandbox) resume(ctx context.Context) error { return s.flip(ctx, false) }

func (s *sandbox) flip(ctx context.Context, pause bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return fmt.Errorf("%s: %w", s.id, errGone)
	}
	if s.paused == pause {
		return nil
	}
	method := boot.ContMgrResume
	if pause {
		method = boot.ContMgrPause
	}
	if err := s.mark(markFlipping, true); err != nil {
		return err
	}
	err := s.turn(ctx, method, pause)
	if err != nil && !s.over() { // the kept connection may have been an old one
		err = s.turn(ctx, method, pause)
	}
	s.note()
	return errors.Join(err, s.flipped())
}

// turn makes one call and finds out what came of it. Preconditions: mu is held.
func (s *sandbox) turn(ctx context.Context, method string, pause bool) error {
	err := watch(ctx, s.l.options.FlipLimit, s.shoot, func() error { return s.call(method, nil) })
	if err == nil {
		s.paused = pause
		return nil
	}
	s.hangUp()
	var doubt error
	if s.paused, doubt = s.halted(ctx); doubt != nil {
		s.shoot()
		return errors.Join(err, doubt)
	}
	if s.paused == pause { // it was heard all the same
		slog.WarnContext(ctx, "the engine did what it was told and reported an error", "sandbox", s.id, "err", err)
		return nil
	}
	return err
}

// flipped makes the marks say what paused does. Preconditions: mu is held.
func (s *sandbox) flipped() error {
	return errors.Join(s.mark(markPaused, s.paused), s.mark(markFlipping, false))
}

// call calls a method of the engine that returns nothing. Preconditions: mu is
// held.
func (s *sandbox) call(method string, arg any) (err error) {
	if s.wire == nil {
		if s.wire, err = client.ConnectTo(s.container.Sandbox.GetControlSocketPath()); err != nil {
			return fmt.Errorf("connect to the engine: %w", err)
		}
	}
	if err := s.wire.Call(method, arg, nil); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// hangUp closes the kept connection. Preconditions: mu is held.
func (s *sandbox) hangUp() {
	if s.wire != nil {
		_ = s.wire.Close()
		s.wire = nil
	}
}

// mark sets or takes away one mark.
func (s *sandbox) mark(name string, set bool) error {
	path := filepath.Join(s.l.bundle(s.id), name)
	if !set {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *sandbox) marked(name string) bool {
	_, err := os.Lstat(filepath.Join(s.l.bundle(s.id), name))
	return err == nil
}

// recall finds out whether an adopted machine is paused. Preconditions: mu is
// held.
func (s *sandbox) recall(ctx context.Context) (err error) {
	if s.paused = s.marked(markPaused); !s.marked(markFlipping) {
		return nil
	}
	if s.paused, err = s.halted(ctx); err != nil {
		return err
	}
	return s.flipped()
}

// halted asks the engine whether its guest stands still, when no pause and no
// resume is under way in it. Preconditions: mu is held.
func (s *sandbox) halted(ctx context.Context) (bool, error) {
	var stacks string
	ask := func() (err error) {
		stacks, err = s.container.Sandbox.Stacks()
		return err
	}
	deadline := time.Now().Add(s.l.options.FlipLimit)
	for time.Now().Before(deadline) {
		if err := watch(ctx, gvisor.LimitFlip, s.shoot, ask); err != nil {
			return false, fmt.Errorf("ask whether it stands still: %w", err)
		}
		if busy, halted := readStacks(stacks); !busy {
			return halted, nil
		}
		time.Sleep(haltedPoll)
	}
	return false, errors.New("the engine does not finish a pause")
}

// readStacks finds in the stacks of an engine whether it pauses or resumes at
// the moment, and whether every task of its guest stands still. The guest's
// first process has several tasks and stops none of them itself.
func readStacks(stacks string) (busy, halted bool) {
	const kernel = "gvisor/pkg/sentry/kernel."
	halted = true
	for routine := range strings.SplitSeq(stacks, "\n\n") {
		switch {
		case strings.Contains(routine, "boot.(*containerManager).Pause("),
			strings.Contains(routine, "boot.(*containerManager).Resume("):
			busy = true
		case strings.Contains(routine, kernel+"(*Task).run(") && !strings.Contains(routine, kernel+"(*Task).doStop("):
			halted = false
		}
	}
	return busy, halted
}
