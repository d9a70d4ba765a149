package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dozehq/doze/internal/testkit"
)

// harm is something that ends processes at a random moment.
type harm struct {
	name string
	do   func(*run, context.Context, *rand.Rand) error
	// sandboxes may go back to their last checkpoint
	rewinds bool
}

// harms is a table: each round does all of them, in random order.
var harms = []harm{
	{"dozed", (*run).killDozed, false},
	{"dozed again", (*run).killDozed, false},
	{"launcher", (*run).killLauncher, true},
	{"engine", (*run).killEngine, true},
	{"engine again", (*run).killEngine, true},
	{"power", (*run).cutPower, true},
}

// settleTime bounds how long the platform takes to notice an end.
const settleTime = 20 * time.Second

// harm does harm until ctx ends. What it began it finishes.
func (r *run) harm(ctx context.Context, dice *rand.Rand) error {
	for {
		for _, i := range dice.Perm(len(harms)) {
			if !sleep(ctx, dice, 2*harmEvery) {
				return nil
			}
			if err := r.inflict(context.WithoutCancel(ctx), harms[i], dice); err != nil {
				return fmt.Errorf("%s: %w", harms[i].name, err)
			}
		}
	}
}

func (r *run) inflict(ctx context.Context, h harm, dice *rand.Rand) error {
	r.epoch.Add(1)
	if h.rewinds {
		r.crashes.Add(1)
	}
	if err := h.do(r, ctx, dice); err != nil {
		return err
	}
	if h.rewinds {
		r.crashes.Add(1)
	}
	r.epoch.Add(1)
	return nil
}

// killDozed kills dozed and starts it again.
func (r *run) killDozed(ctx context.Context, _ *rand.Rand) error {
	if err := r.p.Kill(); err != nil {
		return err
	}
	r.count(func(c *counts) { c.dozeds++ })
	return r.restart(ctx)
}

func (r *run) restart(ctx context.Context) error {
	start := time.Now()
	if err := r.p.Restart(ctx); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	took := time.Since(start)
	r.count(func(c *counts) { c.slowestRestart = max(c.slowestRestart, took) })
	return nil
}

// killLauncher kills the launcher and waits for the next one. What the old one
// filled with memory just now goes back to where that comes from.
func (r *run) killLauncher(ctx context.Context, _ *rand.Rand) error {
	pid, err := r.p.Launcher()
	if err == nil {
		err = testkit.Shoot(ctx, pid)
	}
	if err != nil {
		return err
	}
	r.count(func(c *counts) { c.launchers++ })
	return eventually(ctx, func() error { _, err := r.p.Machines(ctx); return err })
}

// killEngine kills the process of one canary, if it has one, and waits until the
// launcher noticed.
func (r *run) killEngine(ctx context.Context, dice *rand.Rand) error {
	name := fmt.Sprintf(canaryName, dice.IntN(r.sandboxes))
	uid, err := r.p.UID(name)
	if err != nil {
		return nil //nolint:nilerr // it was lost with the power, and is not there again
	}
	engines := r.p.Engines(uid)
	if len(engines) == 0 {
		return nil // it is on disk
	}
	if err := testkit.Shoot(ctx, engines[0]); err != nil {
		return nil //nolint:nilerr // it has just gone to disk
	}
	r.count(func(c *counts) { c.engines++ })
	return eventually(ctx, func() error {
		now := r.p.Engines(uid)
		if len(now) > 0 && now[0] == engines[0] {
			return errors.New("the process of a sandbox does not end")
		}
		return nil
	})
}

// cutPower cuts the power of the disk and ends everything, and starts again with
// what the disk has.
func (r *run) cutPower(ctx context.Context, _ *rand.Rand) error {
	r.cutAt.Store(time.Now().UnixNano())
	if err := r.disk.Cut(); err != nil {
		return err
	}
	if err := errors.Join(r.p.Reboot(), r.disk.On(ctx)); err != nil {
		return err
	}
	r.count(func(c *counts) { c.cuts++ })
	return r.restart(ctx)
}

// eventually repeats a check until it finds nothing to complain about.
func eventually(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(moveEvery):
		}
	}
}
