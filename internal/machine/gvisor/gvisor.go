// Package gvisor runs sandboxes under gVisor by asking a launcher, and puts
// them to sleep in tiers. It owns the images on disk: when one is complete, and
// when one counts no more. It links nothing of gVisor.
package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"doze/internal/machine"
	"doze/internal/step"
)

const (
	// launchTime bounds the start of a launcher, which adopts what it finds.
	launchTime = 30 * time.Second
	launchPoll = 5 * time.Millisecond
	// lockTime is how long a process that was killed may take to be gone.
	lockTime = 2 * time.Second
	// reconnect is the pause between attempts to hear events again.
	reconnect = 200 * time.Millisecond
)

// Options are the settings of a driver.
type Options struct {
	Sentry string // path of the doze-sentry binary
	Run    string // directory of run state; belongs in a tmpfs
	Cgroup string // parent of the cgroups
	Ready  int    // how many sandboxes on disk have a process waiting
	// FlipLimit is when a pause or a resume counts as hanging; by default
	// [LimitFlip].
	FlipLimit time.Duration
	// Dial connects to a port at the far end of a link.
	Dial func(ctx context.Context, l machine.Link, port uint16) (net.Conn, error)
}

// Driver asks one launcher, which it starts when there is none.
type Driver struct {
	options Options
	engine  string // version; images are bound to it
	run     string // run directory of this engine version
	client  *client
	start   sync.Mutex // held while a launcher is started
	ready   ready

	mu       sync.Mutex
	machines map[string]*sandbox // guarded by mu; those with processes
	last     map[string]*sandbox // guarded by mu; what was booted or adopted last of each machine
}

// Open returns the driver of the engine that o.Sentry is, with its launcher
// running.
func Open(ctx context.Context, o Options) (*Driver, error) {
	out, err := exec.CommandContext(ctx, o.Sentry, "-version").Output() //nolint:gosec // G204: our own binary
	if err != nil {
		return nil, fmt.Errorf("ask %s for its version: %w", o.Sentry, err)
	}
	engine := strings.TrimSpace(string(out))
	run := filepath.Join(o.Run, fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(engine)))) // socket paths are short
	if err := os.MkdirAll(run, 0o700); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	d := &Driver{
		options: o, engine: engine, run: run, machines: map[string]*sandbox{}, last: map[string]*sandbox{}, ready: ready{most: o.Ready},
		client: newClient(filepath.Join(run, "launcher.sock")),
	}
	return d, d.ensure(ctx)
}

// ensure starts a launcher unless one answers. It is a process of its own
// session: it stays when we go. One that was killed just now may still have the
// lock that its successor needs.
func (d *Driver) ensure(ctx context.Context) error {
	d.start.Lock()
	defer d.start.Unlock()
	for began := time.Now(); ; time.Sleep(launchPoll) {
		if d.client.ping(ctx) == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err := d.launch(ctx)
		if !errors.Is(err, errEnded) || time.Since(began) > lockTime {
			return err
		}
	}
}

// errEnded is what launch returns for a launcher that does not stay.
var errEnded = errors.New("the launcher ended at once")

// launch starts a launcher and waits until it answers. Preconditions: start is
// held.
func (d *Driver) launch(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(d.run, "launcher.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the launcher's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	args := []string{
		"-run", d.run, "-cgroup", d.options.Cgroup, "-socket", d.client.socket,
		"-flip-limit", cmp.Or(d.options.FlipLimit, LimitFlip).String(),
	}
	cmd := exec.Command(d.options.Sentry, args...) //nolint:gosec,noctx // G204: our own binary; it must outlive every context of ours
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(step.Environ(), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the launcher: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the launcher, or with us
	slog.Info("started a launcher", "pid", cmd.Process.Pid, "engine", d.engine)

	deadline := time.NewTimer(launchTime)
	defer deadline.Stop()
	for {
		if d.client.ping(ctx) == nil {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("%w (%w): see %s", errEnded, errors.Join(err), log.Name())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("the launcher does not answer: see %s", log.Name())
		case <-time.After(launchPoll):
		}
	}
}

// repeatable are the calls that a launcher's successor may be asked for again
// when nobody knows how far the launcher came: it finds the work done.
var repeatable = map[string]bool{PathPause: true, PathResume: true, PathKill: true, PathStats: true}

// call asks the launcher, and asks its successor if it has died.
func (d *Driver) call(ctx context.Context, path string, in, out any) error {
	err := d.client.post(ctx, path, in, out)
	died := errors.Is(err, errCut) && repeatable[path] && ctx.Err() == nil
	if !died && !errors.Is(err, errNoLauncher) {
		return err
	}
	if err := d.ensure(ctx); err != nil {
		return err
	}
	return d.client.post(ctx, path, in, out)
}

// Boot implements [machine.Driver].
func (d *Driver) Boot(ctx context.Context, c machine.Config) (machine.Machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.From != "" {
		return d.fork(ctx, c)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the machine's directory: %w", err)
	}
	s := d.sandbox(c, machine.Awake)
	if !d.begin(s) {
		return nil, fmt.Errorf("boot: %w", errTaken)
	}
	err := d.call(ctx, PathBoot, Boot{Config: c}, nil)
	if errors.Is(err, errTaken) { // it is not ours to close
		d.forget(s)
		return nil, fmt.Errorf("boot: %w", err)
	}
	if err == nil {
		err = d.settle(s)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("boot: %w", err), s.Close(ctx))
	}
	return s, nil
}

// fork starts a new machine out of a kept image: it gets that image as its own,
// as if it slept on disk, and wakes.
func (d *Driver) fork(ctx context.Context, c machine.Config) (_ machine.Machine, err error) {
	from := c.From
	c.From = ""
	m, err := readManifest(from, machine.Config{Root: c.Root, Agent: c.Agent}, d.engine)
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	switch state, err := d.find(ctx, c.ID); {
	case err != nil:
		return nil, fmt.Errorf("fork: %w", err)
	case state != "": // it is not ours to close
		return nil, fmt.Errorf("fork: %w", errTaken)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the machine's directory: %w", err)
	}
	s := d.sandbox(c, machine.OnDisk)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("fork: %w", err), s.Close(ctx))
		}
	}()
	image := imageDir(c)
	if err := shareImage(from, m, c, image+unmade); err != nil {
		return nil, err
	}
	if err := os.Rename(image+unmade, image); err != nil { // durable or not: the machine is to run
		return nil, err
	}
	bytes, _ := hasImage(c)
	s.bytes.Store(bytes)
	if d.vouched(from) {
		s.trust(ctx, image)
	}
	if err := s.Resume(ctx); err != nil {
		return nil, errors.Join(err, d.doubt(from))
	}
	return s, nil
}

// Adopt implements [machine.Driver].
func (d *Driver) Adopt(ctx context.Context, c machine.Config) (machine.Machine, error) {
	if err := step.Reach(step.Adopt, c.ID); err != nil {
		return nil, err
	}
	d.finish(c.ID)
	s := d.sandbox(c, machine.OnDisk)
	d.know(s)
	state, err := d.find(ctx, c.ID)
	if err == nil {
		err = sweepImages(c)
	}
	if err != nil {
		d.forget(s)
		return nil, fmt.Errorf("adopt: %w", err)
	}
	_, saved := hasImage(c)
	switch {
	case state == StateRunning: // an image is older than what runs
		s.reach(machine.Awake)
		err = errors.Join(discount(c), sweepImages(c))
		s.bytes.Store(0)
	case state == StateSwapped && saved:
		s.reach(machine.Swapped)
	case state == StatePaused && saved:
		s.reach(machine.Saved)
	case state == StatePaused, state == StateSwapped:
		s.reach(machine.Paused)
	default: // created: the process of a wake that was cut short never ran
		err = s.kill(ctx)
		if err == nil && !saved {
			err = machine.ErrGone
		}
	}
	if err != nil {
		d.forget(s)
		return nil, fmt.Errorf("adopt: %w", err)
	}
	return s, nil
}

// find returns the state of a machine in the launcher, or nothing.
func (d *Driver) find(ctx context.Context, id string) (string, error) {
	found, err := d.list(ctx)
	if err != nil {
		return "", err
	}
	return found[id], nil
}

func (d *Driver) list(ctx context.Context) (map[string]string, error) {
	if err := d.ensure(ctx); err != nil {
		return nil, err
	}
	var found []Found
	if err := d.client.get(ctx, PathMachines, &found); err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	states := map[string]string{}
	for _, f := range found {
		states[f.ID] = f.State
	}
	return states, nil
}

// Sweep implements [machine.Driver].
func (d *Driver) Sweep(ctx context.Context, keep func(id string) bool) error {
	if err := step.Reach(step.Forget, ""); err != nil {
		return err
	}
	states, err := d.list(ctx)
	for id := range states {
		if !keep(id) {
			slog.Warn("removing a machine that nobody knows", "sandbox", id)
			err = errors.Join(err, d.call(ctx, PathKill, Target{ID: id}, nil))
		}
	}
	return errors.Join(err, d.sweepVouchers())
}

// Discard implements [machine.Driver].
func (d *Driver) Discard(dir string) error {
	return errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+unmade), d.doubt(dir))
}

// know registers a machine with processes, whose end is an event.
func (d *Driver) know(s *sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machines[s.config.ID], d.last[s.config.ID] = s, s
}

// begin registers a machine whose processes are about to run. Until settle
// their end is what its caller returns, and no event. It reports false if there
// are such processes already.
func (d *Driver) begin(s *sandbox) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.machines[s.config.ID]; old != nil && old != s {
		return false
	}
	d.machines[s.config.ID], d.last[s.config.ID] = s, s
	s.starting, s.died = true, false
	return true
}

// errDied is what settle returns for processes that are gone again.
var errDied = errors.New("the machine ended as soon as it ran")

// settle makes the end of a machine an event from now on.
func (d *Driver) settle(s *sandbox) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.starting = false
	if !s.died {
		return nil
	}
	delete(d.machines, s.config.ID)
	return errDied
}

// leave forgets that there ever was a machine.
func (d *Driver) leave(s *sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last[s.config.ID] == s {
		delete(d.last, s.config.ID)
	}
}

// finish waits until what an earlier handle of a machine left to be done is
// done: it may be about to retire the image.
func (d *Driver) finish(id string) {
	d.mu.Lock()
	old := d.last[id]
	d.mu.Unlock()
	if old != nil {
		old.tasks.Wait()
	}
}

func (d *Driver) knows(s *sandbox) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machines[s.config.ID] == s
}

func (d *Driver) forget(s *sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.machines[s.config.ID] == s {
		delete(d.machines, s.config.ID)
	}
}

// Events implements [machine.Driver]. After a launcher's death it tells which
// machines ended meanwhile.
func (d *Driver) Events(ctx context.Context) (<-chan machine.Event, error) {
	stream, err := d.client.events(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen for events: %w", err)
	}
	out := make(chan machine.Event)
	go func() { // ends with ctx
		defer close(out)
		for {
			for e := range stream {
				if !d.pass(ctx, out, e) {
					return
				}
			}
			if stream = d.again(ctx, out); stream == nil {
				return
			}
		}
	}()
	return out, nil
}

// pass hands on an event of a machine that we know.
func (d *Driver) pass(ctx context.Context, out chan<- machine.Event, e machine.Event) bool {
	if d.stale(ctx, e) || !d.concerns(e) {
		return true
	}
	select {
	case out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// stale reports whether an event tells the end of processes in whose place the
// machine has others by now: it may be slower than the answer to the call that
// met that end. Where one can have others, they are there before we know it.
func (d *Driver) stale(ctx context.Context, e machine.Event) bool {
	d.mu.Lock()
	known := d.machines[e.ID] != nil
	d.mu.Unlock()
	if !e.Exited || !known {
		return false
	}
	states, err := d.list(ctx)
	return err == nil && states[e.ID] != ""
}

// concerns reports whether an event is one for the outside.
func (d *Driver) concerns(e machine.Event) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.machines[e.ID]
	switch {
	case s == nil:
		return false
	case !e.Exited:
		return true
	case s.starting:
		s.died = true
		return false
	}
	delete(d.machines, e.ID)
	if err := d.doubt(imageDir(s.config)); err != nil { // its image may be why
		slog.Warn("an image is vouched for", "sandbox", e.ID, "err", err)
	}
	// One that is kept lost nothing but memory that it has on disk too.
	for _, kept := range []machine.Tier{machine.Saved, machine.Swapped} {
		if s.tier.CompareAndSwap(uint32(kept), uint32(machine.OnDisk)) {
			return false
		}
	}
	return true
}

// again reconnects to the launcher, or to its successor, and reports the ends
// that nobody told us about. It returns nil when ctx ends.
func (d *Driver) again(ctx context.Context, out chan<- machine.Event) <-chan machine.Event {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
		if err := d.ensure(ctx); err != nil {
			slog.Error("no launcher", "err", err)
			continue
		}
		stream, err := d.client.events(ctx)
		if err != nil {
			continue
		}
		states, err := d.list(ctx)
		if err != nil {
			continue
		}
		for _, id := range d.missing(states) {
			if !d.pass(ctx, out, machine.Event{ID: id, Exited: true, Message: "its machine ended together with its launcher"}) {
				return nil
			}
		}
		return stream
	}
}

func (d *Driver) missing(states map[string]string) (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, s := range d.machines {
		if states[id] == "" && !s.starting {
			ids = append(ids, id)
		}
	}
	return ids
}
