package control

import (
	"context"
	"log/slog"
	"time"

	"doze"
	"doze/internal/store"
)

const (
	// clockCheck bounds how long the timer sleeps, so that a step of the
	// machine's clock is noticed.
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
	now := time.Now()
	due, err := s.Store.Due(ctx, now, dueBatch)
	if err != nil {
		return next, err
	}
	for _, sb := range due {
		if err := s.due(ctx, sb, now); err != nil {
			return next, err
		}
	}
	if _, err := s.Store.Purge(ctx, now, dueBatch); err != nil {
		return next, err
	}
	return s.Store.NextDeadline(ctx)
}

// due ends a sandbox whose deadline has come, or moves the deadline if it was
// used meanwhile.
func (s *Server) due(ctx context.Context, sb store.Sandbox, now time.Time) error {
	at, why := sb.Spec.Deadline(sb.Metadata.CreatedAt.Time, s.lastUsed(sb, now), true)
	if at.IsZero() || at.After(now) {
		return s.Store.SetDeadline(ctx, sb.UID, sb.Revision, at)
	}
	_, err := s.end(ctx, sb, sb.Revision, "the sandbox is deleted: "+why)
	if doze.Public(err).Kind == doze.Conflict {
		return nil // changed or deleted meanwhile: it is no longer due, or due again
	}
	return err
}

// end begins to delete a sandbox: nobody finds it any more and its name is
// free. What runs of it is ended by the loop that mends.
func (s *Server) end(ctx context.Context, sb store.Sandbox, revision int64, why string) (store.Sandbox, error) {
	sb, err := s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Delete, Message: why, At: time.Now(), Revision: revision})
	if err != nil {
		return sb, err
	}
	s.drop(sb)
	s.turns.interrupt(sb.UID)
	s.mending.ring()
	return sb, nil
}

// lastUsed is when a sandbox was last used: now, if it is in use. The node
// knows best; without it, the record does.
func (s *Server) lastUsed(sb store.Sandbox, now time.Time) time.Time {
	used := sb.LastUsed
	if st, ok := s.Node.Status(sb.Machine); ok {
		if st.InUse {
			return now
		}
		if st.LastUsed.After(used) {
			used = st.LastUsed
		}
	}
	return used
}
