package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
	"github.com/dozehq/doze/internal/node/idle"
	"github.com/dozehq/doze/internal/node/renewal"
)

// sinking moves one box to lower tiers. The lock of the box guards it.
type sinking struct {
	b      *Box
	timer  *time.Timer        // the next step down
	cancel context.CancelFunc // ends the move to a lower tier under way; nil without one
	tried  descent.Tried
	sample idle.Sample // what its processes had computed when the last use was over
}

// lookAfter is the part of the time until a pause after which the first look at what
// the processes compute is taken. What they do for a request and right after it is over
// by then, and a request that comes meanwhile costs no look.
const lookAfter = 8

func newSinking(b *Box) *sinking {
	s := &sinking{b: b}
	s.timer = time.AfterFunc(time.Hour, s.step)
	s.timer.Stop()
	return s
}

// stop ends the move under way early, and reports false if there is none. Its end is
// a change.
func (s *sinking) stop() bool {
	if s.cancel == nil {
		return false
	}
	s.cancel()
	return true
}

// sleeper is the box as it is now, for a decision about its next tier.
// Preconditions: mu is held.
func (b *Box) sleeper() descent.Sandbox {
	s := descent.Sandbox{
		Phase: b.state.Phase(), Absent: b.machine == nil, Moving: b.sinking.cancel != nil, Awaited: b.wakes.awaited(), Tried: b.sinking.tried,
	}
	if b.machine != nil {
		s.Tier = b.machine.Tier()
		s.Blocked = b.checkpoint.blockedAt(s.Tier) != ""
	}
	s.Renewal = b.renewal()
	return s
}

// renewal is when the checkpoint is due to be renewed: never where it would leave
// something out. Preconditions: mu is held.
func (b *Box) renewal() renewal.Due {
	if b.checkpoint.blocked() != "" {
		return renewal.Due{}
	}
	return b.checkpoint.age.Due(b.n.CheckpointEvery, b.n.PauseAfter, time.Now())
}

// rest returns for how long the box stays as it is if nobody uses it, or why that is
// for ever, or until something changes. Preconditions: mu is held.
func (s *sinking) rest() (d time.Duration, why fmt.Stringer) {
	b := s.b
	if busy := b.use.Busy(b.state.Phase()); busy != idle.None {
		return 0, busy
	}
	now := b.sleeper()
	d, stays := b.schedule().Rest(&now)
	if stays != descent.None {
		return 0, stays
	}
	return d, nil
}

// arm sets the timer for the next step down. Preconditions: mu is held.
func (s *sinking) arm() {
	s.timer.Stop()
	d, why := s.rest()
	switch {
	case why != nil:
	case s.unseen():
		s.timer.Reset(d / lookAfter)
	default:
		s.timer.Reset(d)
	}
}

// unseen reports whether nobody looked yet at what the processes of a running box
// compute since its last use. Preconditions: mu is held.
func (s *sinking) unseen() bool {
	return s.b.n.IdleCPU > 0 && s.b.state.Is(doze.Running) && !s.sample.After(s.b.use.Last())
}

// look notes what the processes of a running box have computed so far, and waits for
// the rest of the time until its pause.
func (s *sinking) look() {
	b := s.b
	now := b.computed()
	b.mu.Lock()
	defer b.mu.Unlock()
	if d, why := s.rest(); why == nil && b.state.Is(doze.Running) && now.After(b.use.Last()) { // otherwise a request came, and its end sets the timer
		s.sample = now
		s.timer.Reset(d - d/lookAfter)
	}
}

// computed is what the processes of a box have computed so far. A driver that does not
// say it says nothing: the box falls asleep as if they computed nothing.
func (b *Box) computed() idle.Sample {
	now := idle.Sample{At: time.Now()}
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if m == nil {
		return now
	}
	stats, err := b.stats(b.life, m)
	if err != nil && b.life.Err() == nil {
		slog.Warn("look at what a sandbox computes", "sandbox", b.order.UID, "err", err)
	}
	now.CPU = stats.CPUTime
	return now
}

// step is what the timer runs: the next move down.
func (s *sinking) step() {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	switch _, why := s.rest(); {
	case why != nil:
		slog.Debug("a sandbox stays as it is", "sandbox", b.order.UID, "phase", b.state.Phase(), "why", why)
	case s.unseen():
		b.life.spawn(s.look)
	case b.state.Is(doze.Running):
		b.life.spawn(func() { s.suspend(false) })
	case b.n.stays(time.Now()):
		s.timer.Reset(stayLook)
	default:
		now := b.sleeper()
		s.sink(b.schedule().Next(&now))
	}
}

// suspend pauses a box that nobody uses, unless a process in it asked to stay
// awake, or its processes compute. The latter is no reason if a caller asked for the
// pause. It returns why the box stayed awake.
func (s *sinking) suspend(called bool) idle.Reason {
	b := s.b
	asked := time.Now()
	in, err := intend(b.life, b.agent())
	var now idle.Sample
	if b.n.IdleCPU > 0 {
		now = b.computed()
	}
	b.mu.Lock()
	if err != nil {
		b.use.Unheard()
	}
	a := answer(asked, in, err, b.life.Err() != nil)
	a.Computing = !called && b.n.load().Of(b.order.Memory.CPUs()).Computes(s.sample, now, b.use.Last())
	s.sample = now
	if why := b.heed(a, err); why != idle.None {
		b.mu.Unlock()
		slog.Debug("a sandbox stays awake", "sandbox", b.order.UID, "why", why)
		return why // a request won the race against the timer, and its end sets it again
	}
	b.learn(b.machine, in, err)
	_ = b.move(doze.Idled, "") // Running has a row for Idled
	b.mu.Unlock()
	b.hangUp() // nothing may write to a connection while it sleeps

	start := time.Now()
	b.change(b.life, s.pause, func(err error) {
		b.n.Sank(machine.Paused, time.Since(start), err)
		s.tried.Pause(err == nil)
		if err == nil {
			_ = b.move(doze.Suspended, "") // a delete may have come first
			return
		}
		slog.Error("suspend", "sandbox", b.order.UID, "err", err)
		switch {
		case errors.Is(err, machine.ErrGone) && b.n.GoBack:
			_ = b.move(doze.Stayed, "") // as below
			b.life.spawn(func() { b.exited("its machine ended by itself") })
		case errors.Is(err, machine.ErrGone):
			_ = b.move(doze.Broke, goneMessage) // a delete may have come first
		default:
			_ = b.move(doze.Stayed, "it could not be put to sleep and runs on") // a delete may have come first
		}
	})
	return idle.None
}

// answer is what the agent of a box said when it was asked, or that it said nothing.
func answer(asked time.Time, in agentapi.State, err error, ended bool) idle.Answer {
	a := idle.Answer{Asked: asked, Silent: err != nil, Cut: err != nil && ended, KeepAlive: in.KeepAlive > 0}
	if in.KeptAgo != nil {
		a.KeptAgo = new(time.Duration(*in.KeptAgo) * time.Millisecond)
	}
	return a
}

// heed records the answer of the agent of a running box, or why there was none. It
// returns why the box must stay awake: for a process, or for a request that came
// meanwhile. Preconditions: mu is held.
func (b *Box) heed(a idle.Answer, err error) idle.Reason {
	now, phase := time.Now(), b.state.Phase()
	if phase == doze.Running && a.Silent && !a.Cut {
		slog.Warn("an agent does not say whether its sandbox must stay awake", "sandbox", b.order.UID, "times", b.use.Unanswered(), "err", err)
	}
	why := b.use.Heed(phase, a, now)
	switch why {
	case idle.Process, idle.Silent, idle.Computing:
		b.checkpoint.age.PutOff(now)
		b.sinking.arm()
	case idle.None, idle.Moved, idle.Request, idle.Copying, idle.Parting, idle.Recent:
	}
	return why
}

// pause makes the machine of a box stand still. Preconditions: the turn is held.
func (s *sinking) pause(m machine.Machine) error {
	b := s.b
	if err := failpoint.Reach(failpoint.Idle, b.order.UID); err != nil {
		return err
	}
	if err := b.saveBlockers(m); err != nil {
		return err
	}
	err := m.Suspend(b.life, machine.Paused)
	failpoint.Pass(failpoint.Slept, b.order.UID)
	return err
}

// sink starts the move of a sleeping box to a lower tier, and returns a channel
// that is closed when it has ended. A request that comes meanwhile ends it
// early. Preconditions: mu is held, the box sleeps, no move is under way.
func (s *sinking) sink(to machine.Tier) <-chan struct{} {
	b := s.b
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(b.life)
	from := b.machine.Tier()
	began := b.life.spawn(func() {
		defer close(done)
		defer cancel()
		start := time.Now()
		b.change(ctx, func(m machine.Machine) error {
			if err := failpoint.Reach(failpoint.Sink, b.order.UID); err != nil {
				return err
			}
			return b.n.descend(ctx, m, to)
		}, func(err error) {
			s.cancel = nil
			if b.machine != nil && from < machine.Saved && b.machine.Tier() >= machine.Saved {
				b.checkpoint.age.Save(start)
			} else if ctx.Err() != nil {
				b.checkpoint.age.PutOff(time.Now())
			}
			s.sank(err, descent.Move{To: to, Failed: err != nil, Cut: ctx.Err() != nil}, time.Since(start))
			b.state.Signal()
			s.arm()
		})
	})
	if !began {
		cancel()
		close(done)
		return done
	}
	s.cancel = cancel
	b.wakes.calm() // the callers that waited for an earlier wake have left
	s.timer.Stop()
	return done
}

// sank takes note of how a move to a lower tier ended. Preconditions: mu is
// held.
func (s *sinking) sank(err error, m descent.Move, took time.Duration) {
	b := s.b
	now := b.sleeper()
	outcome := s.tried.Sink(m, &now)
	if outcome != descent.Cut {
		b.n.Sank(m.To, took, err)
	}
	uid, tier := b.order.UID, m.To.String()
	switch outcome {
	case descent.Sank:
		slog.Info("sank", "sandbox", uid, "tier", tier, "took", took)
	case descent.Cut:
	case descent.Unswappable:
		slog.Warn("a sandbox stays in memory until it is due on disk", "sandbox", uid, "tier", tier, "err", err)
	case descent.Failed:
		slog.Error("sink", "sandbox", uid, "tier", tier, "err", err)
		b.note("it could not be moved to disk and stays in memory: " + failure(err))
	case descent.FailedAgain:
		slog.Error("sink", "sandbox", uid, "tier", tier, "err", err)
	}
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
