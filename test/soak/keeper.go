package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"doze/internal/testkit"
)

// A keeper is a sandbox whose state we know at any time.
type keeper struct {
	*testkit.Keeper

	r     *run
	made  int      // snapshots of it
	forks []string // sandboxes that were made of them and may be there
}

// clockMax is how far the clock of a sandbox that just woke may be off.
const clockMax = 50 * time.Millisecond

func (r *run) keeper(ctx context.Context, name string) (*keeper, error) {
	k, err := r.p.Keep(ctx, name, fmt.Sprintf("%s-%d", name, r.seed), r.megabytes)
	return &keeper{Keeper: k, r: r}, err
}

// live makes steps at random instants until ctx ends, and copies now and then.
func (k *keeper) live(ctx context.Context, dice *rand.Rand) {
	defer func() { k.Close() }()
	for sleep(ctx, dice, restMax) {
		if dice.IntN(copyOneIn) == 0 {
			k.copies(ctx, dice)
		} else {
			k.step(ctx)
		}
	}
}

// step makes one step and compares its result with what it must be.
func (k *keeper) step(ctx context.Context) {
	before, start := k.r.epoch.Load(), time.Now()
	s, err := k.Step(ctx)
	took := time.Since(start)
	k.r.count(func(c *counts) { c.requests++ })
	switch {
	case err != nil && (k.r.down(before) || ctx.Err() != nil):
		k.r.count(func(c *counts) { c.excused++ })
		return
	case err != nil:
		k.r.fault("%s: %v", k.Name, err)
		return
	}
	k.r.count(func(c *counts) {
		c.steps++
		c.slowestStep, c.latest = max(c.slowestStep, took), max(c.latest, s.Off)
	})
	for _, what := range s.Wrong {
		k.r.wrong("%s: %s", k.Name, what)
	}
	if s.Off > clockMax {
		k.r.wrong("%s: the clock is off by %v", k.Name, s.Off)
	}
}

// wrong takes note of a wrong byte.
func (r *run) wrong(format string, args ...any) {
	r.count(func(c *counts) { c.wrong++ })
	r.fault(format, args...)
}
