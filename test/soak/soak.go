package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"doze"
	"doze/client"
	"doze/internal/testkit"
)

const (
	memory = 512 // MB of a sandbox
	// The idle times are short, so that a run meets every tier and every move
	// many times.
	pauseAfter, saveAfter = 200 * time.Millisecond, 300 * time.Millisecond
	swapAfter, diskAfter  = 600 * time.Millisecond, 1200 * time.Millisecond
	restMax               = 2500 * time.Millisecond // between two steps of a keeper
	killEvery             = 7 * time.Second         // on average
	comeAndGo             = 4 * time.Second         // on average
	// swap is made for a run. A host that lets us make none goes without the
	// tier.
	swap = "plain:1G"
)

type options struct {
	length               time.Duration
	seed                 uint64
	sandboxes, megabytes int
}

// counts is what a run ends with.
type counts struct {
	seed                     uint64
	steps, requests, excused int64
	kills, made              int64

	snapshots, forked, restored, archived int64

	fromPaused, fromSaved, fromSwapped, fromDisk int

	wrong, errors                       int64
	slowestRestart, slowestStep, latest time.Duration
}

func (c counts) String() string {
	return fmt.Sprintf("seed %d: %d steps in %d requests, %d of them while the daemon was down; woke %d times from paused, %d from saved, "+
		"%d from swap, %d from disk; %d kills of the daemon, ready again after %v at most; %d more sandboxes came and went; "+
		"%d snapshots, of which %d forks were made and to which sandboxes went back %d times; %d archives, and back; slowest step %v; "+
		"clock wrong by %v at most; %d wrong, %d errors",
		c.seed, c.steps, c.requests, c.excused, c.fromPaused, c.fromSaved, c.fromSwapped, c.fromDisk, c.kills, c.slowestRestart.Round(time.Millisecond),
		c.made, c.snapshots, c.forked, c.restored, c.archived, c.slowestStep.Round(time.Millisecond), c.latest.Round(time.Millisecond), c.wrong, c.errors)
}

// run is one soak.
type run struct {
	options

	p     *testkit.Platform
	key   string
	epoch atomic.Int64 // odd while the daemon is down or about to be

	mu     sync.Mutex
	counts counts // guarded by mu
	faults []string
}

// soak runs for the wanted time and returns what it counted. The error says
// what went wrong, with the first faults.
func soak(ctx context.Context, o options) (_ counts, err error) {
	dir, err := os.MkdirTemp("", "doze-soak-")
	if err != nil {
		return counts{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Args: []string{
		"--pause-after", pauseAfter.String(), "--save-after", saveAfter.String(), "--swap-after", swapAfter.String(),
		"--disk-after", diskAfter.String(), "--ready", "2", "--swap", swap,
	}})
	if err != nil {
		return counts{}, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	r := &run{options: o, p: p, key: p.Key, counts: counts{seed: o.seed}}
	if err := r.all(ctx); err != nil {
		return r.counts, fmt.Errorf("%w\n%s", err, p.Tail())
	}
	r.countWakes()
	if len(r.faults) > 0 {
		return r.counts, errors.New(strings.Join(r.faults, "\n"))
	}
	return r.counts, nil
}

func (r *run) all(ctx context.Context) error {
	keepers := make([]*keeper, r.sandboxes)
	for i := range keepers {
		k, err := r.keeper(ctx, fmt.Sprintf("keeper-%d", i))
		if err != nil {
			return fmt.Errorf("start keeper %d: %w", i, err)
		}
		keepers[i] = k
	}
	ctx, cancel := context.WithTimeout(ctx, r.length)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for i, k := range keepers {
		group.Go(func() error { k.live(ctx, r.chance(i)); return nil })
	}
	group.Go(func() error { return r.kill(ctx, r.chance(r.sandboxes)) })
	group.Go(func() error { r.churn(ctx, r.chance(r.sandboxes+1)); return nil })
	if err := group.Wait(); err != nil {
		return err
	}
	// Whatever was acknowledged is there.
	for _, k := range keepers {
		k.step(context.WithoutCancel(ctx))
	}
	return nil
}

// chance returns the dice of one goroutine.
func (r *run) chance(i int) *rand.Rand {
	return rand.New(rand.NewPCG(r.seed, uint64(i))) //nolint:gosec // G115, G404: not a secret
}

// sleep waits for a random time below most and reports whether ctx lives.
func sleep(ctx context.Context, dice *rand.Rand, most time.Duration) bool {
	select {
	case <-time.After(time.Duration(dice.Int64N(int64(most)))):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// kill kills the daemon and starts it again.
func (r *run) kill(ctx context.Context, dice *rand.Rand) error {
	for sleep(ctx, dice, 2*killEvery) {
		r.epoch.Add(1)
		if err := r.p.Kill(); err != nil {
			return fmt.Errorf("kill: %w", err)
		}
		start := time.Now()
		if err := r.p.Restart(context.WithoutCancel(ctx)); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
		r.epoch.Add(1)
		took := time.Since(start)
		r.count(func(c *counts) { c.kills++; c.slowestRestart = max(c.slowestRestart, took) })
	}
	return nil
}

// count changes the counts.
func (r *run) count(change func(*counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.counts)
}

// down reports whether the daemon was down at some moment since the epoch was
// before.
func (r *run) down(before int64) bool { return before%2 == 1 || r.epoch.Load() != before }

// churn makes sandboxes, uses them once and deletes them.
func (r *run) churn(ctx context.Context, dice *rand.Rand) {
	for i := 0; sleep(ctx, dice, 2*comeAndGo); i++ {
		name, before := fmt.Sprintf("guest-%d", i), r.epoch.Load()
		err := r.comeAndGo(ctx, name)
		switch {
		case err == nil:
			r.count(func(c *counts) { c.made++ })
		case ctx.Err() == nil && !r.down(before):
			r.fault("%s: %v", name, err)
		}
	}
}

// comeAndGo makes a sandbox that keeps a file over an archive, and deletes it.
func (r *run) comeAndGo(ctx context.Context, name string) error {
	c, err := r.p.Client()
	if err != nil {
		return err
	}
	box, err := r.make(ctx, c, name)
	if err != nil {
		return err
	}
	err = succeeds(ctx, box, "test $(cat /etc/hostname) = "+name+" && "+
		"head -c 3000000 /dev/urandom >/root/kept && sha256sum /root/kept >/root/sum && touch /tmp/gone")
	if err == nil {
		err = r.archive(ctx, c, name)
	}
	if err == nil {
		err = succeeds(ctx, box, "sha256sum --check /root/sum && ! test -e /tmp/gone")
	}
	if err == nil {
		r.count(func(c *counts) { c.archived++ })
	}
	return errors.Join(err, remove(ctx, c, name))
}

// succeeds runs a command.
func succeeds(ctx context.Context, box *client.Box, command string) error {
	done, err := box.Start(ctx, client.Command{Command: command, Wait: true})
	if err == nil && done.ExitCode != 0 {
		err = fmt.Errorf("exit code %d of %s: %s%s", done.ExitCode, command, done.Stdout, done.Stderr)
	}
	return err
}

// archive archives a sandbox and brings it back.
func (r *run) archive(ctx context.Context, c *client.Client, name string) error {
	if _, err := c.Archive(ctx, name); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if err := reaches(ctx, c, name, doze.Archived); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	if _, err := c.Unarchive(ctx, name); err != nil {
		return fmt.Errorf("unarchive: %w", err)
	}
	if err := reaches(ctx, c, name, doze.Running); err != nil {
		return fmt.Errorf("unarchive: %w", err)
	}
	return nil
}

// moveTime bounds the way to an archive, and back.
const moveTime = 2 * time.Minute

// reaches waits until a sandbox has the status of a phase.
func reaches(ctx context.Context, c *client.Client, name string, to doze.Phase) error {
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	for {
		sb, err := c.Sandbox(ctx, name)
		if err != nil || sb.Status == to.Status() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it is %s, and should be %s", sb.Status, to.Status())
		case <-time.After(moveEvery):
		}
	}
}

// moveEvery is the pause between two looks at a status.
const moveEvery = 50 * time.Millisecond

func (r *run) make(ctx context.Context, c *client.Client, name string) (*client.Box, error) {
	sb, err := c.Create(ctx, doze.Sandbox{
		Metadata: doze.Metadata{Name: name},
		Spec:     doze.SandboxSpec{Runtime: doze.Runtime{Memory: memory}},
	}, false)
	if err != nil {
		return nil, err
	}
	return c.Box(sb)
}

// fault takes note of something that must not be.
func (r *run) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.errors++
	if len(r.faults) < faultsMax {
		r.faults = append(r.faults, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// faultsMax bounds what is printed; they are all counted.
const faultsMax = 20

// countWakes counts what the daemon logged.
func (r *run) countWakes() {
	for line := range strings.Lines(r.p.Printed()) {
		var e struct{ Msg, Tier string }
		if json.NewDecoder(bytes.NewBufferString(line)).Decode(&e) != nil || e.Msg != "woke" {
			continue
		}
		switch e.Tier {
		case "paused":
			r.counts.fromPaused++
		case "saved":
			r.counts.fromSaved++
		case "swapped":
			r.counts.fromSwapped++
		case "disk":
			r.counts.fromDisk++
		}
	}
}
