package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	createRounds = 50 // one by one
	createMemory = 1024
	pool         = 2 // as many as dozed keeps by default
	// stormMemory is less: 100 sandboxes and the spare ones fit on a host of 16 GB,
	// on which no create is refused for the memory that it reserves.
	stormMemory = 512
)

// One sandbox is made in one of two ways; each contains the yardstick.
const (
	createYardstick = "exec in a running one"
	createBoot      = "create + exec, by a boot"
	createPooled    = "create + exec, with a spare machine"
)

// createStorms are how many sandboxes are created at once, and how often.
var createStorms = []struct{ at, rounds int }{{20, 3}, {100, 2}}

// Storms of creates are named by what the platform has ready.
const (
	stormBoot  = "create + exec, %d at once, each by a boot"
	stormCold  = "create + exec, %d at once, defaults, no spare machine yet"
	stormWarm  = "create + exec, %d at once, defaults, the usual spare machines"
	stormAgain = "create + exec, %d at once, defaults, after the same storm"
)

// createCases names all rows of the benchmark.
func createCases() []string {
	names := []string{createYardstick, createBoot, createPooled}
	for _, form := range []string{stormBoot, stormCold, stormWarm, stormAgain} {
		for _, storm := range createStorms {
			names = append(names, fmt.Sprintf(form, storm.at))
		}
	}
	for _, o := range others {
		names = append(names, o.name)
	}
	return names
}

// create makes sandboxes, each until its first `true` has ended: by a boot and with
// a machine that was started ahead; one by one and many at once. The yardsticks are
// the same exec in a sandbox that runs already, and what a user would take instead.
func create(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	exec := &series{name: createYardstick}
	boot := &series{name: createBoot, against: exec}
	all := latencies{exec, boot}
	rows, root, err := createSingly(ctx, filepath.Join(dir, "one"), only, exec, boot)
	if all = append(all, rows...); err != nil {
		return all, err
	}
	for _, o := range others {
		if !only.MatchString(o.name) {
			continue
		}
		s := &series{name: o.name, against: boot}
		all = append(all, s)
		if err := o.measure(ctx, s, root); errors.As(err, new(absentError)) {
			s.unsupported = err.Error()
		} else if err != nil {
			return all, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	rows, err = createTogether(ctx, filepath.Join(dir, "storm"), only, boot)
	return append(all, rows...), err
}

// createSingly makes sandboxes one by one, and storms of boots. It returns the
// root file system that they have, too.
func createSingly(ctx context.Context, dir string, only *regexp.Regexp, exec, boot *series) (all latencies, root string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, "", err
	}
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Account: true})
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return nil, "", err
	}
	if root, err = rootOf(ctx, p); err != nil {
		return nil, "", err
	}
	if err := createRow(ctx, p, c, 0, boot, exec); err != nil {
		return all, root, fmt.Errorf("%s: %w", boot.name, err)
	}
	for _, storm := range createStorms {
		s := &series{name: fmt.Sprintf(stormBoot, storm.at), against: boot}
		if !only.MatchString(s.name) {
			continue
		}
		all = append(all, s)
		for range times(storm.rounds) {
			if err := createStorm(ctx, p, c, s, storm.at); err != nil {
				return all, root, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	if !only.MatchString(createPooled) {
		return all, root, nil
	}
	pooled := &series{name: createPooled, against: boot}
	all = append(all, pooled)
	if err := restart(ctx, p, []string{"--warm-pool", strconv.Itoa(pool), "--warm-pool-max", "0"}); err != nil {
		return all, root, err
	}
	// After the first one, the node starts machines ahead.
	if err := createOne(ctx, p, c, "first", &series{}, &series{}); err != nil {
		return all, root, err
	}
	if err := createRow(ctx, p, c, pool, pooled, exec); err != nil {
		return all, root, fmt.Errorf("%s: %w", pooled.name, err)
	}
	return all, root, nil
}

// createRow makes sandboxes one by one, each when the platform rests.
func createRow(ctx context.Context, p *testkit.Platform, c *client.Client, pool int, s, exec *series) error {
	began, err := p.Rest(ctx)
	if err != nil {
		return err
	}
	ended := began
	for i := range times(createRounds) {
		if err := p.AwaitWarmPool(ctx, pool); err != nil {
			return err
		}
		if err := createOne(ctx, p, c, fmt.Sprintf("one-%d", i), s, exec); err != nil {
			return err
		}
		if ended, err = p.Rest(ctx); err != nil {
			return err
		}
	}
	s.cycle = (ended - began) / time.Duration(times(createRounds))
	return nil
}

// createTogether makes many sandboxes at once, with the spare machines that users
// have.
func createTogether(ctx context.Context, dir string, only *regexp.Regexp, boot *series) (all latencies, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Account: true, WarmPool: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	for _, storm := range createStorms {
		named := func(form string) *series { return &series{name: fmt.Sprintf(form, storm.at), against: boot} }
		cold, warm, again := named(stormCold), named(stormWarm), named(stormAgain)
		for round := range times(storm.rounds) {
			if only.MatchString(cold.name) {
				if round == 0 {
					all = append(all, cold)
				}
				if err := coldStorm(ctx, p, c, cold, storm.at); err != nil {
					return all, fmt.Errorf("%s: %w", cold.name, err)
				}
			}
			if only.MatchString(warm.name) || only.MatchString(again.name) {
				if round == 0 {
					all = append(all, warm, again)
				}
				if err := warmStorms(ctx, p, c, warm, again, storm.at); err != nil {
					return all, fmt.Errorf("%s: %w", warm.name, err)
				}
			}
		}
	}
	return all, nil
}

// coldStorm is the first thing that a platform does: it has no spare machine.
func coldStorm(ctx context.Context, p *testkit.Platform, c *client.Client, s *series, n int) error {
	if err := restart(ctx, p, nil); err != nil { // spare machines end with dozed
		return err
	}
	return createStorm(ctx, p, c, s, n)
}

// warmStorms come one after the other to a platform that has created one sandbox:
// it has as many spare machines as it keeps for nobody. After the first storm it has
// as many as it keeps at most.
func warmStorms(ctx context.Context, p *testkit.Platform, c *client.Client, warm, again *series, n int) error {
	if err := restart(ctx, p, nil); err != nil { // it forgets how many came before
		return err
	}
	if err := createStorm(ctx, p, c, &series{}, 1); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	if err := p.AwaitWarmPool(waiting, pool); err != nil {
		return err
	}
	for _, s := range []*series{warm, again} {
		if err := createStorm(ctx, p, c, s, n); err != nil {
			return err
		}
	}
	return nil
}

// restart gives a platform other flags.
func restart(ctx context.Context, p *testkit.Platform, args []string) error {
	p.Arguments(args...)
	if err := p.Stop(); err != nil {
		return err
	}
	return p.Restart(ctx)
}

// createStorm makes sandboxes at once, when the platform rests, and runs `true` in
// each. They are deleted when all have answered. A create that fails is counted.
func createStorm(ctx context.Context, p *testkit.Platform, c *client.Client, s *series, n int) error {
	before, err := p.Rest(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex // guards s
	var together errgroup.Group
	for i := range n {
		together.Go(func() error {
			took, _, err := createAndExec(ctx, c, fmt.Sprintf("storm-%d", i), stormMemory)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.fail(err)
				return context.Cause(ctx)
			}
			s.add(took)
			return nil
		})
	}
	if err := together.Wait(); err != nil {
		return err
	}
	answered, err := p.Used()
	if err != nil {
		return err
	}
	s.costs = append(s.costs, (answered-before)/time.Duration(n))
	var deletes errgroup.Group
	for i := range n {
		deletes.Go(func() error {
			_, err := c.Delete(ctx, fmt.Sprintf("storm-%d", i))
			if doze.Public(err).Kind == doze.NotFound {
				return nil // its create failed
			}
			return err
		})
	}
	if err := deletes.Wait(); err != nil {
		return err
	}
	over, err := p.Rest(ctx)
	s.cycle = (over - before) / time.Duration(n)
	return err
}

// createAndExec makes a sandbox and runs `true` in it.
func createAndExec(ctx context.Context, c *client.Client, name string, memory doze.Megabytes) (time.Duration, *client.Agent, error) {
	start := time.Now()
	_, agent, err := testkit.Create(ctx, c, name, memory)
	if err == nil {
		err = execTrue(ctx, agent)
	}
	return time.Since(start), agent, err
}

// execTrue runs `true` to its end.
func execTrue(ctx context.Context, agent *client.Agent) error {
	done, err := agent.Start(ctx, client.Command{Command: "true", Wait: true})
	if err == nil && done.ExitCode != 0 {
		err = fmt.Errorf("true ended with %d", done.ExitCode)
	}
	return err
}

// createOne makes a sandbox, runs `true` in it twice, and deletes it. What the
// first answer costs of the processors is counted until it is there.
func createOne(ctx context.Context, p *testkit.Platform, c *client.Client, name string, first, again *series) error {
	before, err := p.Used()
	if err != nil {
		return err
	}
	took, agent, err := createAndExec(ctx, c, name, createMemory)
	if err != nil {
		return err
	}
	after, err := p.Used()
	if err != nil {
		return err
	}
	first.add(took)
	first.costs = append(first.costs, after-before)
	if err := again.took(func() error { return execTrue(ctx, agent) }); err != nil {
		return err
	}
	_, err = c.Delete(ctx, name)
	return err
}
