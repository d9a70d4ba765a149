package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"doze"
	"doze/client"
	"doze/internal/testkit"
)

const (
	createRounds = 50 // one by one
	createStorm  = 20 // at once
	storms       = 3
	createMemory = 1024
)

// create makes sandboxes, each until its first `true` has ended. The yardstick
// is the same exec in a sandbox that runs already.
func create(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Args: []string{"--log", "error"}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	exec := &series{name: "exec in a running one"}
	single := &series{name: "create + exec, one by one", against: exec}
	storm := &series{name: fmt.Sprintf("create + exec, %d at once", createStorm), against: single}
	for i := range createRounds {
		if err := createOne(ctx, c, fmt.Sprintf("one-%d", i), single, exec); err != nil {
			return nil, err
		}
	}
	if !only.MatchString(storm.name) {
		return latencies{exec, single}, nil
	}
	for i := range storms {
		var mu sync.Mutex // guards the shared series
		var together errgroup.Group
		for j := range createStorm {
			together.Go(func() error {
				var own, ignored series
				if err := createOne(ctx, c, fmt.Sprintf("storm-%d-%d", i, j), &own, &ignored); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				storm.samples = append(storm.samples, own.samples...)
				return nil
			})
		}
		if err := together.Wait(); err != nil {
			return nil, err
		}
	}
	return latencies{exec, single, storm}, nil
}

// createOne makes a sandbox, runs `true` in it twice, and deletes it.
func createOne(ctx context.Context, c *client.Client, name string, first, again *series) error {
	start := time.Now()
	sb, err := c.Create(ctx, doze.Sandbox{
		Metadata: doze.Metadata{Name: name},
		Spec:     doze.SandboxSpec{Runtime: doze.Runtime{Memory: createMemory}},
	}, false)
	if err != nil {
		return err
	}
	box, err := c.Box(sb)
	if err != nil {
		return err
	}
	for _, s := range []*series{first, again} {
		done, err := box.Start(ctx, client.Command{Command: "true", Wait: true})
		if err != nil {
			return err
		}
		if done.ExitCode != 0 {
			return fmt.Errorf("true ended with %d", done.ExitCode)
		}
		s.add(time.Since(start))
		start = time.Now()
	}
	_, err = c.Delete(ctx, name)
	return err
}
