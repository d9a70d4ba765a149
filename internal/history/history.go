// Package history stores what the platform did and took. It has the last day in detail and
// the last 30 days coarsely, in two files of fixed size. It reads the metrics that /metrics
// shows, and asks no sandbox.
//
// What must always hold: there is one writer, and a record that was written in part is
// left out.
package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
)

const (
	// DetailStep and DetailTime are of the records in detail.
	DetailStep = 10 * time.Second
	DetailTime = 24 * time.Hour
	// CoarseStep and CoarseTime are of the coarse records.
	CoarseStep = 10 * time.Minute
	CoarseTime = 30 * 24 * time.Hour

	// gatherTimeout bounds the question for metrics: less than a step, so that a slow
	// answer costs one record.
	gatherTimeout = 8 * time.Second
)

// The files of a history in its directory.
const (
	detailFile = "detail"
	coarseFile = "coarse"
)

// A Source returns all metrics of the platform, by their names.
type Source func(context.Context) (map[string]*dto.MetricFamily, error)

// History is one directory of records. It is made by Open. Run writes it, and Read may
// be called at any time.
type History struct {
	dir            *os.File // locked
	detail, coarse *ring
}

// Open opens the history of a directory, or begins one. It is an error if another process
// has it open.
func Open(dir string) (_ *History, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	h := &History{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if h.dir, err = os.Open(dir); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(h.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another process writes the history in %s: %w", dir, err)
	}
	keys := make([]string, len(columns))
	for i, c := range columns {
		keys[i] = c.key
	}
	if h.detail, err = openRing(filepath.Join(dir, detailFile), layout{DetailStep, int(DetailTime / DetailStep), keys}); err != nil {
		return nil, err
	}
	h.coarse, err = openRing(filepath.Join(dir, coarseFile), layout{CoarseStep, int(CoarseTime / CoarseStep), keys})
	return h, err
}

// Close closes the files. Run must have returned.
func (h *History) Close() error {
	var errs []error
	for _, r := range []*ring{h.detail, h.coarse} {
		if r != nil {
			errs = append(errs, r.f.Close())
		}
	}
	if h.dir != nil {
		errs = append(errs, h.dir.Close())
	}
	return errors.Join(errs...)
}

// Run asks for the metrics at the end of each step and records it, until ctx ends. What
// cannot be asked or written is logged once, until it works again.
func (h *History) Run(ctx context.Context, metrics Source) error {
	if err := h.catchUp(time.Now()); err != nil {
		slog.WarnContext(ctx, "the coarse history lacks times that the detailed one has", "err", err)
	}
	var before []float64
	failing := false
	for {
		end := time.Now().Truncate(DetailStep).Add(DetailStep)
		timer := time.NewTimer(time.Until(end))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		now, err := gather(ctx, metrics)
		if err == nil {
			err = h.record(end.Add(-DetailStep), since(before, now))
			before = now
		}
		if err != nil && !failing && ctx.Err() == nil {
			slog.WarnContext(ctx, "the history has a gap", "err", err)
		}
		failing = err != nil
	}
}

func gather(ctx context.Context, metrics Source) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, gatherTimeout)
	defer cancel()
	families, err := metrics(ctx)
	if err != nil {
		return nil, err
	}
	return totals(families), nil
}

// record writes a step, and the coarse one if it ends with this step.
func (h *History) record(at time.Time, values []float64) error {
	err := h.detail.write(at, values)
	if end := at.Add(DetailStep); end.Equal(end.Truncate(CoarseStep)) {
		err = errors.Join(err, h.coarsen(end.Add(-CoarseStep)))
	}
	return err
}

// coarsen makes a coarse record of the detailed ones.
func (h *History) coarsen(at time.Time) error {
	f := newFold()
	for _, values := range h.detail.between(at, at.Add(CoarseStep)) {
		f.add(values)
	}
	if f.empty() {
		return nil
	}
	return h.coarse.write(at, f.values())
}

// catchUp makes the coarse records of steps that ended while no process ran.
func (h *History) catchUp(now time.Time) error {
	var errs []error
	end := now.Truncate(CoarseStep)
	for at := end.Add(-DetailTime + CoarseStep); at.Before(end); at = at.Add(CoarseStep) {
		if !h.coarse.has(at) {
			errs = append(errs, h.coarsen(at))
		}
	}
	return errors.Join(errs...)
}
