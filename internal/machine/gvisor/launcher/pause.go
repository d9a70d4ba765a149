package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine/hostproc"
	"github.com/dozehq/doze/internal/trace"
)

// A pause, or a resume, is one message to the engine over an open connection. gVisor's
// own calls take a lock and rewrite a file of state each time, which is half of the
// wake of a paused machine.
//
// Pauses nest in the engine and it does not tell their number, so we must know
// what it did even if we die in between. Two empty files in the bundle say so:
// marks are set and taken away around the call, and where they leave a doubt
// the engine's stacks tell (halted).
const (
	markChanging = "flipping" // a call is or was under way; the name is that of earlier builds
	markPaused   = "paused"   // the last call that ended was a pause
	markRestored = "restored" // it was created for a checkpoint and runs
	markSwapped  = "swapped"  // its memory was moved to swap in the last pause
)

// haltedPoll is the pause between looks at an engine that is still busy with a
// call of our predecessor.
const haltedPoll = 10 * time.Millisecond

func (s *sandbox) pause(ctx context.Context) error { return s.setPaused(ctx, true, s.halt) }

// resume lets the guest go on. With a complete checkpoint on disk (kept), an
// engine that hangs is ended, and the machine goes on from there; without one
// it is given time.
func (s *sandbox) resume(ctx context.Context, checkpointed bool) error {
	err := s.setPaused(ctx, false, func(ctx context.Context) error { return s.wake(ctx, checkpointed) })
	switch {
	case err == nil || errors.Is(err, errGone):
		return err
	case checkpointed:
		return errors.Join(err, s.spent(ctx))
	case errors.Is(err, unix.ECONNREFUSED) || s.over(): // its process has ended, which may not have been seen yet
		return errors.Join(err, s.gone(ctx))
	}
	return err
}

// endTime is how long the end of a process may take to be seen whose connection
// broke: the kernel frees its memory first.
const endTime = 2 * time.Second

// spent is errStill or errGone for a machine that could not be resumed and is sure not
// to run: it stands still, or its process ended. A machine that may run must go on: its
// work would be lost with it.
func (s *sandbox) spent(ctx context.Context) error {
	s.mu.Lock()
	still := s.paused && !s.doubtful
	s.mu.Unlock()
	if still && !s.over() {
		return errStill
	}
	return s.gone(ctx)
}

// gone is errGone for a machine whose process ends within endTime.
func (s *sandbox) gone(ctx context.Context) error {
	select {
	case <-s.exited:
		return cmp.Or(s.kill(context.WithoutCancel(ctx)), errGone) // then its name is free
	case <-time.After(endTime):
		return nil
	}
}

func (s *sandbox) setPaused(ctx context.Context, pause bool, turn func(context.Context) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return fmt.Errorf("%s: %w", s.id, errGone)
	}
	if s.doubtful { // nobody knows what came of an earlier call
		if err := s.recall(ctx); err != nil {
			return err
		}
		s.note()
	}
	if s.paused == pause {
		return nil
	}
	if err := failpoint.Reach(failpoint.Mark, s.id); err != nil {
		return err
	}
	if err := s.mark(markChanging, true); err != nil {
		return err
	}
	if pause && s.swapped { // in an earlier pause
		if err := s.mark(markSwapped, false); err != nil {
			return err
		}
		s.swapped = false
	}
	failpoint.Pass(failpoint.Turn, s.id)
	if !pause && s.swapped && len(s.hot) == 0 {
		s.l.tasks.Go(func() { fetch(ctx, int(s.pid.Load())) })
	}
	err := turn(ctx)
	if err != nil && !s.doubtful && !errors.Is(err, errSlow) && !s.over() { // the kept connection may have been an old one
		err = turn(ctx)
	}
	failpoint.Pass(failpoint.Turned, s.id)
	if s.note(); s.doubtful {
		return err // and so the mark stays
	}
	if !s.paused {
		if s.stirred(); s.swapped {
			s.learn()
		}
	}
	s.writeMarks(ctx)
	return err
}

// errSlow is what a pause returns that took too long and was taken back.
var errSlow = errors.New("its tasks do not come to a stand")

// unlimited gives the machine all of the processor until the returned function is
// called, if that takes long. The engine may share its limit with thousands of tasks,
// and a caller waits for the engine. It costs the kernel a millisecond where nothing
// else is limited. Preconditions: mu is held.
func (s *sandbox) unlimited(ctx context.Context) (limit func()) {
	g, quota := s.group.Load(), cpuLimit(s.container.Spec)
	var mu sync.Mutex
	var lifted, over bool // guarded by mu
	timer := time.AfterFunc(liftAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		lifted = true
		if err := g.LimitCPU(0); err != nil {
			slog.WarnContext(ctx, "lift the limit of the processor", "sandbox", s.id, "err", err)
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		if over = true; !lifted {
			return
		}
		if err := g.LimitCPU(quota); err != nil && !s.over() {
			slog.ErrorContext(ctx, "limit the processor", "sandbox", s.id, "err", err)
			s.shoot() // without its limits it must not run
		}
	}
}

// liftAfter is how long an engine has to answer with the processor that its
// machine is limited to.
const liftAfter = 50 * time.Millisecond

// wake resumes the guest. Preconditions: mu is held.
func (s *sandbox) wake(ctx context.Context, checkpointed bool) error {
	defer s.unlimited(ctx)()
	resume := func() error {
		defer trace.Start(ctx, trace.Engine).End()
		return s.call(boot.ContMgrResume, nil)
	}
	var err error
	if checkpointed {
		err = hostproc.Watch(ctx, s.l.options.PauseLimit, s.shoot, resume)
	} else {
		err = s.later(resume)
	}
	if err == nil {
		s.paused = false
		return nil
	}
	s.hangUp()
	if s.doubtful = errors.Is(err, hostproc.ErrHung); s.doubtful {
		return err
	}
	return s.settlePaused(ctx, false, err)
}

// later makes a call that lets the guest go on. If it has no answer in time, the
// engine has it all the same, and a second one would be the engine's end: recall
// waits for the first. Preconditions: mu is held.
func (s *sandbox) later(resume func() error) error {
	o := &onward{done: make(chan struct{})}
	s.onward = o
	go func() { // ends with the engine, at the latest
		defer close(o.done)
		o.err = hostproc.Guard(resume)
	}()
	err := s.went()
	if !errors.Is(err, hostproc.ErrHung) {
		s.onward = nil
		return err
	}
	slog.Error("the engine hangs", "sandbox", s.id, "limit", s.l.options.PauseLimit)
	if wire := s.wire.Swap(nil); wire != nil { // it is the call's; others make their own
		go func() { // ends with the call
			<-o.done
			_ = wire.Close()
		}()
	}
	return err
}

// lose gives up the connection over which a call is under way. That call may
// not have come so far as to have one.
func (s *sandbox) lose() {
	if wire := s.wire.Load(); wire != nil {
		_ = wire.Socket.Shutdown()
	}
}

// halt pauses the guest, for which the engine waits for all its tasks. What
// takes too long is taken back: a machine that cannot be put to sleep runs on.
// Preconditions: mu is held.
func (s *sandbox) halt(ctx context.Context) error {
	defer s.unlimited(ctx)()
	slow, undone := false, error(nil)
	err := hostproc.Watch(ctx, s.l.options.PauseLimit, func() { slow, undone = true, s.unhalt() }, func() error { return s.call(boot.ContMgrPause, nil) })
	switch {
	case err == nil:
		s.paused = true
		return nil
	case slow && undone == nil:
		s.hangUp()
		s.onward = nil
		return errSlow
	case slow:
		s.hangUp()
		s.doubtful = true
		return errors.Join(err, undone)
	}
	s.hangUp()
	return s.settlePaused(ctx, true, err)
}

// onward is a call to the engine that lets the guest go on: a resume, or the
// taking back of a pause.
type onward struct {
	done chan struct{}
	err  error // set before done is closed
}

// unhalt takes back a pause that is under way: the engine lets its tasks go on
// at once. It never ends a pause that has not begun, which the engine would not
// survive. What it cannot do in time goes on behind our back, see recall.
// Preconditions: mu is held.
func (s *sandbox) unhalt() error {
	u := &onward{done: make(chan struct{})}
	s.onward = u
	engine := s.container.Sandbox
	go func() { // ends with the engine, at the latest
		defer close(u.done)
		for {
			stacks, err := engine.Stacks()
			if err != nil {
				u.err = err
				return
			}
			if busy, halted := readStacks(stacks); busy || halted {
				break
			}
			time.Sleep(haltedPoll)
		}
		wire, err := client.ConnectTo(engine.GetControlSocketPath())
		if err == nil {
			err = errors.Join(wire.Call(boot.ContMgrResume, nil, nil), wire.Close())
		}
		u.err = err
	}()
	defer s.lose() // the caller that waits for the pause hears that it is over
	return s.went()
}

// went waits until the guest goes on. Preconditions: mu is held, onward is set.
func (s *sandbox) went() error {
	select {
	case <-s.onward.done:
		return s.onward.err
	case <-time.After(s.l.options.PauseLimit):
		return hostproc.ErrHung
	}
}

// settlePaused finds out what came of a call that returned an error: it may have
// been heard all the same. Preconditions: mu is held.
func (s *sandbox) settlePaused(ctx context.Context, pause bool, err error) error {
	var doubt error
	if s.paused, doubt = s.halted(ctx); doubt != nil {
		s.paused, s.doubtful = !pause, true
		return errors.Join(err, doubt)
	}
	if s.paused == pause {
		slog.WarnContext(ctx, "the engine did what it was told and reported an error", "sandbox", s.id, "err", err)
		return nil
	}
	return err
}

// writeMarks makes the marks say what paused does. If it cannot, they say that
// there is a doubt, and the engine will be asked. Preconditions: mu is held.
func (s *sandbox) writeMarks(ctx context.Context) {
	err := s.mark(markPaused, s.paused)
	if err == nil {
		err = failpoint.Reach(failpoint.Unmark, s.id)
	}
	if err == nil {
		err = s.mark(markChanging, false)
	}
	if err != nil {
		slog.WarnContext(ctx, "write down whether it stands still", "sandbox", s.id, "err", err)
	}
}

// call calls a method of the engine that returns nothing. Preconditions: mu is
// held.
func (s *sandbox) call(method string, arg any) error { return s.ask(method, arg, nil) }

// ask calls a method of the engine. Preconditions: mu is held.
func (s *sandbox) ask(method string, arg, answer any) (err error) {
	wire := s.wire.Load()
	if wire == nil {
		if wire, err = client.ConnectTo(s.container.Sandbox.GetControlSocketPath()); err != nil {
			return fmt.Errorf("connect to the engine: %w", err)
		}
		s.wire.Store(wire)
	}
	if err := wire.Call(method, arg, answer); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// hangUp closes the kept connection. Preconditions: mu is held.
func (s *sandbox) hangUp() {
	s.lose() // a call that hangs would keep the connection from closing
	if wire := s.wire.Swap(nil); wire != nil {
		_ = wire.Close()
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
	s.swapped = s.marked(markSwapped)
	if s.onward != nil {
		err := s.went()
		if errors.Is(err, hostproc.ErrHung) {
			return err
		}
		s.onward = nil
		if err == nil {
			s.doubtful, s.paused = false, false
			s.writeMarks(ctx)
			return nil
		}
		slog.WarnContext(ctx, "a call that was late did not work", "sandbox", s.id, "err", err)
	}
	if s.paused = s.marked(markPaused); !s.marked(markChanging) {
		return nil
	}
	halted, err := s.halted(ctx)
	if s.doubtful = err != nil; s.doubtful {
		return err
	}
	s.paused = halted
	s.writeMarks(ctx)
	return nil
}

// halted asks the engine whether its guest stands still, when no pause and no
// resume is under way in it. Preconditions: mu is held.
func (s *sandbox) halted(ctx context.Context) (bool, error) {
	var stacks string
	ask := func() (err error) {
		stacks, err = s.container.Sandbox.Stacks()
		return err
	}
	deadline := time.Now().Add(s.l.options.PauseLimit)
	for time.Now().Before(deadline) {
		if err := hostproc.Watch(ctx, s.l.options.PauseLimit, func() {}, ask); err != nil {
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
