package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

const (
	// reconcileEvery is how soon something that did not work is tried again.
	reconcileEvery = 5 * time.Second
	// reconcileIdle is how often we look without being told that there is something:
	// only what a write to a broken database left behind is found so.
	reconcileIdle = 10 * time.Minute
	// reconcileBatch bounds one look at what is left to do.
	reconcileBatch = 1024
	// mendersMax bounds the calls to the node at a time.
	mendersMax = 8
	// partingsMax bounds those in which the node may only be waiting for the
	// grace period of a sandbox. They have places of their own: a sandbox that
	// takes its time does not keep others from ending.
	partingsMax = 256
	// packersMax bounds archives and ways back at a time: each writes what may
	// be a whole memory, and one of many would not end sooner.
	packersMax = 4
	// reconcileTimeout bounds one call, without a grace period, so that a stuck one
	// does not keep a place.
	reconcileTimeout = 2 * time.Minute
)

// machineLock is the beginning of the keys of machines that are nobody's.
const machineLock = "machine/"

// chore is something that is left to do.
type chore struct {
	do    func(context.Context) error
	grace time.Duration // how long it may take besides
	packs bool          // it is an archive, or the way back
	ends  bool          // it is the end of the sandbox: who deletes it does not interrupt that
}

// reconcile finishes what was begun: it ends deleted sandboxes, completes disabling
// and archiving, and removes machines and snapshots that nobody needs, until
// ctx ends.
func (s *Server) reconcile(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	prompt, patient, packers := make(chan struct{}, mendersMax), make(chan struct{}, partingsMax), make(chan struct{}, packersMax)
	for wait := reconcileEvery; s.reconciling.Wait(ctx, wait); {
		work, err := s.unfinished(ctx)
		if err != nil && ctx.Err() == nil {
			slog.ErrorContext(ctx, "clean-up is late", "err", err)
		}
		wait = reconcileIdle
		if err != nil || len(work) > 0 {
			wait = reconcileEvery
		}
		for id, c := range work {
			life, release, busy := s.locks.Try(ctx, id)
			if busy != nil {
				continue // its turn's holder is at it, or rings when it is done
			}
			places := prompt
			switch {
			case c.packs:
				places = packers
			case c.grace > 0:
				places = patient
			}
			tasks.Go(func() {
				defer func() {
					deleted := errors.Is(context.Cause(life), errDeleted)
					release()
					if deleted {
						s.reconciling.Ring() // it found the lock taken
					}
				}()
				select {
				case places <- struct{}{}:
				case <-life.Done():
					return
				}
				defer func() { <-places }()
				if c.ends {
					life = ctx
				}
				bounded, cancel := context.WithTimeout(life, reconcileTimeout+c.grace)
				defer cancel()
				if err := c.do(bounded); err != nil && ctx.Err() == nil {
					slog.WarnContext(ctx, "clean-up is tried again", "sandbox", id, "err", err)
				}
			})
		}
	}
}

// unfinished is what is left to do, by the turn that it needs.
func (s *Server) unfinished(ctx context.Context) (map[string]chore, error) {
	work := map[string]chore{}
	all, err := s.Store.Unfinished(ctx, reconcileBatch)
	if err != nil {
		return nil, err
	}
	restored, err := s.Store.Restored(ctx)
	if err != nil {
		return nil, err
	}
	for _, sb := range all {
		switch sb.Phase { //nolint:exhaustive // the store returns no others
		case doze.Pending, doze.Starting: // the request that began it holds its turn, or gave up
			if restored { // it may run for long
				continue
			}
			c := chore{do: func(ctx context.Context) error { return s.resume(ctx, sb.UID) }}
			if sb.Machine != sb.UID { // the machine before has its time
				c.grace = createTimeout + doze.GraceMax*time.Second
			}
			work[sb.UID] = c
		case doze.Deleting:
			work[sb.UID] = chore{do: func(ctx context.Context) error { return s.finishDelete(ctx, sb) }, grace: grace(sb), ends: true}
		case doze.Disabling:
			work[sb.UID] = chore{do: func(ctx context.Context) error { return s.finishDisable(ctx, sb.UID) }}
		case doze.Archiving:
			work[sb.UID] = chore{do: func(ctx context.Context) error { return s.finishArchive(ctx, sb.UID) }, grace: archiveTimeout, packs: true}
		case doze.Unarchiving:
			work[sb.UID] = chore{do: func(ctx context.Context) error { return s.finishUnarchive(ctx, sb.UID) }, grace: archiveTimeout, packs: true}
		}
	}
	leftovers, err := s.Store.Leftovers(ctx, reconcileBatch)
	for _, machine := range leftovers {
		// It has a turn of its own: nobody who changes a sandbox waits for it.
		work[machineLock+machine] = chore{do: func(ctx context.Context) error { return s.clear(ctx, machine) }, grace: doze.GraceMax * time.Second}
	}
	if err != nil {
		return work, err
	}
	dropped, err := s.Store.DroppedSnapshots(ctx, reconcileBatch)
	for _, id := range dropped {
		work["snapshot/"+id] = chore{do: func(ctx context.Context) error { return s.clearSnapshot(ctx, id) }}
	}
	if err != nil {
		return work, err
	}
	disks, err := s.Store.DroppedDisks(ctx, reconcileBatch)
	for _, id := range disks {
		work[diskLock+id] = chore{do: func(ctx context.Context) error { return s.clearDisk(ctx, id) }}
	}
	if err != nil || s.Bucket == nil { // what is left of drives waits for a bucket
		return work, err
	}
	drives, err := s.Store.DroppedDrives(ctx, reconcileBatch)
	for _, id := range drives {
		work[driveLock+id] = chore{do: func(ctx context.Context) error { return s.clearDrive(ctx, id) }}
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
	s.ends.tell(sb.UID)
	s.expiry.rang.Ring() // its retention began
	return err
}

// finishDisable completes what disable began. Preconditions: the lock of the
// sandbox is held.
func (s *Server) finishDisable(ctx context.Context, uid string) error {
	sb, err := s.Store.Sandbox(ctx, uid)
	if err != nil || sb.Phase != doze.Disabling { // it was enabled again
		return err
	}
	if err := s.Node.Disable(ctx, sb.Machine); err != nil {
		return err
	}
	_, err = s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Halted, At: time.Now()})
	return err
}

// clearLeftovers removes all machines that nobody needs.
func (s *Server) clearLeftovers(ctx context.Context) error {
	leftovers, err := s.Store.Leftovers(ctx, reconcileBatch)
	for _, machine := range leftovers {
		_, release, busy := s.locks.Take(ctx, machineLock+machine)
		if busy != nil {
			return errors.Join(err, busy)
		}
		err = errors.Join(err, s.clear(ctx, machine))
		release()
	}
	return err
}

// clear removes a machine that nobody needs. Preconditions: its turn is held.
func (s *Server) clear(ctx context.Context, machine string) error {
	// Read again: it may have become that of a sandbox since somebody looked.
	if is, err := s.Store.IsLeftover(ctx, machine); err != nil || !is {
		return err
	}
	if err := s.Node.Delete(ctx, machine); err != nil {
		return err
	}
	return s.Store.ForgetLeftover(ctx, machine)
}
