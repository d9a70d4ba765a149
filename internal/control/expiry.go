package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// clockCheck bounds how long the timer sleeps, if nobody tells us of a step
	// of the machine's clock.
	clockCheck = time.Minute
	// dueBatch is how many due records are handled before looking again: what
	// one transaction ends in about a tenth of a second.
	dueBatch = 1024
	// purgeBatch is how many records are forgotten before looking again. Each of
	// them takes dozens of rows of the index of searches along, and what is due
	// waits meanwhile.
	purgeBatch = 64
	// consultsMax bounds the sandboxes that are asked at a time whether they are
	// in use.
	consultsMax = 64
	// consultTimeout is longer than a node waits for an answer.
	consultTimeout = time.Minute
	// awayRetry is how soon a due sandbox is looked at again whose node is away.
	awayRetry = 5 * time.Second
)

// expire ends sandboxes and purges records when their deadlines come. One
// timer serves them all: the earliest deadline is an index lookup away.
func (s *Server) expire(ctx context.Context) {
	var consults sync.WaitGroup
	defer consults.Wait()
	places := make(chan struct{}, consultsMax)
	for {
		wait := clockCheck
		next, unsure, err := s.sweep(ctx)
		if err == nil {
			s.expiry.set(next)
			if !next.IsZero() {
				wait = min(wait, time.Until(next))
			}
		} else {
			wait = retryAfter
			if ctx.Err() == nil {
				slog.ErrorContext(ctx, "expiry is late", "err", err)
			}
		}
		for _, sb := range unsure {
			consults.Go(func() {
				select {
				case places <- struct{}{}:
					defer func() { <-places }()
					s.consult(ctx, sb)
				case <-ctx.Done():
				}
			})
		}
		if !s.expiry.rang.Wait(ctx, wait) {
			return
		}
	}
}

// sweep handles what is due now and returns the next deadline, and what it is
// unsure of: sandboxes that are due unless something inside keeps them awake.
func (s *Server) sweep(ctx context.Context) (next time.Time, unsure []store.Sandbox, err error) {
	if s.stepped.Swap(false) {
		if err := s.reschedule(ctx); err != nil {
			s.stepped.Store(true)
			return next, nil, err
		}
	}
	if restored, err := s.Store.Restored(ctx); restored || err != nil { // its time may be another one since
		return next, nil, err
	}
	now := time.Now()
	due, err := s.Store.Due(ctx, now, dueBatch)
	if err != nil {
		return next, nil, err
	}
	by, away, err := reach(ctx, s, due...)
	if err != nil {
		return next, nil, err
	}
	var sure []store.Sandbox
	var later []store.Deadline
	for _, sb := range due {
		if away[sb.Machine] { // it waits for its node, and others do not wait for it
			later = append(later, store.Deadline{UID: sb.UID, Revision: sb.Revision, At: now.Add(awayRetry)})
			continue
		}
		if !s.unsure(sb, by, now) {
			sure = append(sure, sb)
			continue
		}
		at := now.Add(consultTimeout) // should we end before we know
		if last := lastDay(sb); !last.IsZero() && last.Before(at) {
			at = last
		}
		unsure, later = append(unsure, sb), append(later, store.Deadline{UID: sb.UID, Revision: sb.Revision, At: at})
	}
	if err := s.Store.SetDeadlines(ctx, later); err != nil {
		return next, nil, err
	}
	if err := s.conclude(ctx, sure, now); err != nil {
		return next, unsure, err
	}
	if err := endLogs(ctx, s, now); err != nil {
		return next, unsure, err
	}
	if _, err := s.Store.Purge(ctx, now, purgeBatch); err != nil {
		return next, unsure, err
	}
	next, err = s.Store.NextDeadline(ctx)
	return next, unsure, err
}

// reach is look where nodes may be away: then it says of which machines nobody knows anything.
func reach(ctx context.Context, s *Server, all ...store.Sandbox) (by seen, away map[string]bool, err error) {
	if by, err = s.look(ctx, all...); !errors.Is(err, fleet.ErrUnreachable) || ctx.Err() != nil {
		return by, nil, err
	}
	away = map[string]bool{}
	for _, sb := range all {
		if _, ok := by[sb.Machine]; !ok {
			away[sb.Machine] = true
		}
	}
	return by, away, nil
}

// unsure reports whether only the agent of a due sandbox knows if it is unused.
func (s *Server) unsure(sb store.Sandbox, by seen, now time.Time) bool {
	st, ok := by[sb.Machine]
	at, _ := s.deadlineAt(sb, by, now)
	return ok && st.Phase == doze.Running && (st.InUse || passed(at, now)) && !passed(lastDay(sb), now)
}

// consult has the agent of a sandbox asked, and goes on with what it says.
func (s *Server) consult(ctx context.Context, sb store.Sandbox) {
	bounded, cancel := context.WithTimeout(ctx, consultTimeout)
	defer cancel()
	// An agent that does not answer has lost its say; a node that does not, has not.
	err := s.Node.Consult(bounded, sb.Machine)
	if err == nil || bounded.Err() != nil {
		err = s.conclude(ctx, []store.Sandbox{sb}, time.Now())
	}
	if err != nil && ctx.Err() == nil {
		slog.ErrorContext(ctx, "expiry is late", "sandbox", sb.UID, "err", err)
	}
	s.expiry.rang.Ring()
}

// conclude ends those sandboxes whose time has come, and notes when to look at
// the others again.
func (s *Server) conclude(ctx context.Context, due []store.Sandbox, now time.Time) error {
	by, unknown := s.look(ctx, due...)
	if unknown != nil {
		return unknown
	}
	var later []store.Deadline
	var endings []store.Ending
	over := map[string]store.Sandbox{}
	for _, sb := range due {
		at, why := s.deadlineAt(sb, by, now)
		if passed(at, now) && !passed(lastDay(sb), now) {
			retired, err := s.Node.Retire(ctx, sb.Machine, now)
			if err != nil {
				unknown = errors.Join(unknown, err)
				continue // it is due, and the next look finds it so
			}
			if !retired {
				at, why = s.deadlineAt(sb, s.glance(ctx, sb), time.Now()) // somebody used it just now
			}
		}
		if !passed(at, now) {
			later = append(later, store.Deadline{UID: sb.UID, Revision: sb.Revision, At: at})
			continue
		}
		over[sb.UID] = sb
		endings = append(endings, store.Ending{UID: sb.UID, Revision: sb.Revision, Redeploys: sb.Redeploys, Message: "the sandbox is deleted: " + why})
	}
	uids, err := s.Store.End(ctx, endings, now)
	var ended []store.Sandbox
	for _, uid := range uids {
		sb := over[uid]
		ended = append(ended, sb)
		_, why := s.deadlineAt(sb, by, now)
		s.Audit.Acted(sb.Metadata.Workspace, "sandboxes.expire", "sandboxes", sb.Metadata.Name, doze.AuditDone, why)
		delete(over, uid)
	}
	for _, sb := range over { // it changed meanwhile, or nothing could be recorded
		err = errors.Join(err, s.Node.Reinstate(ctx, sb.Machine))
	}
	if len(ended) > 0 {
		s.ended(ctx, ended...)
	}
	return errors.Join(unknown, err, s.Store.SetDeadlines(ctx, later))
}

// passed reports whether a deadline has come, if it is one.
func passed(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// lastDay is when a sandbox ends, used or not; zero is never.
func lastDay(sb store.Sandbox) time.Time {
	at, _ := sb.Spec.Deadline(sb.Metadata.CreatedAt.Time, time.Time{}, false)
	return at
}

// deadlineAt is when a sandbox must end, and why, on the clock of the wall as it is
// now. The node counts idle time by what has passed, and so do we. A step of the clock
// neither ends a sandbox in use nor keeps an idle one alive.
func (s *Server) deadlineAt(sb store.Sandbox, by seen, now time.Time) (at time.Time, why string) {
	at, why = sb.Spec.Deadline(sb.Metadata.CreatedAt.Time, s.lastUsed(sb, by, now), true)
	if at.IsZero() {
		return at, why
	}
	return now.Add(at.Sub(now)).Round(0), why
}

// ClockStepped tells that somebody set the clock of the host.
func (s *Server) ClockStepped() {
	s.stepped.Store(true)
	s.expiry.rang.Ring()
}

// reschedule computes the deadlines anew that the clock of the wall, when it
// was set, has made wrong.
func (s *Server) reschedule(ctx context.Context) error {
	now := time.Now()
	var wrong []store.Deadline
	var some []store.Sandbox
	compare := func() error {
		by, away, err := reach(ctx, s, some...)
		if err != nil {
			return err
		}
		for _, sb := range some {
			if away[sb.Machine] { // the sweep looks again, and computes it when the node is back
				wrong = append(wrong, store.Deadline{UID: sb.UID, Revision: sb.Revision, At: now})
				continue
			}
			if at, _ := s.deadlineAt(sb, by, now); !at.Truncate(time.Millisecond).Equal(sb.Deadline) {
				wrong = append(wrong, store.Deadline{UID: sb.UID, Revision: sb.Revision, At: at})
			}
		}
		some = some[:0]
		return nil
	}
	err := s.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		if some = append(some, sb); len(some) < dueBatch {
			return nil
		}
		return compare()
	})
	err = errors.Join(err, compare())
	for batch := range slices.Chunk(wrong, dueBatch) {
		err = errors.Join(err, s.Store.SetDeadlines(ctx, batch))
	}
	return err
}

// end begins to delete a sandbox: nobody finds it any more and its name is
// free. What runs of it is ended by the reconcile loop.
func (s *Server) end(ctx context.Context, sb store.Sandbox, why string) (store.Sandbox, error) {
	sb, err := s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Delete, Message: why, At: time.Now()})
	if err == nil {
		s.ended(ctx, sb)
	}
	return sb, err
}

// ended lets nobody find sandboxes any more that are recorded as deleted.
func (s *Server) ended(ctx context.Context, all ...store.Sandbox) {
	uids := make([]string, len(all))
	for i, sb := range all {
		uids[i] = sb.UID
		s.drop(sb)
		s.locks.Interrupt(sb.UID, errDeleted)
		s.Builds.Forsake(ctx, build.SandboxTarget(sb.UID), "the sandbox was deleted")
	}
	s.Unpublish(ctx, uids...)
	s.reconciling.Ring()
}
