package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"doze"
	"doze/internal/store"
)

const (
	// mendEvery is how soon something that did not work is tried again.
	mendEvery = 5 * time.Second
	// mendIdle is how often we look without being told that there is something:
	// only what a write to a broken database left behind is found so.
	mendIdle = 10 * time.Minute
	// mendBatch bounds one look at what is left to do.
	mendBatch = 1024
	// mendersMax bounds the calls to the node at a time.
	mendersMax = 8
	// mendTimeout bounds one of them, so that a stuck one does not keep a place.
	mendTimeout = 2 * time.Minute
)

// mend finishes what was begun: it ends deleted sandboxes, completes disabling
// and removes machines that nobody needs, until ctx ends.
func (s *Server) mend(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	places := make(chan struct{}, mendersMax)
	for wait := mendEvery; s.mending.wait(ctx, wait); {
		work, err := s.unfinished(ctx)
		if err != nil && ctx.Err() == nil {
			slog.ErrorContext(ctx, "clean-up is late", "err", err)
		}
		wait = mendIdle
		if err != nil || len(work) > 0 {
			wait = mendEvery
		}
		for id, do := range work {
			life, release, busy := s.turns.try(ctx, id)
			if busy != nil {
				continue // its turn's holder is at it, or rings when it is done
			}
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				release()
				return
			}
			tasks.Go(func() {
				defer func() { release(); <-places }()
				bounded, cancel := context.WithTimeout(life, mendTimeout)
				defer cancel()
				if err := do(bounded); err != nil && ctx.Err() == nil {
					slog.WarnContext(ctx, "clean-up is tried again", "sandbox", id, "err", err)
				}
			})
		}
	}
}

// unfinished is what is left to do, by the turn that it needs.
func (s *Server) unfinished(ctx context.Context) (map[string]func(context.Context) error, error) {
	work := map[string]func(context.Context) error{}
	all, err := s.Store.Unfinished(ctx, mendBatch)
	if err != nil {
		return nil, err
	}
	for _, sb := range all {
		switch sb.Phase { //nolint:exhaustive // the store returns no others
		case doze.Pending, doze.Starting: // whoever began it holds its turn, or gave up
			work[sb.UID] = func(ctx context.Context) error { return s.abandon(ctx, sb.UID) }
		case doze.Deleting:
			work[sb.UID] = func(ctx context.Context) error { return s.finishDelete(ctx, sb) }
		case doze.Disabling:
			work[sb.UID] = func(ctx context.Context) error { return s.finishDisable(ctx, sb) }
		}
	}
	leftovers, err := s.Store.Leftovers(ctx, mendBatch)
	for _, machine := range leftovers {
		// It has a turn of its own: nobody who changes a sandbox waits for it.
		work["machine/"+machine] = func(ctx context.Context) error { return s.clear(ctx, machine) }
	}
	return work, err
}

func (s *Server) finishDelete(ctx context.Context, sb store.Sandbox) error {
	// Read again: a change that was interrupted may have given it a fresh machine.
	sb, err := s.Store.Sandbox(ctx, sb.UID)
	if err != nil || sb.Phase != doze.Deleting {
		return err
	}
	if err := s.Node.Delete(ctx, sb.Machine); err != nil {
		return err
	}
	_, err = s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Gone, At: time.Now()})
	s.expiry.ring() // its retention began
	return err
}

func (s *Server) finishDisable(ctx context.Context, sb store.Sandbox) error {
	if err := s.Node.Disable(ctx, sb.Machine); err != nil {
		return err
	}
	_, err := s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Halted, At: time.Now()})
	return err
}

// clear removes a machine that nobody needs.
func (s *Server) clear(ctx context.Context, machine string) error {
	if err := s.Node.Delete(ctx, machine); err != nil {
		return err
	}
	return s.Store.ForgetLeftover(ctx, machine)
}
