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

	r *run
}

// clockMax is how far the clock of a sandbox that just woke may be off.
const clockMax = 50 * time.Millisecond

func (r *run) keeper(ctx context.Context, name string) (*keeper, error) {
	k, err := r.p.Keep(ctx, name, fmt.Sprintf("%s-%d", name, r.seed), r.megabytes)
	return &keeper{k, r}, err
}

// live makes steps at random instants until ctx ends.
func (k *keeper) live(ctx context.Context, dice *rand.Rand) {
	defer k.Close()
	for sleep(ctx, dice, restMax) {
		k.step(ctx)
	}
}

// step makes one step and compares its result with what it must be.
func (k *keeper) step(ctx context.Context) {
	before, start := k.r.epoch.Load(), time.Now()
	s, err := k.Step(ctx)
	took := time.Since(start)
	k.r.mu.Lock()
	k.r.counts.requests++
	k.r.mu.Unlock()
	if err != nil {
		down := before%2 == 1 || k.r.epoch.Load() != before
		switch {
		case down || ctx.Err() != nil:
			k.r.mu.Lock()
			k.r.counts.excused++
			k.r.mu.Unlock()
		default:
			k.r.fault("%s: %v", k.Name, err)
		}
		return
	}
	k.r.mu.Lock()
	k.r.counts.steps++
	k.r.counts.slowestStep = max(k.r.counts.slowestStep, took)
	k.r.counts.latest = max(k.r.counts.latest, s.Off)
	k.r.mu.Unlock()
	for _, what := range s.Wrong {
		k.r.wrong("%s: %s", k.Name, what)
	}
	if s.Off > clockMax {
		k.r.wrong("%s: the clock is off by %v", k.Name, s.Off)
	}
}

// wrong takes note of a wrong byte.
func (r *run) wrong(format string, args ...any) {
	r.mu.Lock()
	r.counts.wrong++
	r.mu.Unlock()
	r.fault(format, args...)
}
