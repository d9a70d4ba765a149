package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

const (
	// copyOneIn is how many times a canary makes a step for each time that it is
	// copied.
	copyOneIn = 6
	forksMax  = 3
	sinceMax  = 3 // steps between a snapshot and the way back to it
)

// copies takes a snapshot of k, and either makes others of it or puts k back to
// it later. All have exactly what k had then. Nobody else uses k meanwhile.
func (k *canary) copies(ctx context.Context, dice *rand.Rand) {
	before := k.r.epoch.Load()
	if err := k.copy(ctx, dice); err != nil && ctx.Err() == nil && !k.r.down(before) {
		k.failed(ctx, err)
	}
}

func (k *canary) copy(ctx context.Context, dice *rand.Rand) error {
	c, err := k.r.p.Client()
	if err != nil {
		return err
	}
	if err := k.clear(ctx, c); err != nil {
		return fmt.Errorf("remove older copies: %w", err)
	}
	k.made++
	n, err := c.CreateSnapshot(ctx, k.Name, fmt.Sprintf("snapshot-%d", k.made))
	if err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	k.Doubt() // the snapshot is of what it had then
	k.r.count(func(c *counts) { c.snapshots++ })
	if now := k.r.crashes.Load(); now%2 == 1 || now != k.crashes {
		k.step(ctx) // the snapshot may be of what it went back to
		return nil
	}
	if dice.IntN(2) == 0 {
		return k.restore(ctx, c, n, dice)
	}
	return k.fork(ctx, c, n, dice)
}

// clear removes the snapshots and forks that k has.
func (k *canary) clear(ctx context.Context, c *client.Client) error {
	for len(k.forks) > 0 {
		if err := remove(ctx, c, k.forks[0]); err != nil {
			return err
		}
		k.forks = k.forks[1:]
	}
	all, err := c.SnapshotsOf(ctx, k.Name)
	for _, n := range all {
		err = errors.Join(err, c.DeleteSnapshot(ctx, n.ID))
	}
	return err
}

// remove deletes a sandbox that may not be there.
func remove(ctx context.Context, c *client.Client, name string) error {
	if _, err := c.Delete(ctx, name); err != nil && doze.Public(err).Kind != doze.NotFound {
		return err
	}
	return nil
}

// restore lets k go on for some steps and puts it back to a snapshot.
func (k *canary) restore(ctx context.Context, c *client.Client, n doze.Snapshot, dice *rand.Rand) error {
	then, maybe := k.Copy(k.Name, ""), k.Rewind()
	for range dice.IntN(sinceMax + 1) {
		k.step(ctx)
	}
	if _, err := c.Restore(ctx, k.Name, n.ID); err != nil {
		maybe() // nobody knows
		k.Unsure()
		return fmt.Errorf("restore: %w", err)
	}
	k.adopt(then)
	k.r.count(func(c *counts) { c.restored++ })
	k.step(ctx)
	return nil
}

// fork makes some sandboxes of a snapshot. Sometimes it is gone before they are
// used.
func (k *canary) fork(ctx context.Context, c *client.Client, n doze.Snapshot, dice *rand.Rand) error {
	var forks []*canary
	for i := range 1 + dice.IntN(forksMax) {
		name := fmt.Sprintf("%s-%d-%d", k.Name, k.made, i)
		k.forks = append(k.forks, name)
		if _, err := c.ForkSnapshot(ctx, n.ID, doze.ForkRequest{TargetName: name, TargetType: doze.KindSandbox}); err != nil {
			return fmt.Errorf("fork: %w", err)
		}
		sb, err := c.Sandbox(ctx, name)
		if err != nil {
			return fmt.Errorf("look at a fork: %w", err)
		}
		f := &canary{r: k.r, index: -1, dice: dice}
		f.adopt(k.Copy(name, sb.Metadata.URL))
		forks = append(forks, f)
		k.r.count(func(c *counts) { c.forked++ })
	}
	if dice.IntN(2) == 0 {
		if err := c.DeleteSnapshot(ctx, n.ID); err != nil {
			return fmt.Errorf("delete the snapshot: %w", err)
		}
	}
	for range 1 + dice.IntN(sinceMax) {
		for _, f := range forks {
			f.step(ctx)
		}
		k.step(ctx)
		sleep(ctx, dice, restMax)
	}
	for _, f := range forks {
		f.Close()
	}
	return k.clear(ctx, c)
}
