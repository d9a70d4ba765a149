package main

import (
	"bytes"
	"context"
	_ "embed" // for what runs in the sandboxes
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// Idle times are those between one request and the next: a person reads, an agent
// thinks. Each of them meets the sandbox at another moment of falling asleep.
const (
	idleMost   = 60 * time.Second
	idleWindow = 10 * time.Second // of one row
	// sleepChanged is what a sandbox changes after each request, in MB, at most.
	sleepChanged = 16
	// snapshots is how many of them are taken of a sandbox in use.
	snapshots = 5
)

// sleepSizes are what the processes hold, in MB, touched and random.
var sleepSizes = []int{64, 512, 2048}

func inUseCase(mb int) string { return fmt.Sprintf("%d MB, in use", mb) }

func copiedCase(mb int) string {
	return fmt.Sprintf("%d MB, in use, the longest answer while a snapshot is taken", mb)
}

func idleCase(mb int, from, to time.Duration) string {
	return fmt.Sprintf("%d MB, idle %v to %v", mb, from, to)
}

// sleepCases names all rows of the benchmark.
func sleepCases() (names []string) {
	for _, mb := range sleepSizes {
		names = append(names, inUseCase(mb), copiedCase(mb), idleCase(mb, 0, idleMost))
		for from := time.Duration(0); from < idleMost; from += idleWindow {
			names = append(names, idleCase(mb, from, from+idleWindow))
		}
	}
	return names
}

//go:embed worker.py
var sleepScript []byte

// sleeps asks sandboxes of several sizes after every idle time, in a random order,
// with the settings that a user has. The sandboxes of all sizes are asked at the
// same time, each by its own client: while one falls asleep, another one wakes. With
// -many, several sandboxes of each size share the idle times.
func sleeps(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Args: []string{"--log", "warn"}})
	if err != nil {
		return latencies(nil), err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	type result struct {
		rows latencies
		err  error
	}
	results := make([]chan result, len(sleepSizes))
	for i, mb := range sleepSizes {
		results[i] = make(chan result, 1)
		if !only.MatchString(fmt.Sprintf("%d MB", mb)) {
			results[i] <- result{}
			continue
		}
		go func() { // ends with ctx, or when it has asked after each idle time
			rows, err := sleepSize(ctx, p, mb)
			results[i] <- result{rows, err}
		}()
	}
	var all latencies
	for _, r := range results {
		of := <-r
		all, err = append(all, of.rows...), errors.Join(err, of.err)
	}
	return all, err
}

// copied takes snapshots of a sandbox that is asked all the time. A sample is the
// longest answer during one of them.
func copied(ctx context.Context, c *client.Client, sandbox string, request func() (time.Duration, error), into *series) error {
	for range snapshots {
		taken := make(chan error, 1)
		var made doze.Snapshot
		go func() { // ends with the snapshot
			var err error
			made, err = c.CreateSnapshot(ctx, sandbox, "")
			taken <- err
		}()
		var longest time.Duration
		for done := false; !done; {
			took, err := request()
			if err != nil {
				return errors.Join(err, <-taken)
			}
			longest = max(longest, took)
			select {
			case err := <-taken:
				if err != nil {
					return err
				}
				done = true
			default:
			}
		}
		into.add(longest)
		if err := c.DeleteSnapshot(ctx, made.ID); err != nil {
			return err
		}
	}
	return nil
}

// asked is a sandbox that falls asleep and is asked.
type asked struct {
	name    string
	request func() (time.Duration, error)
	remove  func() error
}

// newAsked makes a sandbox whose processes hold so many MB, and change a part of them
// after each request.
func newAsked(ctx context.Context, p *testkit.Platform, c *client.Client, name string, mb int) (s asked, err error) {
	sb, err := c.Create(ctx, doze.Sandbox{
		Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: roomFor(mb)}},
	}, false)
	if err != nil {
		return s, err
	}
	s.name = name
	s.remove = func() error {
		_, err := c.Delete(context.WithoutCancel(ctx), name)
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove())
		}
	}()
	agent, err := c.Agent(sb)
	if err != nil {
		return s, err
	}
	if _, err := agent.WriteFile(ctx, "/worker.py", bytes.NewReader(sleepScript), "0644"); err != nil {
		return s, err
	}
	if err := begin(ctx, agent, fmt.Sprintf("exec python3 /worker.py %d %d", mb, min(sleepChanged, mb/4))); err != nil {
		return s, err
	}
	ask := &http.Client{Transport: &http.Transport{}, Timeout: settle}
	s.request = func() (time.Duration, error) {
		return answer(ctx, ask, http.MethodGet, sb.Metadata.URL+"/port/9000", p.Key, "")
	}
	return s, nil
}

// sleepSize measures one size. The first row is of requests to a sandbox while it is
// in use, which is the yardstick. The others are one while it is copied, one of all idle
// times, and one of each window.
func sleepSize(ctx context.Context, p *testkit.Platform, mb int) (all latencies, err error) {
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	var those []asked
	defer func() {
		for _, s := range those {
			err = errors.Join(err, s.remove())
		}
	}()
	for i := range *sleepMany {
		s, err := newAsked(ctx, p, c, fmt.Sprintf("sleep-%d-%d", mb, i), mb)
		if err != nil {
			return nil, err
		}
		those = append(those, s)
	}
	awake := &series{name: inUseCase(mb)}
	for range times(wakeRounds) {
		took, err := those[0].request()
		if err != nil {
			return nil, err
		}
		awake.add(took)
		time.Sleep(lying)
	}
	during := &series{name: copiedCase(mb), against: awake}
	if err := copied(ctx, c, those[0].name, those[0].request, during); err != nil {
		return nil, err
	}
	whole := &series{name: idleCase(mb, 0, idleMost), against: awake}
	var windows latencies
	for from := time.Duration(0); from < idleMost; from += idleWindow {
		windows = append(windows, &series{name: idleCase(mb, from, from+idleWindow), against: awake})
	}
	var idle []time.Duration
	for at := time.Duration(0); at < idleMost; at += *idleStep {
		idle = append(idle, at)
	}
	rand.Shuffle(len(idle), func(i, j int) { idle[i], idle[j] = idle[j], idle[i] }) //nolint:gosec // G404: any order will do
	var mu sync.Mutex
	asking, asked := errgroup.WithContext(ctx)
	for number, s := range those {
		asking.Go(func() error {
			for i := number; i < len(idle); i += len(those) {
				at := idle[i]
				select {
				case <-asked.Done():
					return context.Cause(asked)
				case <-time.After(at):
				}
				took, err := s.request()
				if err != nil {
					return fmt.Errorf("after %v: %w: %s", at, err, p.Tail())
				}
				mu.Lock()
				whole.add(took)
				windows[at/idleWindow].add(took)
				mu.Unlock()
				if took > slowest {
					fmt.Fprintf(os.Stderr, "%d MB, idle for %v: %v\n", mb, at, took)
				}
			}
			return nil
		})
	}
	return slices.Concat(latencies{awake, during, whole}, windows), asking.Wait()
}

// slowest is what a request may take at most: longer ones are told as they come.
const slowest = 150 * time.Millisecond
