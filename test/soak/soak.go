package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/power"
)

const (
	memory = 512 // MB of a sandbox
	// The idle times are short, so that a run meets every tier and every move
	// many times.
	pauseAfter, saveAfter = 200 * time.Millisecond, 300 * time.Millisecond
	swapAfter, diskAfter  = 600 * time.Millisecond, 1200 * time.Millisecond
	restMax               = 2500 * time.Millisecond // between two steps of a canary
	harmEvery             = 7 * time.Second         // on average
	comeAndGo             = 4 * time.Second         // on average
	// swapSize is for a run. A host that lets us make none goes without the tier.
	swapSize = 1 << 30
	// diskSize is for what a run keeps, and diskEach for each of its sandboxes.
	diskSize, diskEach = 1 << 30, 320 << 20
)

type options struct {
	length               time.Duration     // bounds the run; 0: nothing does
	met                  func(counts) bool // if set, the run ends when it is true
	seed                 uint64
	sandboxes, megabytes int
	logs                 string // directory to copy the logs to if something is wrong; empty: a new one
}

// counts is what a run ends with.
type counts struct {
	seed uint64
	took time.Duration

	steps, requests, excused, interrupting int64
	dozeds, launchers, engines, cuts       int64
	observed, setbacks, stepsLost, lost    int64
	untold                                 int64

	made, snapshots, forked, restored, archived int64

	fromPaused, fromSaved, fromSwapped, fromDisk int64

	wrong, errors                       int64
	slowestRestart, slowestStep, latest time.Duration
}

// sleeps is how often a sandbox was asleep and woke.
func (c counts) sleeps() int64 { return c.fromPaused + c.fromSaved + c.fromSwapped + c.fromDisk }

func (c counts) String() string {
	lines := []string{
		fmt.Sprintf("seed %d, %v", c.seed, c.took.Round(time.Second)),
		fmt.Sprintf("%d sleeps: woke %d times from paused, %d from saved, %d from swap, %d from disk",
			c.sleeps(), c.fromPaused, c.fromSaved, c.fromSwapped, c.fromDisk),
		fmt.Sprintf("%d steps in %d requests, %d of them cut short by harm, %d of them while a checkpoint was written; slowest %v",
			c.steps, c.requests, c.excused, c.interrupting, c.slowestStep.Round(time.Millisecond)),
		fmt.Sprintf("killed: %d times dozed, %d the launcher, %d a sandbox's process; %d cuts of the power; ready again after %v at most",
			c.dozeds, c.launchers, c.engines, c.cuts, c.slowestRestart.Round(time.Millisecond)),
		fmt.Sprintf("%d checkpoints seen; %d times back to one, which lost %d steps, %d of them untold, right after a wake; %d sandboxes lost before they had one",
			c.observed, c.setbacks, c.stepsLost, c.untold, c.lost),
		fmt.Sprintf("%d sandboxes came and went; %d snapshots, %d forks, %d times back to a snapshot; %d archives, and back",
			c.made, c.snapshots, c.forked, c.restored, c.archived),
		fmt.Sprintf("%d wrong, %d errors; clock wrong by %v at most", c.wrong, c.errors, c.latest.Round(time.Millisecond)),
	}
	return strings.Join(lines, "\n")
}

// run is one soak.
type run struct {
	options

	p    *testkit.Platform
	disk *power.Disk
	// epoch is odd while something is down, or about to be; crashes while
	// sandboxes may lose what they did since their checkpoints.
	epoch, crashes atomic.Int64
	cutAt          atomic.Int64 // when the power was cut last, in nanoseconds

	mu     sync.Mutex
	counts counts // guarded by mu
	faults []string
	read   int64 // bytes of the log that countWakes has seen
}

// soak runs for the wanted time and returns what it counted. The error says
// what went wrong, with the first faults.
func soak(ctx context.Context, o options) (_ counts, err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "doze-soak-")
	if err != nil {
		return counts{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	finish := context.WithoutCancel(ctx)
	disk, err := power.New(ctx, dir, power.Ext4, diskSize+int64(o.sandboxes)*diskEach)
	if err != nil {
		return counts{}, err
	}
	defer func() { err = errors.Join(err, disk.Close(finish)) }()
	area := filepath.Join(dir, "swap")
	if none := swap.Make(ctx, area, swapSize, true); none != nil {
		fmt.Fprintln(os.Stderr, "soak: without swap:", none)
	}
	defer func() { err = errors.Join(err, swap.Remove(finish, area)) }()
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Data: filepath.Join(disk.Dir, "data"), Args: []string{
		"--pause-after", pauseAfter.String(), "--save-after", saveAfter.String(), "--swap-after", swapAfter.String(),
		"--disk-after", diskAfter.String(), "--ready", "2", "--disk-reserve-mb", "64",
	}})
	if err != nil {
		return counts{}, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	r := &run{options: o, p: p, disk: disk, counts: counts{seed: o.seed}}
	err = r.all(ctx)
	if counted := r.countWakes(); counted != nil {
		err = errors.Join(err, counted)
	}
	r.counts.took = time.Since(began)
	if err != nil {
		return r.counts, fmt.Errorf("%w\n%s", err, p.Tail())
	}
	if len(r.faults) > 0 {
		return r.counts, errors.Join(errors.New(strings.Join(r.faults, "\n")), copyLogs(dir, o.logs))
	}
	return r.counts, nil
}

// copyLogs copies all logs below a directory, and tells where they are. Without a place
// for them it makes one: others may write to the directory for temporary files, and so the
// name cannot be known ahead.
func copyLogs(from, to string) (err error) {
	if to == "" {
		to, err = os.MkdirTemp("", "doze-soak-")
	} else {
		err = os.MkdirAll(to, 0o700)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "the logs are in", to)
	logs := os.DirFS(from)
	return fs.WalkDir(logs, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".log" {
			return err
		}
		raw, err := fs.ReadFile(logs, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, strings.ReplaceAll(path, "/", "-")), raw, 0o600)
	})
}

func (r *run) all(ctx context.Context) error {
	canaries := make([]*canary, r.sandboxes)
	for i := range canaries {
		k, err := r.canary(ctx, i)
		if err != nil {
			return fmt.Errorf("start canary %d: %w", i, err)
		}
		canaries[i] = k
	}
	live, cancel := context.WithCancel(ctx)
	if r.length > 0 {
		live, cancel = context.WithTimeout(ctx, r.length)
	}
	defer cancel()
	group, live := errgroup.WithContext(live)
	for _, k := range canaries {
		group.Go(func() error { k.live(live); return nil })
	}
	group.Go(func() error { return r.harm(live, r.chance(r.sandboxes)) })
	group.Go(func() error { r.churn(live, r.chance(r.sandboxes+1)); return nil })
	group.Go(func() error { defer cancel(); return r.enough(live) })
	if err := group.Wait(); err != nil {
		return err
	}
	// Whatever was acknowledged is there.
	for _, k := range canaries {
		k.step(ctx)
		k.Close()
	}
	return nil
}

// enough returns when the run has met what it is to meet, or ctx ends.
func (r *run) enough(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(countEvery):
		}
		if err := r.countWakes(); err != nil {
			return err
		}
		r.mu.Lock()
		now := r.counts
		r.mu.Unlock()
		if r.met != nil && r.met(now) {
			return nil
		}
	}
}

// countEvery is how often a run looks whether it is over.
const countEvery = time.Second

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

// count changes the counts.
func (r *run) count(change func(*counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.counts)
}

// down reports whether something was down at some moment since the epoch was
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
	agent, err := r.make(ctx, c, name)
	if err != nil {
		return err
	}
	err = succeeds(ctx, agent, "test $(cat /etc/hostname) = "+name+" && "+
		"head -c 3000000 /dev/urandom >/root/kept && sha256sum /root/kept >/root/sum && touch /tmp/gone")
	if err == nil {
		err = r.archive(ctx, c, name)
	}
	if err == nil {
		err = succeeds(ctx, agent, "sha256sum --check /root/sum && ! test -e /tmp/gone")
	}
	if err == nil {
		r.count(func(c *counts) { c.archived++ })
	}
	return errors.Join(err, remove(ctx, c, name))
}

// succeeds runs a command.
func succeeds(ctx context.Context, agent *client.Agent, command string) error {
	done, err := agent.Start(ctx, client.Command{Command: command, Wait: true})
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

func (r *run) make(ctx context.Context, c *client.Client, name string) (*client.Agent, error) {
	_, agent, err := testkit.Create(ctx, c, name, memory)
	return agent, err
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

// countWakes counts what dozed logged since it was called before.
func (r *run) countWakes() error {
	f, err := os.Open(r.p.Log)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(r.read, io.SeekStart); err != nil {
		return err
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	r.read += int64(len(raw))
	for line := range bytes.Lines(raw) {
		var e struct{ Msg, Tier string }
		if json.Unmarshal(line, &e) != nil || e.Msg != "woke" {
			continue
		}
		r.count(func(c *counts) {
			switch e.Tier {
			case "paused":
				c.fromPaused++
			case "saved":
				c.fromSaved++
			case "swapped":
				c.fromSwapped++
			case "disk":
				c.fromDisk++
			}
		})
	}
	return nil
}
