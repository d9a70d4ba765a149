package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/entry"
	"github.com/dozehq/doze/internal/node/idle"
	"github.com/dozehq/doze/internal/trace"
)

// wakeTimeout bounds a wake. It is far above what we aim for, so that only
// a machine that will never answer, or a very large one on a slow disk,
// runs into it.
const wakeTimeout = 60 * time.Second

// Of 70 machines that came from disk at once on two processors, most answered as late as
// the last. Each took twice the processor time that it takes among four. So some come at a
// time, and each until it has answered. While the processors have room, more come.
const (
	wakesPerProcessor = 2
	// wakeTurn bounds a turn: some requests take longer.
	wakeTurn = 5 * time.Second
)

// goneMessage says what happened to a machine that the engine does not know any
// more.
const goneMessage = "its machine is gone, and its memory with it"

// attempt is one wake, which any number of requests wait for.
type attempt struct {
	done  chan struct{}
	err   error // set before done is closed
	trace *trace.Trace
}

// wakes are the wakes of a box. The lock of the box guards them.
type wakes struct {
	attempt *attempt   // the wake under way
	leave   func()     // ends the turn of the last wake from disk; nil if there was none
	callers int        // that wait to enter
	asked   time.Time  // since when somebody waits for a wake; zero if nobody does
	traces  trace.Ring // of the last wakes and of the create; it has a lock of its own
}

// ask takes note of somebody who waits for a wake.
func (w *wakes) ask(now time.Time) {
	if w.asked.IsZero() {
		w.asked = now
	}
}

// calm takes note that nobody waits any more: the next wake is measured from its own
// beginning.
func (w *wakes) calm() { w.asked = time.Time{} }

// awaited reports whether somebody waits for a wake.
func (w *wakes) awaited() bool { return !w.asked.IsZero() }

// end ends the attempt, and returns how long its callers waited: with the way to the
// node and the end of a pause, and with the end of a move to a lower tier.
func (w *wakes) end(now time.Time) (took time.Duration) {
	since := w.asked
	if began := w.attempt.trace.Began(); began.Before(since) {
		since = began
	}
	w.attempt = nil
	w.calm()
	return now.Sub(since)
}

// Hold keeps the box running until release is called. A sleeping box is woken;
// callers that come meanwhile wait for the same wake. The port is the one that
// the caller is about to connect to.
func (b *Box) Hold(ctx context.Context, port uint16) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	arrived := arrival{caller: trace.CallerOf(ctx), at: time.Now()}
	b.use.Touch(arrived.at)
	for {
		verdict := b.gate.Ask(b.state.Phase())
		if verdict == entry.Enter {
			break
		}
		try, err := b.obey(verdict, port, arrived)
		if err != nil {
			return nil, err
		}
		arrived.waited = true
		b.wakes.callers++
		err = b.wait(ctx, try)
		b.wakes.callers--
		if err != nil {
			return nil, err
		}
	}
	since := b.use.Hold(time.Now())
	b.sinking.timer.Stop()
	return sync.OnceFunc(func() { b.release(since) }), nil
}

// obey does what the gate said about a request that may not enter now, and returns
// what the request waits for: the end of a wake, or the next change if that is nil.
// Preconditions: mu is held.
func (b *Box) obey(verdict entry.Verdict, port uint16, by arrival) (*attempt, error) {
	switch verdict {
	case entry.Wake:
		return b.wakeUp(port, by)
	case entry.Join:
		return b.wakes.attempt, nil
	case entry.Moved:
		return nil, errMoved
	default:
		return nil, verdict.Refusal(b.state.Phase(), b.state.Message())
	}
}

// wakeUp starts the wake of a sleeping box for a request, or ends the move to a lower
// tier that is under way: that is a change. Preconditions: mu is held.
func (b *Box) wakeUp(port uint16, by arrival) (*attempt, error) {
	b.wakes.ask(time.Now())
	if b.copying != nil {
		b.copying(errAwaited) // the wake gets its turn then
	}
	if b.sinking.stop() {
		return nil, nil //nolint:nilnil // wait for the next change
	}
	if err := b.n.enter(&b.order, ""); err != nil {
		b.wakes.calm()
		return nil, err
	}
	try := &attempt{done: make(chan struct{}), trace: b.wakes.trace(by, &b.order, b.traced())}
	if !b.life.spawn(func() { b.wake(try, port) }) {
		try.trace.Fail(told(context.Cause(b.life)))
		try.trace.Leave()
		return nil, context.Cause(b.life)
	}
	b.wakes.attempt = try
	return try, b.move(doze.Called, "") // Standby has a row for Called
}

// wait blocks until the attempt has ended, or until the next change if there
// is none. Preconditions: mu is held.
func (b *Box) wait(ctx context.Context, try *attempt) error {
	until := b.state.Changed()
	if try != nil {
		until = try.done
	}
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case <-until:
		if try != nil {
			return try.err
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.life.Done():
		return context.Cause(b.life)
	}
}

// release ends a hold.
func (b *Box) release(since idle.Mark) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.use.Release(time.Now(), since)
	b.wakes.answered()
	b.sinking.arm()
}

// come waits until the memory of the box is here, and until it may come from disk among
// all that do.
func (b *Box) come(ctx context.Context) error {
	if err := b.arrive(ctx); err != nil {
		return err
	}
	if !b.isOnDisk() {
		return nil
	}
	leave, err := b.n.wakes.enter(ctx, b.order.Workspace)
	if err != nil {
		return err
	}
	leave = sync.OnceFunc(leave)
	time.AfterFunc(wakeTurn, leave)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakes.leave = leave
	return nil
}

func (b *Box) isOnDisk() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine == nil || b.machine.Tier() == machine.OnDisk
}

// answered ends the turn of a wake from disk. Preconditions: mu is held.
func (w *wakes) answered() {
	if w.leave != nil {
		w.leave()
		w.leave = nil
	}
}

// wake resumes the machine and wakes everybody who waits for it.
func (b *Box) wake(try *attempt, port uint16) {
	defer try.trace.Leave()
	came := b.come(trace.With(b.life, try.trace)) // as long as it takes
	ctx, cancel := context.WithTimeout(trace.With(b.life, try.trace), wakeTimeout)
	defer cancel()
	from := machine.OnDisk
	if came != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.awoke(try, from, came)
		return
	}
	b.change(ctx, func(m machine.Machine) error {
		from = m.Tier()
		try.trace.Comes(from.String())
		if from != machine.OnDisk {
			b.reachEarly(m, port)
		}
		if err := failpoint.Reach(failpoint.Called, b.order.UID); err != nil {
			return err
		}
		if err := b.n.reserveMemory(ctx, b.made.config); err != nil {
			return err
		}
		err := m.Resume(ctx)
		failpoint.Pass(failpoint.Woke, b.order.UID)
		if err == nil { // nothing is asked, unless the rules changed meanwhile or the node has started since
			b.introduceHere(ctx, m)
			b.informLater(ctx, agentOf(ctx, m))
		}
		return err
	}, func(err error) { b.awoke(try, from, err) })
}

// awoke ends a wake. Preconditions: mu is held.
func (b *Box) awoke(try *attempt, from machine.Tier, err error) {
	took := b.wakes.end(time.Now())
	b.n.Woke(from, took, err)
	b.spent.woke(from, took, err)
	try.err = b.woken(err, from, took)
	if err != nil {
		try.trace.Fail(told(try.err))
	}
	if err != nil || b.wakes.callers == 0 { // nobody will be answered
		b.wakes.answered()
	}
	try.trace.Pass()
	close(try.done)
}

// introduceHere tells the agent of a box that came from another node what is different
// here. A later process of the node knows no variables of the order, and leaves the agent
// as it is. Preconditions: the turn is held.
func (b *Box) introduceHere(ctx context.Context, m machine.Machine) {
	if !b.stranger {
		return
	}
	o := b.order
	o.Network = b.rules.network()
	in, err := b.n.identity(b, o)
	if err == nil {
		err = introduce(ctx, agentOf(ctx, m), m, in)
	}
	if err != nil {
		slog.WarnContext(ctx, "an agent does not know that its sandbox is on another node", "sandbox", b.order.UID, "err", err)
		return
	}
	b.stranger = false
	b.rules.told(b.n.networkEnvironment(o.Network))
}

// woken takes note of how a wake ended, and returns what to tell who waited. If
// that is nothing, they look at the phase. Preconditions: mu is held.
func (b *Box) woken(err error, from machine.Tier, took time.Duration) error {
	switch {
	case b.state.Phase() != doze.Waking: // deleted, or its machine ended meanwhile
		return nil
	case err == nil:
		slog.Info("woke", "sandbox", b.order.UID, "tier", from.String(), "took", took)
		if b.machine != nil { // its processes may have ended just before
			if lost := b.checkpoint.fallBack(b.machine, time.Now()); lost != "" {
				b.note("its machine ended by itself; " + lost)
				b.life.spawn(b.writeDown)
			}
		}
		b.sinking.tried.Wake()
		if from == machine.OnDisk {
			b.conns.Woke(time.Now())
			b.life.spawn(func() { greet(b.life, b.agent(), b.order.UID) })
		}
		return b.move(doze.Woken, "")
	case errors.Is(err, machine.ErrGone):
		if lost := b.resort(time.Time{}, time.Now()); lost != "" {
			b.life.spawn(b.writeDown)
			return b.move(doze.Stayed, goneMessage+"; "+lost)
		}
		return b.move(doze.Broke, goneMessage)
	case errors.Is(err, machine.ErrDamaged) && !b.received && b.state.Is(doze.Waking):
		if lost := b.resort(time.Time{}, time.Now()); lost != "" {
			slog.Error("a checkpoint cannot be run", "sandbox", b.order.UID, "tier", from.String(), "err", err)
			b.life.spawn(b.writeDown)
			return b.move(doze.Stayed, "its checkpoint cannot be run; "+lost)
		}
	case b.life.Err() != nil:
		return errors.Join(b.move(doze.Stayed, ""), context.Cause(b.life))
	}
	if errors.Is(err, machine.ErrNoMemory) { // it is as it was, and its owner has nothing to repair
		if moved := b.move(doze.Stayed, ""); moved != nil {
			return moved
		}
		return err
	}
	slog.Error("wake", "sandbox", b.order.UID, "tier", from.String(), "err", err)
	kind, reason := doze.Unavailable, failure(err)
	if errors.Is(err, machine.ErrDamaged) { // the next wake will find it so
		kind, reason = doze.Conflict, reason+": restore one of its snapshots, or delete it"
	}
	if err := b.move(doze.Stayed, "a wake did not work: "+reason); err != nil {
		return err
	}
	return doze.Errorf(kind, "the sandbox could not be woken and sleeps on: %s", reason)
}
