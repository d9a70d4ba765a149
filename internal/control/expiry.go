package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"doze"
	"doze/internal/store"
)

const (
	// clockCheck bounds how long the timer sleeps, if nobody tells us of a step
	// of the machine's clock.
	clockCheck = time.Minute
	// dueBatch is how many due records are handled before looking again.
	dueBatch = 256
)

// expire ends sandboxes and purges records when their deadlines come. One
// timer serves them all: the earliest deadline is an index lookup away.
func (s *Server) expire(ctx context.Context) {
	for {
		wait := clockCheck
		next, err := s.sweep(ctx)
		switch {
		case err != nil:
			wait = retryAfter
			if ctx.Err() == nil {
				slog.ErrorContext(ctx, "expiry is late", "err", err)
			}
		case !next.IsZero():
			wait = min(wait, time.Until(next))
		}
		if !s.expiry.wait(ctx, wait) {
			return
		}
	}
}

// sweep handles what is due now and returns the next deadline.
func (s *Server) sweep(ctx context.Context) (next time.Time, err error) {
	if s.stepped.Swap(false) {
		if err := s.reschedule(ctx); err != nil {
			s.stepped.Store(true)
			return next, err
		}
	}
	now := time.Now()
	due, err := s.Store.Due(ctx, now, dueBatch)
	if err != nil {
		return next, err
	}
	var over []store.Ending
	var later []store.Deadline
	for _, sb := range due {
		at, why := s.deadlineAt(sb, now)
		if at.IsZero() || at.After(now) { // used or changed meanwhile
			later = append(later, store.Deadline{UID: sb.UID, Revision: sb.Revision, At: at})
			continue
		}
		over = append(over, store.Ending{UID: sb.UID, Revision: sb.Revision, Message: "the sandbox is deleted: " + why})
	}
	ended, err := s.Store.End(ctx, over, now)
	if err != nil {
		return next, err
	}
	for _, sb := range ended {
		s.ended(ctx, sb)
	}
	if err := s.Store.SetDeadlines(ctx, later); err != nil {
		return next, err
	}
	if _, err := s.Store.Purge(ctx, now, dueBatch); err != nil {
		return next, err
	}
	return s.Store.NextDeadline(ctx)
}

// deadlineAt is when a sandbox must end, and why, on the clock of the wall as
// it is now. The node counts idle time by what has passed, and so do we: a
// step of the clock neither ends a sandbox that is used nor keeps one that is
// not.
func (s *Server) deadlineAt(sb store.Sandbox, now time.Time) (at time.Time, why string) {
	at, why = sb.Spec.Deadline(sb.Metadata.CreatedAt.Time, s.lastUsed(sb, now), true)
	if at.IsZero() {
		return at, why
	}
	return now.Add(at.Sub(now)).Round(0), why
}

// ClockStepped tells that somebody set the clock of the host.
func (s *Server) ClockStepped() {
	s.stepped.Store(true)
	s.expiry.ring()
	s.setBack.Store(true)
	s.agenda.ring()
}

// reschedule computes the deadlines anew that the clock of the wall, when it
// was set, has made wrong.
func (s *Server) reschedule(ctx context.Context) error {
	now := time.Now()
	var wrong []store.Deadline
	err := s.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		if at, _ := s.deadlineAt(sb, now); !at.Truncate(time.Millisecond).Equal(sb.Deadline) {
			wrong = append(wrong, store.Deadline{UID: sb.UID, Revision: sb.Revision, At: at})
		}
		return nil
	})
	for batch := range slices.Chunk(wrong, dueBatch) {
		err = errors.Join(err, s.Store.SetDeadlines(ctx, batch))
	}
	return err
}

// end begins to delete a sandbox: nobody finds it any more and its name is
// free. What runs of it is ended by the loop that mends.
func (s *Server) end(ctx context.Context, sb store.Sandbox, why string) (store.Sandbox, error) {
	sb, err := s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Delete, Message: why, At: time.Now()})
	if err == nil {
		s.ended(ctx, sb)
	}
	return sb, err
}

// ended lets nobody find a sandbox any more that is recorded as deleted.
func (s *Server) ended(ctx context.Context, sb store.Sandbox) {
	s.drop(sb)
	s.unpublish(ctx, sb.UID)
	s.turns.interrupt(sb.UID)
	s.mending.ring()
}

// lastUsed is when a sandbox was last used: now, if it is in use. The node
// knows best, but not what was before it, and us, began; the record does.
func (s *Server) lastUsed(sb store.Sandbox, now time.Time) time.Time {
	st, ok := s.Node.Status(sb.Machine)
	switch {
	case ok && st.InUse:
		return now
	case ok && st.LastUsed.After(s.began):
		return st.LastUsed
	}
	return sb.LastUsed
}
