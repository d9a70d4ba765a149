// Package gvisor runs sandboxes under gVisor by asking a launcher, and puts
// them to sleep in tiers. It links nothing of gVisor.
package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/hostproc"
	"github.com/dozehq/doze/internal/trace"
)

const (
	// reconnect is the pause between attempts to hear events again.
	reconnect = 200 * time.Millisecond
	// relaunch is that after a launcher that did not start. The log has each.
	relaunch = 5 * time.Second
)

// Options are the settings of a driver.
type Options struct {
	Sentry  string // path of the doze-sentry binary that new machines run in
	Engines string // directory of those that machines run in, by version; survives a reboot
	Run     string // directory of run state; belongs in a tmpfs
	Cgroup  string // parent of the cgroups
	Ready   int    // how many sandboxes on disk have a process waiting
	// Calm is for how long nobody must have waited for a machine before such a
	// process is created. By default it is a second.
	Calm time.Duration
	// Memory is what all sandboxes together may take, in bytes; 0 is no limit.
	Memory int64
	// PauseLimit is when a pause or a resume counts as hanging; by default
	// [LimitPause].
	PauseLimit time.Duration
	// Processes is how many processes a sandbox may have; 0 is the engine's own bound,
	// which is the most.
	Processes int64
	// Platform is what [Choose] returned; empty is the engine's default.
	Platform string
	// Dial connects to a port at the far end of a link.
	Dial func(ctx context.Context, l machine.Link, port uint16) (net.Conn, error)
}

// Driver asks a launcher for each version of the engine that is in use, and
// starts it when there is none.
type Driver struct {
	options  Options
	current  *engine // of new machines
	run      string  // directory of what we know until the next reboot
	vouchers checkpoint.Vouchers
	ready    ready
	rush     rush

	mu       sync.Mutex
	engines  map[string]*engine  // guarded by mu; by version
	added    chan struct{}       // guarded by mu; closed when engines has another one
	machines map[string]*sandbox // guarded by mu; those with processes
	last     map[string]*sandbox // guarded by mu; what was booted or adopted last of each machine
}

// Open returns the driver of all engines that are installed, after it installed
// the one that o.Sentry is, with the launcher of that running.
func Open(ctx context.Context, o Options) (*Driver, error) {
	current, all, err := o.engines(ctx)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		options: o, current: current, engines: all, added: make(chan struct{}), run: current.run, vouchers: checkpoint.VouchersIn(current.run),
		machines: map[string]*sandbox{}, last: map[string]*sandbox{},
	}
	d.rush.idled = idled
	d.ready = ready{most: o.Ready, calm: cmp.Or(o.Calm, readyCalm), rush: &d.rush}
	return d, current.ensure(ctx)
}

// engine returns the one of a version.
func (d *Driver) engine(version string) *engine {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.engines[version]
}

// manifest reads that of a checkpoint. It is [machine.ErrNoEngine] if the engine
// that made it is not there; one may have been put back since it was looked for.
func (d *Driver) manifest(dir string, c machine.Config) (checkpoint.Manifest, error) {
	m, err := layout.Read(dir, c)
	if err == nil && d.engine(m.Engine) == nil && !d.look(m.Engine) {
		err = fmt.Errorf("%w: the engine %q is not installed: put its doze-sentry into engines/%s/ of the data directory",
			machine.ErrNoEngine, m.Engine, m.Engine)
	}
	return m, err
}

// look reports whether a version is installed, and has it be one of ours then.
func (d *Driver) look(version string) bool {
	if !validVersion(version) {
		return false
	}
	e := d.options.engineAt(version)
	if info, err := os.Stat(e.sentry); err != nil || !info.Mode().IsRegular() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.engines[version] == nil {
		d.engines[version] = e
		close(d.added)
		d.added = make(chan struct{})
		slog.Info("an engine was put back", "engine", version)
	}
	return true
}

// others returns the engines that new machines do not get.
func (d *Driver) others() (list []*engine) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.engines {
		if e != d.current {
			list = append(list, e)
		}
	}
	return list
}

// home returns the engine that a machine has run state in: by default, the one
// of new machines.
func (d *Driver) home(id string) *engine {
	for _, e := range d.others() {
		if e.has(id) {
			return e
		}
	}
	return d.current
}

const (
	// DriverName is that of the driver.
	DriverName = "gvisor"
	// Program is the file name of the launcher. An installation has it beside dozed.
	Program = "doze-sentry"
	// Overhead is how many bytes the engine of a machine may take besides the memory
	// of its guest.
	Overhead = 96 << 20
)

// Traits are those of the driver.
func Traits() machine.Traits {
	return machine.Traits{Name: DriverName, Swap: true, Copies: true, Directories: true, Disks: true, Overhead: Overhead}
}

// Processes are patterns for the programs of the launcher and of the engine, as
// teardown has them. The engine starts some of its processes by way of /proc.
func Processes() []string { return []string{Program, "runsc*", "/proc/self/exe"} }

// Traits implements [machine.Driver].
func (*Driver) Traits() machine.Traits { return Traits() }

// Free returns how many bytes all machines may still take.
func (d *Driver) Free() (int64, error) { return hostproc.Free(d.options.Cgroup, d.options.Memory) }

// Boot implements [machine.Driver].
func (d *Driver) Boot(ctx context.Context, c machine.Config) (machine.Machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.From != "" {
		return d.fork(ctx, c)
	}
	if d.home(c.ID) != d.current {
		return nil, fmt.Errorf("boot: %w", errTaken)
	}
	defer d.rush.enter()()
	if err := d.current.mounts(ctx, c); err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the machine's directory: %w", err)
	}
	s := d.sandbox(c, machine.Awake)
	if !d.begin(s) {
		return nil, fmt.Errorf("boot: %w", errTaken)
	}
	err := s.timed(ctx, trace.Launch, PathBoot, Boot{Config: c})
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

// fork starts a new machine out of a kept checkpoint: it gets that checkpoint as its own,
// as if it slept on disk, and wakes.
func (d *Driver) fork(ctx context.Context, c machine.Config) (_ machine.Machine, err error) {
	from := c.From
	c.From = ""
	m, err := d.manifest(from, machine.Config{Root: c.Root, Agent: c.Agent, Disk: c.Disk})
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	switch state, err := d.home(c.ID).find(ctx, c.ID); {
	case err != nil:
		return nil, fmt.Errorf("fork: %w", err)
	case state != "": // it is not ours to close
		return nil, fmt.Errorf("fork: %w", errTaken)
	}
	if err := d.home(c.ID).mounts(ctx, c); err != nil {
		return nil, fmt.Errorf("fork: %w", err)
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
	sharing := trace.Start(ctx, trace.Share)
	if err := checkpoint.Inherit(c, from, m); err != nil {
		return nil, err
	}
	sharing.End()
	bytes, _ := checkpoint.Has(c)
	s.bytes.Store(bytes)
	if d.vouchers.Vouched(from) {
		s.trust(ctx, checkpoint.Dir(c))
	}
	if err := s.Resume(ctx); err != nil {
		return nil, errors.Join(err, d.vouchers.Doubt(from))
	}
	return s, nil
}

// Receive implements [machine.Driver].
func (d *Driver) Receive(ctx context.Context, c machine.Config) (machine.Machine, error) {
	from := c.From
	c.From = ""
	m, err := d.manifest(from, machine.Config{Root: c.Root, Agent: c.Agent, Disk: c.Disk})
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	d.finish(c.ID)
	s := d.sandbox(c, machine.OnDisk)
	s.engine.Store(d.home(c.ID))
	switch state, err := s.engine.Load().find(ctx, c.ID); {
	case err != nil:
		return nil, fmt.Errorf("receive: %w", err)
	case state == StateCreated: // it waited for the older checkpoint
		if err := s.kill(ctx); err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
	case state != "":
		return nil, fmt.Errorf("receive: %w", errTaken)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the machine's directory: %w", err)
	}
	if err := errors.Join(d.vouchers.Doubt(checkpoint.Dir(c)), checkpoint.Receive(c, from, m)); err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	bytes, _ := checkpoint.Has(c)
	s.bytes.Store(bytes)
	s.trust(ctx, checkpoint.Dir(c))
	return s, nil
}

// Adopt implements [machine.Driver].
func (d *Driver) Adopt(ctx context.Context, c machine.Config) (machine.Machine, error) {
	if err := failpoint.Reach(failpoint.Adopt, c.ID); err != nil {
		return nil, err
	}
	d.finish(c.ID)
	s := d.sandbox(c, machine.OnDisk)
	s.engine.Store(d.home(c.ID))
	d.know(s)
	state, err := s.engine.Load().find(ctx, c.ID)
	if err == nil {
		err = checkpoint.Sweep(c)
	}
	if err != nil {
		d.forget(s)
		return nil, fmt.Errorf("adopt: %w", err)
	}
	_, saved := checkpoint.Has(c)
	ran := checkpoint.Ran(c)
	switch {
	case state == StateRunning:
		s.reach(machine.Awake)
		bytes, _ := checkpoint.Size(checkpoint.Last(c))
		s.bytes.Store(bytes)
		if saved { // it is older than what runs, whose memory may still be coming from it
			s.tasks.Go(s.finishRestore)
		}
	case state == StateSwapped && saved && !ran:
		s.reach(machine.Swapped)
	case state == StatePaused && saved && !ran:
		s.reach(machine.Saved)
	case state == StatePaused, state == StateSwapped:
		s.reach(machine.Paused)
		if saved { // it is older than what ran
			err = errors.Join(checkpoint.Discount(c), checkpoint.Sweep(c))
		}
	default: // created: the process of a wake that was cut short never ran
		if err = s.kill(ctx); err == nil {
			err = s.fallBack(state)
		}
	}
	if err != nil {
		d.forget(s)
		return nil, fmt.Errorf("adopt: %w", err)
	}
	return s, nil
}

// Sweep implements [machine.Driver].
func (d *Driver) Sweep(ctx context.Context, live func(id string) bool) error {
	if err := failpoint.Reach(failpoint.Forget, ""); err != nil {
		return err
	}
	err := d.sweep(ctx, d.current, live)
	for _, e := range d.others() {
		if !e.busy() {
			continue
		}
		if err := d.sweep(ctx, e, live); err != nil { // those of the others are to go on all the same
			slog.Error("machines of an engine cannot be reached", "engine", e.version, "err", err)
		}
	}
	return errors.Join(err, d.vouchers.Sweep())
}

// sweep ends the machines of one engine for whose ids live is false.
func (d *Driver) sweep(ctx context.Context, e *engine, live func(id string) bool) error {
	states, err := e.list(ctx)
	for id := range states {
		if !live(id) {
			slog.Warn("removing a machine that nobody knows", "sandbox", id, "engine", e.version)
			err = errors.Join(err, e.call(ctx, PathKill, Target{ID: id}, nil))
		}
	}
	return err
}

// Tidy is Retire, which logs what is gone.
func (d *Driver) Tidy(ctx context.Context, dirs ...string) error {
	gone, err := d.Retire(ctx, dirs...)
	if len(gone) > 0 {
		slog.InfoContext(ctx, "removed earlier engines", "engines", gone)
	}
	return err
}

// Retire removes the engines that nobody needs any more: neither a machine nor
// a checkpoint in one of dirs was made with them, at any depth. It returns their
// versions. Preconditions: machines were adopted, and none is being started.
func (d *Driver) Retire(ctx context.Context, dirs ...string) (gone []string, err error) {
	others := slices.DeleteFunc(d.others(), (*engine).busy)
	if len(others) == 0 {
		return nil, nil
	}
	needed, err := checkpoint.Engines(dirs)
	if err != nil {
		return nil, err
	}
	for _, e := range others {
		if needed[e.version] {
			continue
		}
		d.mu.Lock()
		delete(d.engines, e.version)
		d.mu.Unlock()
		if err := e.remove(ctx); err != nil {
			return gone, fmt.Errorf("remove the engine %s: %w", e.version, err)
		}
		gone = append(gone, e.version)
	}
	return gone, nil
}

// Discard implements [machine.Driver].
func (d *Driver) Discard(dir string) error {
	return errors.Join(checkpoint.Discard(dir), d.vouchers.Doubt(dir))
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
// done: it may be about to retire the checkpoint.
func (d *Driver) finish(id string) {
	d.mu.Lock()
	old := d.last[id]
	d.mu.Unlock()
	if old != nil {
		d.ready.remove(old)
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
	stream, err := d.current.client.events(ctx)
	if err != nil {
		return nil, fmt.Errorf("listen for events: %w", err)
	}
	out := make(chan machine.Event)
	var all sync.WaitGroup
	all.Go(func() { d.hear(ctx, d.current, stream, out) })
	all.Go(func() {
		heard := map[*engine]bool{}
		for more := d.more(); ; more = d.more() {
			for _, e := range d.others() {
				if !heard[e] {
					heard[e] = true
					all.Go(func() { d.await(ctx, e, out) })
				}
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	})
	go func() { // ends with ctx
		all.Wait()
		close(out)
	}()
	return out, nil
}

// more is closed when there is another engine.
func (d *Driver) more() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.added
}

// await hears an engine from its first launcher on.
func (d *Driver) await(ctx context.Context, e *engine, out chan<- machine.Event) {
	select {
	case <-e.used:
		d.hear(ctx, e, d.again(ctx, e, out), out)
	case <-e.gone:
	case <-ctx.Done():
	}
}

// hear hands on what the launchers of one engine tell, until ctx ends or the
// engine is removed.
func (d *Driver) hear(ctx context.Context, e *engine, stream <-chan machine.Event, out chan<- machine.Event) {
	for stream != nil {
		for event := range stream {
			if !d.pass(ctx, out, event) {
				return
			}
		}
		stream = d.again(ctx, e, out)
	}
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

// stale reports whether an event tells the end of processes that others have replaced.
// Such an event may be slower than the answer to the call that met that end. New
// processes exist before we learn of them.
func (d *Driver) stale(ctx context.Context, e machine.Event) bool {
	d.mu.Lock()
	s := d.machines[e.ID]
	d.mu.Unlock()
	if !e.Exited || s == nil {
		return false
	}
	state, err := s.engine.Load().find(ctx, e.ID)
	return err == nil && state != ""
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
	if err := d.vouchers.Doubt(checkpoint.Dir(s.config)); err != nil { // its checkpoint may be why
		slog.Warn("a checkpoint is vouched for", "sandbox", e.ID, "err", err)
	}
	// One that is kept lost nothing but memory that it has on disk too.
	for _, tier := range []machine.Tier{machine.Saved, machine.Swapped} {
		if s.tier.CompareAndSwap(uint32(tier), uint32(machine.OnDisk)) {
			return false
		}
	}
	return true
}

// again connects to the launcher, or to its successor, and reports the ends that
// nobody told us about. It returns nil when ctx ends or the engine is removed.
func (d *Driver) again(ctx context.Context, e *engine, out chan<- machine.Event) <-chan machine.Event {
	for pause := reconnect; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-e.gone:
			return nil
		case <-time.After(pause):
		}
		if err := e.ensure(ctx); err != nil {
			slog.Error("no launcher", "engine", e.version, "err", err)
			pause = relaunch
			continue
		}
		pause = reconnect
		stream, err := e.client.events(ctx)
		if err != nil {
			continue
		}
		states, err := e.list(ctx)
		if err != nil {
			continue
		}
		for _, id := range d.missing(e, states) {
			if !d.pass(ctx, out, machine.Event{ID: id, Exited: true, Message: "its machine ended together with its launcher"}) {
				return nil
			}
		}
		return stream
	}
}

func (d *Driver) missing(e *engine, states map[string]string) (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, s := range d.machines {
		if s.engine.Load() == e && states[id] == "" && !s.starting {
			ids = append(ids, id)
		}
	}
	return ids
}
