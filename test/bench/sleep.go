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
	"strconv"
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
	// sharers is how many times the memory may be reserved. The sandboxes of all sizes share
	// the machine to save time: with the usual bound, some of them would move to disk for the
	// others.
	sharers = 10
	// snapshots is how many of them are taken of a sandbox in use.
	snapshots = 5
)

// A holding is what a sandbox has in memory.
type holding struct {
	mb    int  // of its processes, touched and random
	files int  // of 1 KB each, as after an installation of packages
	awake bool // it never falls asleep
}

// sleepSizes are those that are measured. Files are their own size: each of them is an
// object of the engine's state, which no request can wait for either. The last one never
// sleeps: what it waits for is the load of the others, and not a wake.
var sleepSizes = []holding{{mb: 64}, {mb: 512}, {mb: 2048}, {mb: 64, files: 20_000}, {mb: 64, awake: true}}

// String names a holding in rows.
func (h holding) String() string {
	switch {
	case h.awake:
		return fmt.Sprintf("%d MB, kept awake", h.mb)
	case h.files == 0:
		return fmt.Sprintf("%d MB", h.mb)
	}
	return fmt.Sprintf("%d MB and %d files", h.mb, h.files)
}

func inUseCase(h holding) string { return fmt.Sprintf("%v, in use", h) }

func copiedCase(h holding) string {
	return fmt.Sprintf("%v, in use, the longest answer while a snapshot is taken", h)
}

func idleCase(h holding, from, to time.Duration) string {
	if h.awake {
		return fmt.Sprintf("%v, asked %v to %v after the last time", h, from, to)
	}
	return fmt.Sprintf("%v, idle %v to %v", h, from, to)
}

// sleepCases names all rows of the benchmark.
func sleepCases() (names []string) {
	for _, h := range sleepSizes {
		names = append(names, inUseCase(h))
		if !h.awake {
			names = append(names, copiedCase(h))
		}
		names = append(names, idleCase(h, 0, idleMost))
		for from := time.Duration(0); from < idleMost; from += idleWindow {
			names = append(names, idleCase(h, from, from+idleWindow))
		}
	}
	return names
}

//go:embed worker.py
var sleepScript []byte

// sleeps asks sandboxes of several sizes after every idle time, in a random order,
// with the settings that a user has, but for sharers. First each size is measured alone while it is in
// use. Then the sandboxes of all sizes are asked at the same time, each by its own
// client: while one falls asleep, another one wakes. With -many, several sandboxes of
// each size share the idle times.
func sleeps(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Args: []string{"--log", "warn", "--memory-overcommit", strconv.Itoa(sharers)}})
	if err != nil {
		return latencies(nil), err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	var sizes []*sleepers
	defer func() {
		for _, s := range sizes {
			err = errors.Join(err, s.remove())
		}
	}()
	for i, h := range sleepSizes {
		if !only.MatchString(h.String()) {
			continue
		}
		s, err := newSleepers(ctx, p, fmt.Sprintf("sleep-%d", i), h)
		if err != nil {
			return latencies(nil), err
		}
		sizes = append(sizes, s)
		if err := s.inUse(ctx); err != nil {
			return latencies(nil), err
		}
	}
	asking, asked := errgroup.WithContext(ctx)
	for _, s := range sizes {
		asking.Go(func() error { return s.afterRests(asked) })
	}
	err = asking.Wait()
	var all latencies
	for _, s := range sizes {
		all = append(all, s.rows...)
	}
	return all, err
}

// copied takes snapshots of a sandbox in use, which is asked as often as for the
// yardstick. A sample is the longest answer during one of them.
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
			case <-time.After(lying):
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

// newAsked makes a sandbox that holds so much, and changes a part of its memory after
// each request.
func newAsked(ctx context.Context, p *testkit.Platform, c *client.Client, name string, h holding) (s asked, err error) {
	sb, err := c.Create(ctx, doze.Sandbox{
		Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: max(roomFor(h.mb), doze.MemoryDefault)}},
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
	worker := client.Command{
		Command: fmt.Sprintf("exec python3 /worker.py %d %d %d", h.mb, min(sleepChanged, h.mb/4), h.files), KeepAlive: h.awake, Timeout: new(0),
	}
	if err := begin(ctx, agent, worker); err != nil {
		return s, err
	}
	ask := &http.Client{Transport: &http.Transport{}, Timeout: settle}
	s.request = func() (time.Duration, error) {
		return answer(ctx, ask, http.MethodGet, sb.Metadata.URL+"/port/9000", p.Key, "")
	}
	return s, nil
}

// sleepers are the sandboxes of one size.
type sleepers struct {
	size  holding
	p     *testkit.Platform
	c     *client.Client
	those []asked
	rows  latencies // that of requests in use comes first: it is the yardstick
}

// newSleepers makes the sandboxes of one size, whose names begin with name. On an
// error none is left.
func newSleepers(ctx context.Context, p *testkit.Platform, name string, h holding) (_ *sleepers, err error) {
	s := &sleepers{size: h, p: p}
	if s.c, err = p.Client(); err != nil {
		return nil, err
	}
	for i := range *sleepMany {
		one, err := newAsked(ctx, p, s.c, fmt.Sprintf("%s-%d", name, i), h)
		if err != nil {
			return nil, errors.Join(err, s.remove())
		}
		s.those = append(s.those, one)
	}
	return s, nil
}

func (s *sleepers) remove() (err error) {
	for _, one := range s.those {
		err = errors.Join(err, one.remove())
	}
	return err
}

// inUse measures requests to a sandbox in use, and while it is copied.
func (s *sleepers) inUse(ctx context.Context) error {
	awake := &series{name: inUseCase(s.size)}
	s.rows = latencies{awake}
	for range times(wakeRounds) {
		took, err := s.those[0].request()
		if err != nil {
			return err
		}
		awake.add(took)
		time.Sleep(lying)
	}
	if s.size.awake {
		return nil
	}
	during := &series{name: copiedCase(s.size), against: awake}
	s.rows = append(s.rows, during)
	return copied(ctx, s.c, s.those[0].name, s.those[0].request, during)
}

// afterRests measures a request after every idle time: one row of all, and one of each
// window.
func (s *sleepers) afterRests(ctx context.Context) error {
	awake := s.rows[0]
	whole := &series{name: idleCase(s.size, 0, idleMost), against: awake}
	var windows latencies
	for from := time.Duration(0); from < idleMost; from += idleWindow {
		windows = append(windows, &series{name: idleCase(s.size, from, from+idleWindow), against: awake})
	}
	s.rows = slices.Concat(s.rows, latencies{whole}, windows)
	var idle []time.Duration
	for at := time.Duration(0); at < idleMost; at += *idleStep {
		idle = append(idle, at)
	}
	rand.Shuffle(len(idle), func(i, j int) { idle[i], idle[j] = idle[j], idle[i] }) //nolint:gosec // G404: any order will do
	var mu sync.Mutex
	asking, asked := errgroup.WithContext(ctx)
	for number, one := range s.those {
		asking.Go(func() error {
			if _, err := one.request(); err != nil { // it may be idle for minutes: others were made
				return err
			}
			for i := number; i < len(idle); i += len(s.those) {
				at := idle[i]
				select {
				case <-asked.Done():
					return context.Cause(asked)
				case <-time.After(at):
				}
				took, err := one.request()
				if err != nil {
					return fmt.Errorf("after %v: %w: %s", at, err, s.p.Tail())
				}
				mu.Lock()
				whole.add(took)
				windows[at/idleWindow].add(took)
				mu.Unlock()
				if took > slowest {
					fmt.Fprintf(os.Stderr, "%v, idle for %v: %v\n", s.size, at, took)
				}
			}
			return nil
		})
	}
	return asking.Wait()
}

// slowest is what a request may take at most: longer ones are told as they come.
const slowest = 150 * time.Millisecond
