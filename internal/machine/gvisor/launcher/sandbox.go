package launcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/hostproc"
	"github.com/dozehq/doze/internal/trace"
)

// sandbox is one machine. container.Container is not safe for concurrent use,
// so every use of it holds mu.
type sandbox struct {
	l  *Launcher
	id string

	mu        sync.Mutex
	container *container.Container           // guarded by mu; nil before create and after the end
	config    gvisor.Config                  // guarded by mu; empty if adopted
	group     atomic.Pointer[hostproc.Group] // nil before create
	state     atomic.Value                   // string; as in gvisor.Found, empty before create
	pid       atomic.Int64                   // of the engine's process; 0 before create
	unwanted  atomic.Bool                    // its end is on purpose
	spoilt    atomic.Pointer[error]          // what was wrong with the checkpoint that it woke from
	reason    atomic.Pointer[string]         // why we ended it, if it is not wanted
	standing  atomic.Int32                   // a hostproc.Standing, as it was set last
	exited    chan struct{}                  // closed when that process is gone
	clearing  sync.Once                      // the removal of run state

	paused   bool                        // guarded by mu
	swapped  bool                        // guarded by mu; its memory was moved to swap in the last pause
	doubtful bool                        // guarded by mu; nobody knows whether it is paused
	onward   *onward                     // guarded by mu; what it waits for while it is doubtful
	wire     atomic.Pointer[urpc.Client] // kept connection to the engine, made when needed

	link     *boot.CreateLinksAndRoutesArgs // guarded by mu; open ahead of a restore
	calm     *time.Timer                    // guarded by mu; says that the guest is past its start or its wake
	rest     *time.Timer                    // guarded by mu; says that a guest that was saved stays in memory
	copying  sync.WaitGroup                 // the copy of its memory into a checkpoint; it may outlive the call that began it
	hot      []uint64                       // guarded by mu; pages of the engine that its last wakes from swap used
	seen     []*seen                        // guarded by mu; copies of its memory, the last one at the end
	watching bool                           // guarded by mu; its engine notes what is touched
	watches  int                            // guarded by mu; how often it was to note that anew
	fresh    bool                           // guarded by mu; for a copy that has not begun
	left     *unfinished                    // guarded by mu; nil if no checkpoint is to be finished
	room     *os.File                       // guarded by mu; for what a guest writes to in the next checkpoint, or nil
	roomless *time.Timer                    // guarded by mu; gives room back
}

func (l *Launcher) newSandbox(id string) *sandbox {
	s := &sandbox{l: l, id: id, exited: make(chan struct{})}
	s.state.Store("")
	return s
}

// now returns the state of s, or nothing if it has no processes. It never waits
// for the engine.
func (s *sandbox) now() string {
	select {
	case <-s.exited:
		return ""
	default:
		state, _ := s.state.Load().(string) // nothing else is ever stored
		return state
	}
}

// note makes the state of the container visible to now. Preconditions: mu is
// held.
func (s *sandbox) note() {
	switch {
	case s.paused && s.swapped:
		s.state.Store(gvisor.StateSwapped)
		return
	case s.paused:
		s.state.Store(gvisor.StatePaused)
		return
	}
	s.state.Store(string(s.container.Status))
}

// create makes the processes of s, in its cgroup, without a first instruction. A machine
// that is asleep has a checkpoint.
func (s *sandbox) create(ctx context.Context, c gvisor.Config, asleep bool) error {
	defer trace.Start(ctx, trace.Process).End()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = c
	// The bundle comes first: it says to other launchers whose the group is.
	if err := failpoint.Reach(failpoint.Bundle, s.id); err != nil {
		return err
	}
	bundle := s.l.bundle(c.ID)
	if err := os.MkdirAll(filepath.Join(bundle, "root"), 0o700); err != nil {
		return fmt.Errorf("make the bundle: %w", err)
	}
	if err := failpoint.Reach(failpoint.Group, s.id); err != nil {
		return err
	}
	g, err := s.l.groups.Make(c.ID, c.Memory+gvisor.Overhead)
	if err != nil {
		return err
	}
	s.group.Store(g)
	if c.Disk > 0 {
		if err := checkpoint.LayDisk(ctx, c, asleep); err != nil {
			return err
		}
	}
	own := specFor(c, filepath.Join(bundle, "root"))
	if most := s.l.options.Processes; most > 0 && most < ProcessesMost {
		own.Linux.Resources.Pids = &specs.LinuxPids{Limit: most}
	}
	if err := mapUsers(own.Linux); err != nil {
		return err
	}
	raw, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("write the spec: %w", err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600); err != nil {
		return fmt.Errorf("write the spec: %w", err)
	}
	spec, err := specutils.ReadSpec(bundle, s.l.conf)
	if err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	owner, err := s.l.leaseOwner(c.ID)
	if err != nil {
		return err
	}
	if err := failpoint.Reach(failpoint.Engine, s.id); err != nil {
		return err
	}
	var made *container.Container
	err = hostproc.Watch(ctx, gvisor.LimitStart, func() {}, func() error {
		return asOwner(owner, func() (err error) {
			made, err = container.New(settingsFor(c, s.l.conf), container.Args{ID: c.ID, Spec: spec, BundleDir: bundle})
			return err
		})
	})
	if err != nil {
		return err
	}
	if err := cmp.Or(failpoint.Reach(failpoint.Join, s.id), join(g, made)); err != nil {
		return errors.Join(err, made.Destroy())
	}
	return s.settle(made)
}

// join moves the processes of a new machine into its group, before its first
// instruction. It also sets which die first when memory runs out: those that the guest
// will run in, and then the engine. Every process that comes later descends from one
// that is there now, and inherits both. Without the second, all would have the score of
// the dozed that started us.
func join(g *hostproc.Group, c *container.Container) error {
	engine := c.SandboxPid()
	err := hostproc.Visit(engine, func(pid int) error {
		if err := g.Add(pid); err != nil {
			return err
		}
		hostproc.Score(pid, pid == engine, hostproc.Ordinary)
		return nil
	})
	// It opens the files of volumes for the engine, if there are any.
	if gofer := c.GoferPid.Load(); gofer != 0 && err == nil {
		err = g.Add(gofer)
	}
	return err
}

// live takes over a container that runs already.
func (s *sandbox) live(ctx context.Context, c *container.Container) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.marked(markRestored) {
		c.Status = container.Running
	}
	if err := s.settle(c); err != nil {
		return err
	}
	if err := s.recall(ctx); err != nil { // it is what its marks say until the engine answers
		slog.WarnContext(ctx, "an engine does not say whether its guest stands still", "sandbox", s.id, "err", err)
	}
	if s.note(); s.now() == string(container.Running) {
		s.stirred() // our predecessor may not have come to it
	}
	s.l.tasks.Go(func() { _ = s.loaded(context.WithoutCancel(ctx)) }) // our predecessor may have loaded it
	return nil
}

// settle watches a container's process from now on. Preconditions: mu is held.
func (s *sandbox) settle(c *container.Container) error {
	s.container = c
	s.note()
	end, err := hostproc.Waiter(c.SandboxPid())
	if err != nil {
		return err
	}
	s.pid.Store(int64(c.SandboxPid()))
	g := s.group.Load()
	s.l.tasks.Go(func() {
		end()
		s.ended(g)
	})
	s.l.tasks.Go(func() { g.Watch(s.exited, memoryLimit(c.Spec), s.outOfMemory) })
	if file, size, ok := diskOf(c.Spec); ok {
		s.l.tasks.Go(func() { s.boundDisk(file, size) })
	}
	return nil
}

// ended reports the end of the engine's process, unless somebody wanted it.
func (s *sandbox) ended(g *hostproc.Group) {
	oom := g.ShortOfMemory()
	close(s.exited)
	if s.unwanted.Load() {
		return
	}
	why := fate(int(s.pid.Load()))
	switch spoilt := s.spoilt.Load(); {
	case spoilt != nil:
		why = "its memory could not be loaded: " + checkpoint.Public(*spoilt)
	case s.reason.Load() != nil:
		why = *s.reason.Load()
	case oom:
		why = "the machine ran out of memory and was killed"
	}
	slog.Warn("machine ended", "sandbox", s.id, "out_of_memory", oom)
	s.clear()
	s.l.drop(s) // now its name is free
	s.l.events.send(gvisor.Event{ID: s.id, Exited: true, OutOfMemory: oom, Message: why})
}

// spoil ends a machine whose checkpoint turns out to be bad while it wakes from it.
func (s *sandbox) spoil(err error) {
	if s.spoilt.CompareAndSwap(nil, &err) {
		slog.Error("load a checkpoint", "sandbox", s.id, "err", err)
	}
	s.shoot()
}

// outOfMemory reports that the kernel killed processes of a machine that goes
// on. The machine's end, if it ends, is reported by ended.
func (s *sandbox) outOfMemory(kills int64) {
	select {
	case <-s.exited:
	default:
		s.l.events.send(gvisor.Event{
			ID: s.id, OutOfMemory: true,
			Message: fmt.Sprintf("the memory limit was reached: the kernel killed %d of its processes", kills),
		})
	}
}

// do runs one call to the engine with a time limit. A call that hangs is ended
// by killing the engine's process, which breaks its control connection.
func (s *sandbox) do(ctx context.Context, limit time.Duration, call func(c *container.Container) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return fmt.Errorf("%s: %w", s.id, errGone)
	}
	defer s.note()
	return hostproc.Watch(ctx, limit, s.shoot, func() error { return call(s.container) })
}

// start runs the first instruction.
func (s *sandbox) start(ctx context.Context) error {
	err := s.do(ctx, gvisor.LimitStart, func(c *container.Container) error {
		// The engine copies addresses and routes from the guest's end of the
		// link and takes them off it.
		dressing := trace.Start(ctx, trace.Link)
		if err := dress(s.config.Link); err != nil {
			return fmt.Errorf("address the link: %w", err)
		}
		dressing.End()
		defer trace.Start(ctx, trace.Engine).End()
		return c.Start(s.l.conf)
	})
	return s.begun(ctx, err)
}

// restore fills the created processes with a checkpoint and lets them run.
func (s *sandbox) restore(ctx context.Context, r gvisor.Restore) error {
	var index *os.File
	err := s.do(ctx, gvisor.LimitStart, func(c *container.Container) error {
		opening := trace.Start(ctx, trace.Link)
		if err := s.openLink(r.Config); err != nil {
			return err
		}
		opening.End()
		defer s.closeLink()
		if err := failpoint.Reach(failpoint.Fill, s.id); err != nil {
			return err
		}
		filling := trace.Start(ctx, trace.Engine)
		index = s.watchLoaded(ctx, r)
		if err := s.fill(r); err != nil {
			return err
		}
		filling.End()
		if err := failpoint.Reach(failpoint.Filled, s.id); err != nil {
			return err
		}
		c.Status = container.Running // gVisor writes it down only where its own call restores
		return s.mark(markRestored, true)
	})
	if err != nil {
		_ = index.Close() // it was only read
		return errors.Join(err, s.kill(context.WithoutCancel(ctx)))
	}
	s.l.tasks.Go(func() { s.restored(context.WithoutCancel(ctx), index) })
	return nil
}

// restored finishes a restore while its caller has the machine already.
// Its share of the processor is limited only when its memory is there: to load
// it is our work, not the guest's.
func (s *sandbox) restored(ctx context.Context, index *os.File) {
	defer func() { _ = index.Close() }() // it was only read
	if err := s.loaded(ctx); err != nil {
		return // the machine ends, which is an event
	}
	s.woke(index)
	s.stir()
	failpoint.Pass(failpoint.Unlimit, s.id)
	if err := s.group.Load().LimitCPU(s.config.CPUs); err != nil && !s.over() {
		slog.Error("limit the processor", "sandbox", s.id, "err", err)
		s.shoot() // without its limits it must not run
	}
}

// limitAgain sets what an earlier launcher may not have come to set before it
// died: see restored. A machine that never ran is limited when it does.
func (s *sandbox) limitAgain(c *container.Container) error {
	if c.Status == container.Created {
		return nil
	}
	return s.group.Load().LimitCPU(cpuLimit(c.Spec))
}

// over reports whether the engine's process is gone.
func (s *sandbox) over() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

// openLink makes the packet socket for a restore, unless prepare did.
// Preconditions: mu is held.
func (s *sandbox) openLink(c gvisor.Config) (err error) {
	if s.link == nil {
		if s.link, err = linkArgs(c.Link); err != nil {
			return fmt.Errorf("open the link: %w", err)
		}
	}
	return nil
}

// closeLink closes our copy of the packet socket. Preconditions: mu is held.
func (s *sandbox) closeLink() {
	if s.link != nil {
		closeAll(s.link.Files)
		s.link = nil
	}
}

// prepare opens what a restore needs ahead of it.
func (s *sandbox) prepare() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := failpoint.Reach(failpoint.Link, s.id); err != nil {
		return err
	}
	return s.openLink(s.config)
}

// begun finishes a start: the share of the processor is limited from now on. A
// start that did not work leaves nothing.
func (s *sandbox) begun(ctx context.Context, err error) error {
	if err == nil {
		err = s.group.Load().LimitCPU(s.config.CPUs)
	}
	if err == nil {
		s.stir()
		return nil
	}
	return errors.Join(err, s.kill(context.WithoutCancel(ctx)))
}

// loaded waits without mu: a machine can go back to sleep meanwhile. A machine that was
// started has its memory. If the engine could not load it, loaded ends the engine. The engine
// itself ends its guest alone, and a guest that stands still does not end.
func (s *sandbox) loaded(ctx context.Context) error {
	c, err := s.engine()
	if err != nil || !s.marked(markRestored) {
		return err
	}
	err = hostproc.Watch(ctx, gvisor.LimitCheckpoint, s.shoot, c.WaitRestore)
	if _, said := errors.AsType[urpc.RemoteError](err); said {
		s.spoil(err)
	}
	return err
}

// engine returns the engine of a machine that has one, for callers without mu.
func (s *sandbox) engine() (*container.Container, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.container == nil {
		return nil, fmt.Errorf("%s: %w", s.id, errGone)
	}
	return s.container, nil
}

// archive writes the layer above the root file system. If it cannot, no file is
// left.
func (s *sandbox) archive(ctx context.Context, name string) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make the archive: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(name))
		}
	}()
	err = s.do(ctx, gvisor.LimitCheckpoint, func(c *container.Container) error { return c.TarRootfsUpperLayer(f) })
	return errors.Join(err, f.Sync())
}

// administer does in the guest what only a process inside can do while it runs:
// the agent's program, started for nothing else.
func (s *sandbox) administer(ctx context.Context, may []string, args ...string) error {
	caps, err := specutils.Capabilities(false, &specs.LinuxCapabilities{Bounding: may, Effective: may, Permitted: may})
	if err != nil {
		return err
	}
	return s.do(ctx, gvisor.LimitStart, func(c *container.Container) error {
		if s.paused {
			return errors.New("the machine must be awake")
		}
		pid, err := c.Execute(s.l.conf, &control.ExecArgs{
			Filename: agentPath, Argv: append([]string{agentPath}, args...), WorkingDirectory: "/", Capabilities: caps,
		})
		if err != nil {
			return fmt.Errorf("start the process: %w", err)
		}
		status, err := c.WaitPID(pid)
		if err == nil && status != 0 {
			err = fmt.Errorf("the process ended with status %#x", int(status))
		}
		return err
	})
}

// kill ends the machine and removes everything but its checkpoints.
func (s *sandbox) kill(ctx context.Context) error {
	if err := failpoint.Reach(failpoint.Kill, s.id); err != nil {
		return err
	}
	s.unwanted.Store(true)
	s.shoot() // without mu: a call that hangs holds it
	if s.pid.Load() != 0 {
		select {
		case <-s.exited:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(gvisor.LimitKill):
			return fmt.Errorf("kill %s: process %d does not end", s.id, s.pid.Load())
		}
	}
	failpoint.Pass(failpoint.Clear, s.id)
	s.clear()
	s.l.drop(s)
	return nil
}

// shoot kills the engine's process; the guest's processes die with it.
func (s *sandbox) shoot() {
	select {
	case <-s.exited: // the number may belong to somebody else by now
	default:
		g, pid := s.group.Load(), int(s.pid.Load())
		if g != nil {
			_ = g.LimitCPU(0) // to end takes processor time, too: a fork bomb has thousands of tasks
		}
		if pid != 0 && g != nil {
			g.End(pid) // which settle's waiter sees
		}
	}
}

// clear removes the run state, the cgroup and the disk of a machine whose processes are gone. A
// second call waits and finds it done. By then the run state may belong to another
// machine of that name.
func (s *sandbox) clear() { s.clearing.Do(s.removeRunState) }

func (s *sandbox) removeRunState() {
	s.mu.Lock()
	c := s.container
	s.container = nil
	s.closeLink()
	s.dropLeft()
	s.dropRoom()
	s.hangUp()
	disk, _, ok := s.disk(c)
	s.mu.Unlock()
	s.l.scrub(c, s.id)
	if ok { // nobody goes on with it, and it takes room
		if err := checkpoint.RemoveDisk(disk); err != nil {
			slog.Warn("remove a disk", "sandbox", s.id, "err", err)
		}
	}
	if g := s.group.Load(); g != nil {
		if err := g.Remove(); err != nil {
			slog.Warn("remove cgroup", "sandbox", s.id, "err", err)
		}
	}
}
