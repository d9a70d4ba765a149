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
		}
		b.machine = nil
		_ = b.move(doze.Broke, message) // every live phase has a row for Broke
		return true
	}
	b.machine = m
	message = strings.TrimRight(strings.TrimSuffix(message, machine.Recovery), ":; ") // it goes on by itself
	lost := b.checkpoint.fallBack(m, time.Now())
	if lost != "" {
		b.life.spawn(b.saveSetback)
	}
	switch {
	case m.Tier() == machine.Awake: // that was the end of an earlier incarnation
		return false
	case b.state.Is(doze.Running):
		// It ended while its memory was still being loaded: the checkpoint is
		// what it was when it woke.
		b.lieDown(message + "; " + cmp.Or(lost, "it sleeps on from its checkpoint"))
	default:
		b.note(message + "; " + cmp.Or(lost, "its checkpoint is complete"))
	}
	b.sinking.arm()
	return true
}
