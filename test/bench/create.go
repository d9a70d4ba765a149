package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"doze"
	"doze/client"
	"doze/internal/testkit"
)

const (
	createRounds = 50 // one by one
	createMemory = 1024
	spares       = 2 // as many as dozed keeps by default
)

// createStorms are how many sandboxes are created at once, and how often.
var createStorms = []struct{ at, rounds int }{{20, 3}, {100, 1}}

// create makes sandboxes, each until its first `true` has ended: by a boot, out
// of a template, and with a machine that was started ahead. The yardstick is the
// same exec in a sandbox that runs already.
func create(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	var all latencies
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Args: []string{"--templates=false"}})
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	c, err := p.Client()
	if err != nil {
		return all, err
	}
	exec := &series{name: "exec in a running one"}
	boot := &series{name: "create + exec, by a boot", against: exec}
	template := &series{name: "create + exec, out of a template", against: boot}
	spare := &series{name: "create + exec, with a spare machine", against: boot}
	all = latencies{exec, boot}
	for _, s := range []struct {
		*series
		args   []string
		spares int
	}{
		{boot, nil, 0}, {template, []string{"--spares", "0"}, 0}, {spare, []string{"--spares", strconv.Itoa(spares)}, spares},
	} {
		if s.series != boot {
			if !only.MatchString(s.name) {
				continue
			}
			all = append(all, s.series)
			if err := restart(ctx, p, s.args); err != nil {
				return all, err
			}
			// The first one makes what the others begin with.
			if err := createOne(ctx, c, "first", &series{}, &series{}); err != nil {
				return all, err
			}
			if err := p.AwaitTemplate(ctx); err != nil {
				return all, err
			}
		}
		for i := range createRounds {
			if err := p.AwaitSpares(ctx, s.spares); err != nil {
				return all, err
			}
			time.Sleep(lying)
			if err := createOne(ctx, c, fmt.Sprintf("one-%d", i), s.series, exec); err != nil {
				return all, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	for _, storm := range createStorms {
		s := &series{name: fmt.Sprintf("create + exec, %d at once", storm.at), against: boot}
		if !only.MatchString(s.name) {
			continue
		}
		all = append(all, s)
		for i := range storm.rounds {
			if err := createStorm(ctx, c, s, fmt.Sprintf("storm-%d", i), storm.at); err != nil {
				return all, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return all, nil
}

// restart gives a platform other flags.
func restart(ctx context.Context, p *testkit.Platform, args []string) error {
	p.Arguments(args...)
	if err := p.Stop(); err != nil {
		return err
	}
	return p.Restart(ctx)
}

// createStorm makes sandboxes at once.
func createStorm(ctx context.Context, c *client.Client, s *series, name string, n int) error {
	var mu sync.Mutex // guards s
	var together errgroup.Group
	for i := range n {
		together.Go(func() error {
			var own, ignored series
			if err := createOne(ctx, c, fmt.Sprintf("%s-%d", name, i), &own, &ignored); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			s.samples = append(s.samples, own.samples...)
			return nil
		})
	}
	return together.Wait()
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
