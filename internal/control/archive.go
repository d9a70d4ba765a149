package control

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

// archiveTimeout is how long an archive, or the way back, may take. Clients
// look for that long.
const archiveTimeout = 30 * time.Minute

// archiveSandbox answers at once; the reconcile loop does the work, now or
// after a crash.
func (s *Server) archiveSandbox(ctx context.Context, r *http.Request) (doze.Sandbox, error) {
	return s.lead(ctx, r, doze.Archiving, func(sb store.Sandbox) (store.Step, error) {
		st := store.Step{On: doze.Pack}
		st.Archive = &doze.Archive{Key: sb.Machine, Generation: doze.Generation, StartedAt: doze.Time{Time: time.Now()}}
		switch {
		case sb.Phase.Status() == doze.Running.Status():
			return st, nil
		case sb.Phase == doze.Archived:
			return st, errAlready(sb)
		}
		return st, doze.Errorf(doze.Conflict, "the sandbox is %s: only one that is %s can be archived", sb.Phase.Status(), doze.Running.Status())
	})
}

// unarchiveSandbox answers at once, in the same manner.
func (s *Server) unarchiveSandbox(ctx context.Context, r *http.Request) (doze.Sandbox, error) {
	return s.lead(ctx, r, doze.Unarchiving, func(sb store.Sandbox) (store.Step, error) {
		if sb.Phase != doze.Archived {
			return store.Step{}, doze.Errorf(doze.Conflict, "the sandbox is %s: only one that is %s can be unarchived", sb.Phase.Status(), doze.Archived.Status())
		}
		a := restoring(sb, doze.RestoreExtracting)
		a.RestoreStartedAt = doze.Time{Time: time.Now()}
		return store.Step{On: doze.Unpack, Archive: a}, nil
	})
}

// restoring is what is recorded of an archive whose way back is in a state.
func restoring(sb store.Sandbox, state doze.RestoreState) *doze.Archive {
	a := doze.Archive{}
	if sb.Archive != nil {
		a = *sb.Archive
	}
	a.Restore = &doze.Unarchive{State: state, TotalBytes: a.Size}
	if state == doze.RestoreSucceeded {
		a.Restore.RestoredBytes = a.Size
	}
	return &a
}

func errAlready(sb store.Sandbox) error {
	return doze.Errorf(doze.Conflict, "the sandbox is %s already", sb.Phase.Status())
}

// lead moves the sandbox of a path on by a step to a phase, whose work the loop
// that reconciles does.
func (s *Server) lead(ctx context.Context, r *http.Request, to doze.Phase, step func(store.Sandbox) (store.Step, error)) (doze.Sandbox, error) {
	found, err := s.living(ctx, r.PathValue("name"))
	if err == nil && found.Phase == to { // after its turn it is something else
		err = errAlready(found)
	}
	if err != nil {
		return doze.Sandbox{}, err
	}
	life, sb, release, err := s.occupy(ctx, found)
	if err != nil {
		return doze.Sandbox{}, err
	}
	defer s.reconciling.Ring()
	defer release()
	st, err := step(sb)
	if err != nil {
		return doze.Sandbox{}, err
	}
	st.At, st.Revision = time.Now(), sb.Revision
	if sb, err = s.Store.Apply(life, sb.UID, st); err != nil {
		return doze.Sandbox{}, unlessDeleted(life, err)
	}
	return s.show(life, sb), nil
}

// finishArchive completes an archive, or takes it back.
func (s *Server) finishArchive(ctx context.Context, uid string) error {
	sb, err := s.Store.Sandbox(ctx, uid)
	if err != nil || sb.Phase != doze.Archiving {
		return err
	}
	bytes, err := s.Node.Archive(ctx, sb.Machine)
	if err != nil {
		what := "it could not be archived and runs on"
		if s.glance(ctx, sb)[sb.Machine].Phase == doze.Standby {
			what = "it could not be archived and sleeps on"
		}
		return s.takeBack(ctx, sb, sb.Archive, fleet.Tell(err, "the archive"), what)
	}
	done := *sb.Archive
	done.CreatedAt, done.Size = doze.Time{Time: time.Now()}, bytes
	_, err = s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Packed, At: time.Now(), Archive: &done})
	return err
}

// finishUnarchive completes the way back, or takes it back.
func (s *Server) finishUnarchive(ctx context.Context, uid string) error {
	sb, err := s.Store.Sandbox(ctx, uid)
	if err != nil || sb.Phase != doze.Unarchiving {
		return err
	}
	o, err := s.order(ctx, sb)
	if err == nil {
		if err = s.Node.Unarchive(ctx, o); err != nil {
			err = fleet.Tell(err, "the way out of the archive")
		}
	}
	if err != nil {
		return s.takeBack(ctx, sb, restoring(sb, doze.RestoreFailed), err, "it could not be unarchived and stays in its archive")
	}
	_, err = s.Store.Apply(ctx, sb.UID, store.Step{
		On: doze.Unpacked, At: time.Now(), Archive: restoring(sb, doze.RestoreSucceeded),
	})
	return err
}

// takeBack records that a step did not work, and why. What only ended because
// we stop, or because somebody deletes the sandbox, is not recorded.
func (s *Server) takeBack(ctx context.Context, sb store.Sandbox, a *doze.Archive, err error, what string) error {
	if stopped(ctx, err) {
		return err
	}
	slog.ErrorContext(ctx, "a step is taken back", "sandbox", sb.UID, "phase", sb.Phase, "err", err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_, err = s.Store.Apply(ctx, sb.UID, store.Step{
		On: doze.Stayed, At: time.Now(), Message: what + ": " + doze.Public(err).Message, Archive: a,
	})
	return err
}

// stopped reports whether err only is because we stop, or somebody deletes the
// sandbox.
func stopped(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, fleet.ErrStopping)
}
