package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
)

// Precopy implements [machine.Machine].
func (s *sandbox) Precopy(ctx context.Context) error {
	if s.Tier() != machine.Awake {
		return nil
	}
	if err := s.settled(ctx); err != nil {
		return fmt.Errorf("copy memory: %w", err)
	}
	s.dropAhead()
	if err := s.watch(ctx); err != nil && !errors.Is(err, errOld) {
		return fmt.Errorf("watch memory: %w", err)
	}
	err := s.precopy(ctx)
	if err != nil && !errors.Is(err, errOld) { // of a launcher that is older than that
		s.dropAhead()
		return fmt.Errorf("copy memory: %w", err)
	}
	return nil
}

// watch has the engine note which memory is touched from now on: the next copy leaves out
// what was not. Without it, all memory is read.
func (s *sandbox) watch(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	err := s.call(ctx, PathWatch, Target{ID: s.config.ID}, nil)
	if err == nil || errors.Is(err, errOld) || errors.Is(err, machine.ErrGone) {
		return err
	}
	slog.WarnContext(ctx, "an engine does not watch its memory", "sandbox", s.config.ID, "err", err)
	if state, err := s.engine.Load().find(ctx, s.config.ID); err != nil || state != StatePaused {
		return err
	}
	s.reach(machine.Paused) // it was not resumed
	return s.Resume(ctx)
}

// precopy copies the memory, but for what the last copy has.
func (s *sandbox) precopy(ctx context.Context) (err error) {
	dir := checkpoint.Precopy(s.config)
	if err := checkpoint.Begin(dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, checkpoint.Cancel(dir))
		}
	}()
	var made Made
	what := Precopy{ID: s.config.ID, Dir: checkpoint.Making(dir), Base: s.base()}
	if err := s.engine.Load().halting(ctx, PathPrecopy, what, &made); err != nil {
		return err
	}
	i := slices.IndexFunc(made.Files, func(f checkpoint.File) bool { return f.Name == checkpoint.FileIndex })
	if i < 0 {
		return errors.New("the launcher made no index")
	}
	if err := checkpoint.Precopied(s.config); err != nil {
		return err
	}
	s.ahead = &Base{Dir: dir, Index: made.Files[i]}
	return nil
}

// dropAhead removes what Precopy copied.
func (s *sandbox) dropAhead() {
	s.ahead = nil
	if err := checkpoint.DropPrecopy(s.config); err != nil {
		slog.Warn("remove a copy of memory", "sandbox", s.config.ID, "err", err)
	}
}

// Renew implements [machine.Machine].
func (s *sandbox) Renew(ctx context.Context, most time.Duration, freeze machine.Freeze) error {
	if err := s.renew(ctx, most, freeze); err != nil {
		return fmt.Errorf("renew the checkpoint: %w", err)
	}
	return nil
}

func (s *sandbox) renew(ctx context.Context, most time.Duration, freeze machine.Freeze) error {
	if t := s.Tier(); t != machine.Awake || !s.config.GoBack {
		return fmt.Errorf("the machine is %s, and must be awake and may go back", t)
	}
	if err := s.settled(ctx); err != nil {
		return err
	}
	defer s.dropAhead()
	next, last := checkpoint.Next(s.config), checkpoint.Last(s.config)
	if err := checkpoint.DropNext(s.config); err != nil { // of an attempt that was cut short
		return err
	}
	err := s.write(ctx, next, func(ctx context.Context, take func(context.Context) error) error {
		bounded, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		err := s.still(bounded, freeze, take)
		if err != nil && bounded.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", machine.ErrTooLong, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := checkpoint.Renew(s.config); err != nil {
		return errors.Join(err, checkpoint.DropNext(s.config))
	}
	bytes, _ := checkpoint.Size(last)
	s.bytes.Store(bytes)
	if err := errors.Join(s.d.vouchers.Moved(next, last), s.d.vouchers.Doubt(next)); err != nil {
		slog.WarnContext(ctx, "the next checkpoint shares nothing with the last", "sandbox", s.config.ID, "err", err)
	}
	return nil
}
