package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	stormSize   = 50 // sandboxes that wake
	stormRounds = 2
	stormMB     = 512
)

// Storms of wakes are named by how many wake when.
var (
	stormSingle   = fmt.Sprintf("disk 0 MB, %d one by one", stormSize)
	stormTogether = fmt.Sprintf("disk 0 MB, %d at once", stormSize)
	stormHeld     = fmt.Sprintf("disk 0 MB, %d at once and kept awake", stormSize)
)

// wakeStorm wakes many small sandboxes from disk, one by one and at once. Those
// that woke fall asleep again meanwhile, unless they are kept awake. If none waited
// for another but for the processors, all of them together would take as long as
// one after the other, over the number of processors.
func wakeStorm(ctx context.Context, p *testkit.Platform) (_ []*series, err error) {
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	var crowd []sleeper
	for i := range stormSize {
		name := fmt.Sprintf("storm-%d", i)
		sb, err := c.Create(ctx, doze.Sandbox{
			Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: stormMB}},
		}, false)
		if err != nil {
			return nil, err
		}
		defer func() {
			_, failed := c.Delete(ctx, name)
			err = errors.Join(err, failed)
		}()
		crowd = append(crowd, sleeper{sb, asker(p, sb)})
	}
	single := &series{name: stormSingle}
	together := &series{name: stormTogether, against: single}
	held := &series{name: stormHeld, against: single}
	for range times(stormRounds) {
		for _, side := range []struct {
			*series
			do func(ctx context.Context, p *testkit.Platform, crowd []sleeper, s *series, before time.Duration) error
		}{{single, inTurn}, {together, atOnce}, {held, atOnceHeld}} {
			s := side.series
			before, err := restOnDisk(ctx, p)
			if err != nil {
				return nil, err
			}
			if err := side.do(ctx, p, crowd, s, before); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			over, err := restOnDisk(ctx, p)
			if err != nil {
				return nil, err
			}
			s.cycle += (over - before) / stormSize / time.Duration(times(stormRounds))
		}
	}
	return []*series{single, together, held}, nil
}

// sleeper is a sandbox, with the request that is timed.
type sleeper struct {
	doze.Sandbox
	ask func(context.Context) (time.Duration, error)
}

// inTurn wakes one sandbox after the other.
func inTurn(ctx context.Context, _ *testkit.Platform, crowd []sleeper, s *series, _ time.Duration) error {
	for _, one := range crowd {
		took, err := one.ask(ctx)
		if err != nil {
			return err
		}
		s.add(took)
	}
	return nil
}

// atOnce wakes all sandboxes.
func atOnce(ctx context.Context, _ *testkit.Platform, crowd []sleeper, s *series, _ time.Duration) error {
	var mu sync.Mutex // guards s
	var calls errgroup.Group
	for _, one := range crowd {
		calls.Go(func() error {
			took, err := one.ask(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				s.add(took)
			}
			return err
		})
	}
	return calls.Wait()
}

// atOnceHeld wakes all sandboxes and keeps them awake until the platform rests: no
// checkpoint is in what that costs. The platform had used so much before.
func atOnceHeld(ctx context.Context, p *testkit.Platform, crowd []sleeper, s *series, before time.Duration) error {
	var mu sync.Mutex // guards s and releases
	var releases []func()
	defer func() {
		for _, release := range releases {
			release()
		}
	}()
	var calls errgroup.Group
	for _, one := range crowd {
		calls.Go(func() error {
			began := time.Now()
			release, err := holdAwake(ctx, p, one.Sandbox)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				releases = append(releases, release)
				s.add(time.Since(began))
			}
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return err
	}
	answered, err := p.Used()
	if err != nil {
		return err
	}
	after, err := p.Rest(ctx)
	s.answers, s.costs = append(s.answers, (answered-before)/stormSize), append(s.costs, (after-before)/stormSize)
	return err
}

// restOnDisk waits until all sandboxes are on disk and the platform rests, and
// returns what it had used by then.
func restOnDisk(ctx context.Context, p *testkit.Platform) (time.Duration, error) {
	if err := allOnDisk(ctx, p); err != nil {
		return 0, err
	}
	return p.Rest(ctx)
}

// stormPoll is seldom: to be asked costs processors, which are counted.
const stormPoll = 200 * time.Millisecond

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
		case <-time.After(stormPoll):
		}
	}
}
