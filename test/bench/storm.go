package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"doze"
	"doze/internal/testkit"
)

const (
	stormSize   = 50 // sandboxes that wake at once
	stormRounds = 3
)

// wakeStorm wakes many small sandboxes from disk, one by one and at once. If
// none waited for another but for the processors, all of them together would
// take as long as one after the other, over the number of processors.
func wakeStorm(ctx context.Context, p *testkit.Platform) (_ []*series, err error) {
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	var asks [stormSize]func(context.Context) (time.Duration, error)
	for i := range asks {
		name := fmt.Sprintf("storm-%d", i)
		sb, err := c.Create(ctx, doze.Sandbox{
			Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: 512}},
		}, false)
		if err != nil {
			return nil, err
		}
		defer func() {
			_, failed := c.Delete(ctx, name)
			err = errors.Join(err, failed)
		}()
		asks[i] = asker(p, sb)
	}
	single := &series{name: fmt.Sprintf("disk 0 MB, %d one by one", stormSize)}
	together := &series{name: fmt.Sprintf("disk 0 MB, %d at once", stormSize), against: single}
	var inTurn, whole time.Duration
	for range stormRounds {
		if err := allOnDisk(ctx, p); err != nil {
			return nil, err
		}
		began := time.Now()
		for _, ask := range asks {
			took, err := ask(ctx)
			if err != nil {
				return nil, err
			}
			single.add(took)
		}
		inTurn += time.Since(began)
		if err := allOnDisk(ctx, p); err != nil {
			return nil, err
		}
		began = time.Now()
		var mu sync.Mutex // guards together
		var calls errgroup.Group
		for _, ask := range asks {
			calls.Go(func() error {
				took, err := ask(ctx)
				mu.Lock()
				defer mu.Unlock()
				together.add(took)
				return err
			})
		}
		if err := calls.Wait(); err != nil {
			return nil, err
		}
		whole += time.Since(began)
	}
	fmt.Printf("%d wakes took %v one by one and %v at once\n", stormSize, (inTurn / stormRounds).Round(time.Millisecond), (whole / stormRounds).Round(time.Millisecond))
	return []*series{single, together}, nil
}

// allOnDisk waits until no sandbox has its memory in processes.
func allOnDisk(ctx context.Context, p *testkit.Platform) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		machines, err := p.Machines(ctx)
		if err != nil || len(machines) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d sandboxes do not go to disk: %w", len(machines), context.Cause(ctx))
		case <-time.After(lying):
		}
	}
}
