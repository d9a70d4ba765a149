package machinetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

// Op is something that a driver or a machine is asked to do.
type Op string

// All operations. A step down to a tier is one of pause, save, swap and drop. Release
// gives up the process of the next wake. A resume of a machine on disk is a restore.
const (
	OpBoot       Op = "boot"
	OpReceive    Op = "receive"
	OpAdopt      Op = "adopt"
	OpSweep      Op = "sweep"
	OpPause      Op = "pause"
	OpSave       Op = "save"
	OpSwap       Op = "swap"
	OpDrop       Op = "drop"
	OpRelease    Op = "release"
	OpResume     Op = "resume"
	OpRestore    Op = "restore"
	OpPrecopy    Op = "precopy"
	OpSnapshot   Op = "snapshot"
	OpRenew      Op = "renew"
	OpDiscard    Op = "discard"
	OpArchive    Op = "archive"
	OpRename     Op = "rename"
	OpAdminister Op = "administer"
	OpDial       Op = "dial"
	OpStats      Op = "stats"
	OpClose      Op = "close"
)

// listenersMax bounds what one listener of events may leave unread.
const listenersMax = 1024

// Fake is a driver, and the host that its machines run on. Guests live in this
// process and are reached over pipes, so it works in a synctest bubble; checkpoints
// are files in Config.Dir, as with a real driver. A crash of the node is
// nothing but a new call of Adopt; a crash of the host is [Fake.Reboot].
type Fake struct {
	// Engine is the version that checkpoints are bound to.
	Engine string
	// Can is what Traits returns.
	Can machine.Traits
	// Ready makes a process wait for the next wake of every machine on disk.
	Ready bool
	// Handler returns what answers on a port of a machine, or nil if nothing
	// does. It is asked once per port after each boot and each restore: what
	// must survive a sleep on disk belongs to the caller. The default is the
	// program of the conformance suite.
	Handler func(c machine.Config, port uint16) http.Handler

	mu           sync.Mutex
	environments map[string]*environment     // guarded by mu
	listeners    map[chan machine.Event]bool // guarded by mu
	failures     map[Op][]error              // guarded by mu
	delays       map[Op]time.Duration        // guarded by mu
	computing    map[string]computing        // guarded by mu; by machine
	counts       map[string]map[Op]int       // guarded by mu
	machines     map[string]*fakeMachine     // guarded by mu; the last handle of each
}

var _ machine.Driver = (*Fake)(nil)

// Overhead is that of a Fake, unlike that of each real driver.
const Overhead = 64 << 20

// NewFake returns a host without machines.
func NewFake() *Fake {
	return &Fake{
		Engine:       "fake-1",
		Can:          machine.Traits{Name: "fake", Swap: true, Copies: true, Directories: true, Disks: true, Overhead: Overhead},
		environments: map[string]*environment{},
		listeners:    map[chan machine.Event]bool{},
		failures:     map[Op][]error{},
		delays:       map[Op]time.Duration{},
		counts:       map[string]map[Op]int{},
		machines:     map[string]*fakeMachine{},
	}
}

// FailNext makes the next op fail with err before it changes anything. Several
// calls add up.
func (f *Fake) FailNext(op Op, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures[op] = append(f.failures[op], err)
}

// Delay makes every op take so long from now on.
func (f *Fake) Delay(op Op, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delays[op] = d
}

// Count returns how often op was asked of a machine, or of all if id is empty.
// Failed attempts count.
func (f *Fake) Count(id string, op Op) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, ops := range f.counts {
		if id == "" || id == of {
			n += ops[op]
		}
	}
	return n
}

// Processes returns the machines that have processes, awake or not.
func (f *Fake) Processes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id, b := range f.environments {
		if b.alive() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Kill ends the processes of a machine, as if its engine had crashed.
func (f *Fake) Kill(id string) { f.end(id, false) }

// OutOfMemory makes the memory limit kill a process inside a machine, or the
// whole machine.
func (f *Fake) OutOfMemory(id string, whole bool) {
	if whole {
		f.end(id, true)
		return
	}
	f.tell(machine.Event{ID: id, OutOfMemory: true, Message: "the memory limit was reached"})
}

// Reboot ends all processes at once; nobody is left to tell. Checkpoints stay.
func (f *Fake) Reboot() {
	f.mu.Lock()
	environments := f.environments
	f.environments = map[string]*environment{}
	f.machines = map[string]*fakeMachine{}
	f.mu.Unlock()
	for _, b := range environments {
		b.close()
	}
}

func (f *Fake) end(id string, oom bool) {
	f.mu.Lock()
	b, m := f.environments[id], f.machines[id]
	delete(f.environments, id)
	f.mu.Unlock()
	if b == nil || !b.alive() {
		return
	}
	b.close()
	if m != nil && m.Tier().Checkpointed() {
		m.tier.Store(uint32(machine.OnDisk))
		return // nothing is lost
	}
	f.tell(machine.Event{ID: id, Exited: true, OutOfMemory: oom, Message: "its machine ended by itself"})
}

func (f *Fake) tell(e machine.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for out := range f.listeners {
		select {
		case out <- e:
		default:
			panic("machinetest: nobody reads the events")
		}
	}
}

// enter counts an operation, lets it take its time, and fails it on demand.
func (f *Fake) enter(id string, op Op) error {
	f.mu.Lock()
	if f.counts[id] == nil {
		f.counts[id] = map[Op]int{}
	}
	f.counts[id][op]++
	delay := f.delays[op]
	var err error
	if queue := f.failures[op]; len(queue) > 0 {
		err, f.failures[op] = queue[0], queue[1:]
	}
	f.mu.Unlock()
	time.Sleep(delay)
	return err
}

func (f *Fake) environment(id string) *environment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.environments[id]
}

// occupy makes room for a machine's processes. There is room for one.
func (f *Fake) occupy(c machine.Config) (*environment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.environments[c.ID]
	if b == nil {
		b = newEnvironment(f, c)
		f.environments[c.ID] = b
	}
	if b.alive() {
		return nil, fmt.Errorf("%s: there is such a machine already", c.ID)
	}
	return b, nil
}

func (f *Fake) vacate(id string) {
	f.mu.Lock()
	b := f.environments[id]
	delete(f.environments, id)
	f.mu.Unlock()
	if b != nil {
		b.close()
	}
}

func (f *Fake) machine(c machine.Config, t machine.Tier) *fakeMachine {
	m := &fakeMachine{f: f, config: c}
	m.tier.Store(uint32(t))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.machines[c.ID] = m
	return m
}

// Traits implements [machine.Driver].
func (f *Fake) Traits() machine.Traits { return f.Can }

// Boot implements [machine.Driver].
func (f *Fake) Boot(ctx context.Context, c machine.Config) (machine.Machine, error) {
	if err := errors.Join(f.enter(c.ID, OpBoot), ctx.Err()); err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	if _, err := os.Stat(c.Root); c.Root != "" && err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	world := newMemory(c)
	if c.From != "" {
		var err error
		if world, err = load(c.From, machine.Config{Root: c.Root, Agent: c.Agent, Disk: c.Disk}, f.Engine); err != nil {
			return nil, fmt.Errorf("boot: %w", err)
		}
		if !world.Renamed {
			world.Host = c.Hostname
		}
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	b, err := f.occupy(c)
	if err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	m := f.machine(c, machine.Awake)
	b.start(world)
	return m, nil
}

// Receive implements [machine.Driver].
func (f *Fake) Receive(ctx context.Context, c machine.Config) (machine.Machine, error) {
	from := c.From
	c.From = ""
	if err := errors.Join(f.enter(c.ID, OpReceive), ctx.Err()); err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	if b := f.environment(c.ID); b != nil && b.alive() {
		return nil, fmt.Errorf("receive: %s has processes", c.ID)
	}
	memory, err := load(from, machine.Config{Root: c.Root, Agent: c.Agent, Disk: c.Disk}, f.Engine)
	if err == nil {
		err = errors.Join(os.MkdirAll(c.Dir, 0o700), commit(ctx, c, f.Engine, memory))
	}
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	return f.machine(c, machine.OnDisk), nil
}

// Adopt implements [machine.Driver].
func (f *Fake) Adopt(_ context.Context, c machine.Config) (machine.Machine, error) {
	if err := f.enter(c.ID, OpAdopt); err != nil {
		return nil, err
	}
	if err := sweepCheckpoints(c); err != nil {
		return nil, err
	}
	b, saved := f.environment(c.ID), hasCheckpoint(c)
	switch {
	case b != nil && b.awake():
		return f.machine(c, machine.Awake), retire(c)
	case b != nil && b.alive() && saved && b.swapped():
		return f.machine(c, machine.Swapped), nil
	case b != nil && b.alive() && saved:
		return f.machine(c, machine.Saved), nil
	case b != nil && b.alive():
		return f.machine(c, machine.Paused), nil
	case saved:
		return f.machine(c, machine.OnDisk), nil
	}
	made, err := goBack(c)
	if err != nil {
		return nil, err
	}
	m := f.machine(c, machine.OnDisk)
	m.back.Store(&made)
	return m, nil
}

// Sweep implements [machine.Driver].
func (f *Fake) Sweep(_ context.Context, live func(id string) bool) error {
	if err := f.enter("", OpSweep); err != nil {
		return err
	}
	f.mu.Lock()
	ids := slices.Collect(maps.Keys(f.environments))
	f.mu.Unlock()
	for _, id := range ids {
		if !live(id) {
			f.vacate(id)
		}
	}
	return nil
}

// Discard implements [machine.Driver].
func (f *Fake) Discard(dir string) error {
	return errors.Join(f.enter("", OpDiscard), os.RemoveAll(dir), os.RemoveAll(dir+".making"))
}

// Events implements [machine.Driver].
func (f *Fake) Events(ctx context.Context) (<-chan machine.Event, error) {
	out := make(chan machine.Event, listenersMax)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners[out] = true
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.listeners, out)
		close(out)
	})
	return out, nil
}

// fakeMachine is one incarnation of the node's handle on a machine.
type fakeMachine struct {
	f      *Fake
	config machine.Config
	tier   atomic.Uint32
	ready  atomic.Bool
	busy   atomic.Bool
	back   atomic.Pointer[time.Time] // what WentBack returns; nil is zero
}

// WentBack implements [machine.Machine].
func (m *fakeMachine) WentBack() (made time.Time) {
	if t := m.back.Load(); t != nil {
		made = *t
	}
	return made
}

var errBusy = errors.New("a machine was called by two goroutines at a time")

// alone runs do unless another call is under way.
func (m *fakeMachine) alone(do func() error) error {
	if !m.busy.CompareAndSwap(false, true) {
		return errBusy
	}
	defer m.busy.Store(false)
	return do()
}

func (m *fakeMachine) Tier() machine.Tier { return machine.Tier(m.tier.Load()) } //nolint:gosec // G115: we store tiers only

func (m *fakeMachine) Ready() bool { return m.ready.Load() }

func (m *fakeMachine) Suspend(ctx context.Context, to machine.Tier) error {
	return m.alone(func() error {
		if m.Ready() {
			if err := m.f.enter(m.config.ID, OpRelease); err != nil {
				return err
			}
			m.ready.Store(false)
		}
		for m.Tier() < to {
			if err := ctx.Err(); err != nil {
				return err
			}
			next := m.Tier().Next(to)
			if err := m.down(ctx, next); err != nil {
				return fmt.Errorf("to %s: %w", next, err)
			}
			m.tier.Store(uint32(next))
		}
		return nil
	})
}

func (m *fakeMachine) down(ctx context.Context, to machine.Tier) error {
	op := map[machine.Tier]Op{machine.Paused: OpPause, machine.Saved: OpSave, machine.Swapped: OpSwap, machine.OnDisk: OpDrop}[to]
	if err := m.f.enter(m.config.ID, op); err != nil {
		return err
	}
	b := m.f.environment(m.config.ID)
	if b == nil || !b.alive() {
		return errors.New("no such machine")
	}
	switch to {
	case machine.Paused:
		b.pause()
		return nil
	case machine.Saved:
		return commit(ctx, m.config, m.f.Engine, b.memory())
	case machine.Swapped:
		b.swap(true)
		return nil
	default:
		b.stop()
		m.ready.Store(m.f.Ready)
		return nil
	}
}

func (m *fakeMachine) Resume(context.Context) error {
	return m.alone(func() error {
		op := OpResume
		if m.Tier() == machine.OnDisk {
			op = OpRestore
		}
		if m.Tier() == machine.Awake {
			return nil
		}
		if err := m.f.enter(m.config.ID, op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if m.Tier() == machine.OnDisk { // also if its processes died just now
			return m.restore()
		}
		b := m.f.environment(m.config.ID)
		if b == nil || !b.alive() {
			made, err := goBack(m.config)
			if err != nil {
				return errors.New("resume: no such machine")
			}
			m.back.Store(&made)
			return m.restore()
		}
		if err := retire(m.config); err != nil {
			return err
		}
		m.tier.Store(uint32(machine.Awake))
		b.swap(false)
		b.resume()
		return nil
	})
}

func (m *fakeMachine) restore() error {
	memory, err := load(checkpointDir(m.config), m.config, m.f.Engine)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	b, err := m.f.occupy(m.config)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := retire(m.config); err != nil {
		return err
	}
	m.tier.Store(uint32(machine.Awake))
	m.ready.Store(false)
	b.start(memory)
	return nil
}

// Precopy implements [machine.Machine].
func (m *fakeMachine) Precopy(ctx context.Context) error {
	return m.alone(func() error { return errors.Join(m.f.enter(m.config.ID, OpPrecopy), ctx.Err()) })
}

// Renew implements [machine.Machine]. It takes as long as [Fake.Delay] says, and too
// long if that is more than most.
func (m *fakeMachine) Renew(ctx context.Context, most time.Duration, freeze machine.Freeze) error {
	return m.alone(func() error {
		b := m.f.environment(m.config.ID)
		if b == nil || !b.awake() || !m.config.GoBack {
			return errors.New("renew: the machine must be awake and may go back")
		}
		thaw, err := freeze.Begin()
		if err != nil {
			return fmt.Errorf("renew: %w", err)
		}
		defer thaw()
		b.pause()
		defer b.resume()
		start := time.Now()
		if err := m.f.enter(m.config.ID, OpRenew); err != nil {
			return fmt.Errorf("renew: %w", err)
		}
		if time.Since(start) > most {
			return fmt.Errorf("renew: %w", machine.ErrTooLong)
		}
		if err := commit(ctx, m.config, m.f.Engine, b.memory()); err != nil {
			return fmt.Errorf("renew: %w", err)
		}
		return retire(m.config)
	})
}

// Snapshot implements [machine.Machine].
func (m *fakeMachine) Snapshot(ctx context.Context, dir string, freeze machine.Freeze) error {
	return m.alone(func() error {
		if m.Tier() == machine.Awake {
			thaw, err := freeze.Begin()
			if err != nil {
				return fmt.Errorf("snapshot: %w", err)
			}
			defer thaw()
		}
		if err := m.f.enter(m.config.ID, OpSnapshot); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("snapshot: %w", cmp.Or(err, fs.ErrExist))
		}
		if err := os.RemoveAll(dir + ".making"); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		b := m.f.environment(m.config.ID)
		if b == nil || !b.alive() { // it is on disk
			memory, err := load(checkpointDir(m.config), m.config, m.f.Engine)
			if err != nil {
				return fmt.Errorf("snapshot: %w", err)
			}
			return publish(ctx, dir, m.config, m.f.Engine, memory)
		}
		if m.Tier() == machine.Awake {
			b.pause()
			defer b.resume()
		}
		return publish(ctx, dir, m.config, m.f.Engine, b.memory())
	})
}

// Rename implements [machine.Machine].
func (m *fakeMachine) Rename(_ context.Context, hostname string) error {
	return m.alone(func() error {
		b := m.f.environment(m.config.ID)
		if err := m.f.enter(m.config.ID, OpRename); err != nil || b == nil || !b.awake() {
			return fmt.Errorf("rename: %w", cmp.Or(err, machine.ErrGone))
		}
		b.memory().rename(hostname)
		return nil
	})
}

// Administer implements [machine.Machine]. Its guests have no agent, so that what
// would be done is not seen.
func (m *fakeMachine) Administer(context.Context, ...string) error {
	return m.alone(func() error {
		b := m.f.environment(m.config.ID)
		if err := m.f.enter(m.config.ID, OpAdminister); err != nil || b == nil || !b.awake() {
			return fmt.Errorf("administer: %w", cmp.Or(err, machine.ErrGone))
		}
		return nil
	})
}

// Archive implements [machine.Machine].
func (m *fakeMachine) Archive(_ context.Context, file string) error {
	return m.alone(func() error {
		b := m.f.environment(m.config.ID)
		if err := m.f.enter(m.config.ID, OpArchive); err != nil || b == nil || !b.alive() {
			return fmt.Errorf("archive: %w", cmp.Or(err, machine.ErrGone))
		}
		raw, err := b.memory().archive()
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("archive: %w", err)
		}
		_, err = f.Write(raw)
		return errors.Join(err, f.Close())
	})
}

// Dial implements [machine.Machine]. As on a network nobody answers for a
// machine without processes: it waits for ctx.
func (m *fakeMachine) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if err := m.f.enter(m.config.ID, OpDial); err != nil {
		return nil, err
	}
	b := m.f.environment(m.config.ID)
	if b == nil || !b.alive() {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: context.Cause(ctx)}
	}
	conn, err := b.dial(ctx, port)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: err}
	}
	return conn, nil
}

// fakeBoot is the time of a processor that each boot of a fake took.
const fakeBoot = 10 * time.Millisecond

// computing is what a machine computes: so much of a processor from some moment on.
type computing struct {
	since  time.Time
	share  float64
	before time.Duration
}

// Compute makes the processes of a machine use a share of a processor from now on,
// also while it sleeps: callers that care stop it.
func (f *Fake) Compute(id string, share float64) {
	before := f.computed(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.computing == nil {
		f.computing = map[string]computing{}
	}
	f.computing[id] = computing{time.Now(), share, before}
}

// computed is the time of processors that the processes of a machine used.
func (f *Fake) computed(id string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.computing[id]
	if c.since.IsZero() {
		return 0
	}
	return c.before + time.Duration(c.share*float64(time.Since(c.since)))
}

func (m *fakeMachine) Stats(context.Context) (machine.Stats, error) {
	if err := m.f.enter(m.config.ID, OpStats); err != nil {
		return machine.Stats{}, err
	}
	stats := machine.Stats{DiskBytes: checkpointBytes(m.config)}
	if m.config.Disk > 0 { // it is part of that here
		stats.StorageBytes = stats.DiskBytes
	}
	if m.Ready() {
		stats.MemoryBytes = fakeEngine
	}
	if b := m.f.environment(m.config.ID); b != nil && b.alive() {
		stats.MemoryBytes = b.memory().size()
		if m.config.Disk > 0 {
			stats.StorageBytes = b.memory().stored()
		}
		stats.CPUTime = fakeBoot + m.f.computed(m.config.ID)
		if b.swapped() {
			stats.MemoryBytes, stats.SwapBytes = fakeEngine, stats.MemoryBytes
		}
	}
	return stats, nil
}

func (m *fakeMachine) Close(context.Context) error {
	return m.alone(func() error {
		if err := m.f.enter(m.config.ID, OpClose); err != nil {
			return err
		}
		m.f.vacate(m.config.ID)
		m.tier.Store(uint32(machine.OnDisk))
		if err := os.RemoveAll(m.config.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	})
}

// fakeEngine is what stays in memory of a machine whose memory is in swap, and
// what a process that waits takes.
const fakeEngine = 64 << 10

var errRefused = os.NewSyscallError("connect", syscall.ECONNREFUSED)
