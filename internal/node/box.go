package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"doze"
	"doze/internal/machine"
	"doze/internal/peer"
)

const (
	// wakeTimeout bounds a wake. It is far above what we aim for, so that only
	// a machine that will never answer, or a very large one on a slow disk,
	// runs into it.
	wakeTimeout = 60 * time.Second

	// retrySink is the pause after a move to a lower tier that did not work,
	// such as one to a full disk.
	retrySink = time.Minute
)

// A Box is one sandbox on this node. It owns the machine: whoever calls one of
// its methods that change it holds the turn.
type Box struct {
	n      *Node
	order  peer.Order
	config machine.Config
	life   context.Context //nolint:containedctx // ends when the box is deleted or the node stops
	end    context.CancelFunc
	tasks  sync.WaitGroup
	turn   chan struct{} // held by who changes the machine
	client *http.Transport

	mu       sync.Mutex
	machine  machine.Machine    // guarded by mu; nil until it booted and after it is gone
	phase    doze.Phase         // guarded by mu; written by move only
	message  string             // guarded by mu; why it is in its phase, if there is more to say
	seq      uint64             // guarded by mu; of the last report
	changed  chan struct{}      // guarded by mu; closed and replaced by each change
	attempt  *attempt           // guarded by mu; the wake under way
	sinking  context.CancelFunc // guarded by mu; ends the move to a lower tier under way
	stuck    bool               // guarded by mu; the last such move did not work
	holds    int                // guarded by mu; requests in flight
	lastUsed time.Time          // guarded by mu
	woke     time.Time          // guarded by mu; when it came back from disk
	timer    *time.Timer        // guarded by mu; the next step down
}

// attempt is one wake, which any number of requests wait for.
type attempt struct {
	done chan struct{}
	err  error // set before done is closed
}

// newBox returns a box without a machine.
func (n *Node) newBox(o peer.Order, c machine.Config, phase doze.Phase) *Box {
	b := &Box{
		n: n, order: o, config: c, phase: phase,
		turn: make(chan struct{}, 1), changed: make(chan struct{}), lastUsed: time.Now(),
	}
	b.life, b.end = context.WithCancel(n.life)
	b.client = b.transport()
	b.timer = time.AfterFunc(time.Hour, b.step)
	b.timer.Stop()
	return b
}

// lock takes the turn to change the machine.
func (b *Box) lock(ctx context.Context) error {
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *Box) unlock() { <-b.turn }

// change runs do with the machine, in turn.
func (b *Box) change(ctx context.Context, do func(machine.Machine) error) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if m == nil {
		return machine.ErrGone
	}
	return do(m)
}

// Hold keeps the box running until release is called. A sleeping box is woken;
// callers that come meanwhile wait for the same wake.
func (b *Box) Hold(ctx context.Context) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.phase != doze.Running {
		try, err := b.wakeable()
		if err != nil {
			return nil, err
		}
		if err := b.wait(ctx, try); err != nil {
			return nil, err
		}
	}
	b.holds++
	b.lastUsed = time.Now()
	b.timer.Stop()
	return sync.OnceFunc(b.release), nil
}

// wakeable starts a wake if the box sleeps and reports whether waiting can
// help: for the end of that wake, or for the next change if there is none.
// Preconditions: mu is held, the box is not running.
func (b *Box) wakeable() (*attempt, error) {
	switch b.phase {
	case doze.Starting, doze.Suspending:
		return nil, nil //nolint:nilnil // it moves on by itself: wait for the next change
	case doze.Waking:
		return b.attempt, nil
	case doze.Standby:
		if b.sinking != nil {
			b.sinking()     // its end is a change
			return nil, nil //nolint:nilnil // as above
		}
		if err := b.move(doze.Called, ""); err != nil {
			return nil, err
		}
		b.attempt = &attempt{done: make(chan struct{})}
		b.tasks.Go(b.wake)
		return b.attempt, nil
	case doze.Failed:
		return nil, doze.Errorf(doze.Conflict, "the sandbox is failed: %s", b.message)
	default:
		return nil, doze.Errorf(doze.Conflict, "the sandbox is %s", b.phase)
	}
}

// wait blocks until the attempt has ended, or until the next change if there
// is none. Preconditions: mu is held.
func (b *Box) wait(ctx context.Context, try *attempt) error {
	until := b.changed
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
		return doze.Errorf(doze.Unavailable, "the sandbox is being deleted, or its node is shutting down")
	}
}

func (b *Box) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds--
	b.lastUsed = time.Now()
	b.arm()
}

// wake resumes the machine and wakes everybody who waits for it.
func (b *Box) wake() {
	ctx, cancel := context.WithTimeout(b.life, wakeTimeout)
	defer cancel()
	start := time.Now()
	var from machine.Tier
	err := b.change(ctx, func(m machine.Machine) error {
		from = m.Tier()
		return m.Resume(ctx)
	})

	b.mu.Lock()
	defer b.mu.Unlock()
	try := b.attempt
	b.attempt = nil
	if err != nil {
		slog.Error("wake", "sandbox", b.order.UID, "tier", from.String(), "err", err)
		try.err = doze.Wrap(err, doze.Unavailable, "the sandbox could not be woken and sleeps on, with nothing lost: %s", wakeFailure(err))
		_ = b.move(doze.Stayed, "a wake did not work: "+wakeFailure(err)) // a delete may have come first
	} else {
		slog.Info("woke", "sandbox", b.order.UID, "tier", from.String(), "took", time.Since(start))
		if from == machine.OnDisk {
			b.woke = time.Now()
			b.tasks.Go(b.greet)
		}
		_ = b.move(doze.Woken, "") // a delete may have come first
	}
	close(try.done)
}

// wakeFailure is the public reason of a failed wake.
func wakeFailure(err error) string {
	switch {
	case errors.Is(err, machine.ErrDamaged):
		// The driver's text names what differs, and no path.
		_, text, _ := strings.Cut(err.Error(), machine.ErrDamaged.Error())
		return machine.ErrDamaged.Error() + text
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	default:
		return "the engine reported an error; the node's log has it"
	}
}

// step is what the timer runs: the next move down.
func (b *Box) step() {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.life.Err() != nil || b.holds > 0:
	case b.phase == doze.Running:
		b.tasks.Go(b.suspend)
	case b.phase == doze.Standby && b.sinking == nil:
		b.sink(b.machine.Tier() + 1)
	}
}

// suspend pauses a box that nobody uses, unless a process in it asked to stay
// awake.
func (b *Box) suspend() {
	if b.n.busy(b) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lastUsed = time.Now()
		b.arm()
		return
	}
	b.mu.Lock()
	if b.holds > 0 || b.move(doze.Idled, "") != nil {
		b.mu.Unlock()
		return // a request won the race against the timer
	}
	b.mu.Unlock()
	b.client.CloseIdleConnections() // nothing may write to them while it sleeps

	err := b.change(b.life, func(m machine.Machine) error { return m.Suspend(b.life, machine.Paused) })

	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		slog.Error("suspend", "sandbox", b.order.UID, "err", err)
		_ = b.move(doze.Stayed, "it could not be put to sleep and runs on") // a delete may have come first
		return
	}
	_ = b.move(doze.Suspended, "") // a delete may have come first
}

// sink starts the move of a sleeping box to a lower tier. A request that comes
// meanwhile ends it early. Preconditions: mu is held, the phase is Standby, no
// move is under way.
func (b *Box) sink(to machine.Tier) {
	if b.machine == nil || b.machine.Tier() >= to {
		return
	}
	ctx, cancel := context.WithCancel(b.life)
	b.sinking = cancel
	b.tasks.Go(func() {
		defer cancel()
		start := time.Now()
		err := b.change(ctx, func(m machine.Machine) error { return m.Suspend(ctx, to) })

		b.mu.Lock()
		defer b.mu.Unlock()
		b.sinking = nil
		b.signal()
		switch {
		case err == nil:
			b.stuck = false
			slog.Info("sank", "sandbox", b.order.UID, "tier", to.String(), "took", time.Since(start))
			b.arm()
		case ctx.Err() == nil:
			slog.Error("sink", "sandbox", b.order.UID, "tier", to.String(), "err", err)
			if !b.stuck {
				b.note("it could not be moved to disk and stays in memory")
			}
			b.stuck = true
			b.timer.Reset(retrySink)
		}
	})
}

// arm sets the timer for the next step down. Preconditions: mu is held.
func (b *Box) arm() {
	switch {
	case b.phase == doze.Running && b.holds == 0:
		b.timer.Reset(b.n.PauseAfter)
	case b.phase == doze.Standby && b.sinking == nil && b.machine.Tier() == machine.Paused:
		b.timer.Reset(b.n.SaveAfter)
	case b.phase == doze.Standby && b.sinking == nil && b.machine.Tier() == machine.Saved:
		b.timer.Reset(max(0, b.n.DiskAfter-b.n.SaveAfter))
	default:
		b.timer.Stop()
	}
}

// move applies one transition, reports it and wakes everyone who waits for a
// change. Preconditions: mu is held.
func (b *Box) move(on doze.Trigger, message string) error {
	next, err := doze.Next(b.phase, on)
	if err != nil {
		return err
	}
	slog.Debug("transition", "sandbox", b.order.UID, "from", b.phase, "on", on, "phase", next)
	b.phase, b.message = next, message
	b.signal()
	b.arm()
	b.report(message, false)
	return nil
}

// signal wakes everyone who waits for a change. Preconditions: mu is held.
func (b *Box) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// note reports something that changes no phase. Preconditions: mu is held.
func (b *Box) note(message string) { b.report(message, true) }

// report queues a report. Preconditions: mu is held.
func (b *Box) report(message string, note bool) {
	now := time.Now()
	b.seq = max(b.seq+1, uint64(now.UnixNano())) //nolint:gosec // G115: grows over restarts too
	b.n.reports.put(peer.Report{UID: b.order.UID, Seq: b.seq, Phase: b.phase, Message: message, At: now, Note: note})
}

// status returns what is known now.
func (b *Box) status() peer.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := peer.Status{Phase: b.phase, LastUsed: b.lastUsed, InUse: b.holds > 0 || b.phase == doze.Waking}
	if s.InUse {
		s.LastUsed = time.Now()
	}
	if b.machine != nil {
		s.Tier = b.machine.Tier().String()
	}
	return s
}

// event takes note of what the machine did by itself.
func (b *Box) event(e machine.Event) {
	if !e.Exited {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.note(e.Message)
		return
	}
	if b.lock(b.life) != nil {
		return // it is being deleted
	}
	defer b.unlock()
	m, err := b.n.Driver.Adopt(b.life, b.config) // is a complete checkpoint left?
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase.Ended() {
		return
	}
	if err != nil {
		b.machine = nil
		_ = b.move(doze.Broke, e.Message) // every live phase has a row for Broke
		if err := b.n.keep(b); err != nil {
			slog.Error("write a record", "sandbox", b.order.UID, "err", err)
		}
		return
	}
	b.machine = m
	if b.phase == doze.Running {
		// It ended while its memory was still being loaded: the checkpoint is
		// what it was when it woke.
		_ = b.move(doze.Idled, "")
		_ = b.move(doze.Suspended, e.Message+"; it sleeps on from its checkpoint")
	} else {
		b.note(e.Message + "; its checkpoint is complete")
	}
	b.signal()
}

// dial connects to a port of the running machine. For a moment after a wake
// from disk its listeners are not back yet: a refused connection is tried again.
func (b *Box) dial(ctx context.Context, port uint16) (net.Conn, error) {
	for {
		b.mu.Lock()
		m, again := b.machine, time.Since(b.woke) < relisten
		b.mu.Unlock()
		if m == nil {
			return nil, doze.Errorf(doze.Unavailable, "the sandbox has no machine")
		}
		conn, err := m.Dial(ctx, port)
		if err == nil || !refused(err) {
			return conn, err
		}
		if !again {
			return nil, fmt.Errorf("port %d: %w", port, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(redial):
		}
	}
}
