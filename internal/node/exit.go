package node

import (
	"cmp"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// over reports whether the end of the machine says nothing new about a box: it failed
// before, or needs none. Preconditions: mu is held.
func (b *Box) over() bool {
	return b.state.Phase().Ended() || b.state.Is(doze.Failed, doze.Archived)
}

// event takes note of what the machine did by itself.
func (b *Box) event(e machine.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over():
	case !e.Exited:
		b.note(e.Message)
	case b.state.Is(doze.Starting): // Create is waiting for it, and takes everything back
		b.life.end(doze.Errorf(doze.Unavailable, "the sandbox ended while it started: %s", e.Message))
	default:
		b.life.spawn(func() { b.exited(e.Message) })
	}
}

// exited finds out what is left of a machine that ended by itself.
func (b *Box) exited(message string) {
	if b.turn.take(b.life) != nil {
		return // it is being deleted
	}
	defer b.unlock()
	m, err := b.n.Driver.Adopt(b.life, b.made.config) // is a complete checkpoint left?
	if b.life.Err() != nil {
		return
	}
	if b.left(m, err, message) {
		b.hangUp() // nobody is left to answer
	}
	if b.phase() != doze.Failed {
		return
	}
	if err := b.n.save(b, doze.Failed, message); err != nil {
		slog.Error("write a record", "sandbox", b.order.UID, "err", err)
	}
}

// left goes on with what Adopt found after the machine's end, and reports
// whether that has no processes. Preconditions: the turn is held.
func (b *Box) left(m machine.Machine, err error, message string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over():
		return true
	case err != nil:
		if !errors.Is(err, machine.ErrGone) {
			slog.Error("adopt", "sandbox", b.order.UID, "err", err)
		} else if lost := b.resort(time.Time{}, time.Now()); lost != "" {
			b.life.spawn(b.writeDown)
			b.sleepOn(message, lost)
			return true
		}
		b.machine = nil
		_ = b.move(doze.Broke, message) // every live phase has a row for Broke
		return true
	}
	b.machine = m
	lost := b.checkpoint.fallBack(m, time.Now())
	if lost != "" {
		lost = cmp.Or(b.resort(m.WentBack(), time.Now()), lost)
		b.life.spawn(b.writeDown)
	}
	if m.Tier() == machine.Awake { // that was the end of an earlier incarnation
		return false
	}
	b.sleepOn(message, lost)
	return true
}

// sleepOn takes note that a box has lost its processes, and what it lost with them besides.
// Preconditions: the turn and mu are held.
func (b *Box) sleepOn(message, lost string) {
	message = strings.TrimRight(strings.TrimSuffix(message, machine.Recovery), ":; ") // it goes on by itself
	if b.state.Is(doze.Running) {
		// It ended while its memory was still being loaded: the checkpoint is
		// what it was when it woke.
		b.lieDown(message + "; " + cmp.Or(lost, "it sleeps on from its checkpoint"))
	} else {
		b.note(message + "; " + cmp.Or(lost, "its checkpoint is complete"))
	}
	b.sinking.arm()
}
