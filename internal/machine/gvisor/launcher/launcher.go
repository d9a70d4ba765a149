// Package launcher drives gVisor in process: it creates, pauses, checkpoints,
// restores and adopts sandboxes for a node that asks over a unix socket. It is
// the only package that imports gVisor, and it is linked into doze-sentry only.
//
// A launcher has no other job, so that what gVisor does to the process that
// hosts it (standard streams, namespaces of threads, file limits, panics) hurts
// nobody. It outlives the node's process; if it dies itself, its sandboxes live
// on and its successor adopts them from the run directory. Only those whose
// memory it was serving at that moment go back to the checkpoint they woke from.
package launcher

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	glog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"
	"gvisor.dev/gvisor/runsc/version"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

var (
	errGone  = errors.New("no such machine")
	errTaken = errors.New("there is such a machine already")
	errStill = errors.New("it stands still")
)

// unversioned is what gVisor calls itself when nobody gave it a version. Two
// such engines take each other's checkpoints for their own.
const unversioned = "VERSION_MISSING"

const (
	// heapGrowth is how much the launcher's heap grows between two collections, in
	// percent. What lives in it is small, so that with Go's default of 100 it would
	// be collected for every few megabytes, which is every few wakes. With more, the
	// kernel copies more tables of pages whenever an engine is forked from it.
	heapGrowth = 200
	// tidyAfter is when it is collected at the latest after a machine has ended:
	// gVisor leaves it to the collection to close some descriptors.
	tidyAfter = 2 * time.Second
)

// Options are the settings of a launcher.
type Options struct {
	Run    string // run state: control sockets, bundles; belongs in a tmpfs
	Cgroup string // parent of all cgroups of this launcher, such as doze-1a2b3c4d
	Log    io.Writer
	// PauseLimit is when a pause or a resume counts as hanging; by default
	// [gvisor.LimitPause].
	PauseLimit time.Duration
	// Processes is how many processes a machine may have, if it is positive and below
	// [ProcessesMost].
	Processes int64
	// Platform is how the engine intercepts system calls: a name of gVisor's. By default it is systrap.
	Platform string
}

// Launcher owns the machines below one run directory.
type Launcher struct {
	options Options
	conf    *config.Config
	groups  hostproc.Groups
	events  events
	tasks   sync.WaitGroup
	ceiling *hostproc.Ceiling
	lock    *os.File // says to other launchers that this run directory has one

	mu       sync.Mutex
	machines map[string]*sandbox // guarded by mu
	tidy     *time.Timer         // guarded by mu; runs the next collection
}

// Open returns a launcher that has adopted every live machine of its run
// directory and removed what is left of dead ones.
func Open(ctx context.Context, o Options) (*Launcher, error) {
	if version.Version() == unversioned {
		return nil, errors.New("doze-sentry was built without an engine version; build it with make build")
	}
	debug.SetGCPercent(heapGrowth)
	o.PauseLimit = cmp.Or(o.PauseLimit, gvisor.LimitPause)
	state := filepath.Join(o.Run, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("make the run directory: %w", err)
	}
	lock, err := lockRun(o.Run)
	if err != nil {
		return nil, err
	}
	conf, err := configFor(state, cmp.Or(o.Platform, gvisor.PlatformSystrap))
	if err != nil {
		return nil, fmt.Errorf("configure the engine: %w", err)
	}
	g, err := hostproc.OpenGroups(o.Cgroup)
	if err != nil {
		return nil, fmt.Errorf("prepare cgroups: %w", err)
	}
	// gVisor starts its processes by this path, and donates our standard
	// streams to them.
	specutils.ExePath = "/proc/self/exe"
	if err := syscall.Setgroups(nil); err != nil { // they would be the engine's, too
		return nil, fmt.Errorf("leave groups: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the null device: %w", err)
	}
	os.Stdin, os.Stdout, os.Stderr = null, null, null
	glog.SetTarget(glog.GoogleEmitter{Writer: &glog.Writer{Next: sieve{o.Log}}})
	glog.SetLevel(glog.Warning)

	l := &Launcher{options: o, conf: conf, groups: g, lock: lock, machines: map[string]*sandbox{}}
	l.ceiling = hostproc.NewCeiling(g, l.member)
	return l, l.adopt(ctx)
}

// lockRun makes us the only launcher of a run directory, until our process
// ends: two would adopt the same machines.
func lockRun(run string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(run, "launcher.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another launcher runs in %s: %w", run, err), lock.Close())
	}
	return lock, nil
}

// sieve leaves out what gVisor warns about at every start of a sandbox: that it
// runs out of this binary and not out of one of its own beside it. It is meant
// to: two binaries of different versions cannot be mixed up.
type sieve struct{ io.Writer }

func (s sieve) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("gvisorbinaries.go")) {
		return len(line), nil
	}
	return s.Writer.Write(line)
}

// configFor is what the configurations of all sandboxes have in common; see
// settingsFor. The names are gVisor's.
func configFor(root, platform string) (*config.Config, error) {
	set := flag.NewFlagSet(gvisor.Program, flag.ContinueOnError)
	config.RegisterFlags(set)
	for name, value := range map[string]string{
		"root":     root,
		"platform": platform,
		"network":  "sandbox",
		// gVisor can make cgroups, but on cgroup v1 it joins them with the calling process
		// and everything in it. So we make our own (hostproc.Groups), and put the engine's
		// process there before its first instruction: see join.
		"ignore-cgroups": "true",
		"host-settings":  "ignore",
		// The engine's process has no access to files of the host, not even of
		// volumes: a process of its own opens those. See owner.go.
		"directfs": "false",
		"rootless": "true",
		// One of its own for each process that opens files of volumes: one for all
		// would be a mount that outlives them.
		"gofer-network-namespace": "new",
		// Connections to the outside end with a sleep on disk: nobody knows whether
		// their peers are still there, and who only reads would wait for ever. Those
		// within the guest go on.
		"allow-connected-on-save": "false",
		// A connection that comes back from disk has lost its segment size and
		// would divide by it: the host segments, as it does after linkArgs.
		"software-gso": "false",
		// An engine whose guest has ended would wait so long for us to hang up, and meanwhile
		// answer connections to the guest with resets.
		"control-rpc-stop-timeout": "0",
	} {
		if err := set.Set(name, value); err != nil {
			return nil, fmt.Errorf("%s=%s: %w", name, value, err)
		}
	}
	return config.NewFromFlags(set)
}

// adopt takes over the machines of an earlier launcher.
func (l *Launcher) adopt(ctx context.Context) error {
	ids, err := container.List(l.conf.RootDir)
	if err != nil {
		return fmt.Errorf("list machines: %w", err)
	}
	for _, id := range ids {
		failpoint.Pass(failpoint.Takeover, id.ContainerID)
		c, err := container.Load(l.conf.RootDir, id, container.LoadOpts{Exact: true})
		if err != nil || !alive(c.SandboxPid()) {
			slog.Warn("removing what is left of a machine", "sandbox", id.ContainerID, "err", err)
			l.scrub(c, id.ContainerID)
			continue
		}
		s := l.newSandbox(id.ContainerID)
		s.group.Store(l.groups.Open(id.ContainerID))
		if err := s.live(ctx, c); err != nil { // it ended just now, or is beyond trust: a checkpoint of it may be left
			slog.Warn("ending a machine that cannot be adopted", "sandbox", id.ContainerID, "err", err)
			if err := s.kill(ctx); err != nil {
				slog.Error("end a machine", "sandbox", id.ContainerID, "err", err)
			}
			continue
		}
		if err := s.limitAgain(c); err != nil {
			slog.Warn("limit an adopted machine", "sandbox", id.ContainerID, "err", err)
		}
		s.score(hostproc.Ordinary) // our predecessor may have died with memory short, or in a checkpoint
		if err := s.group.Load().Level(); err != nil {
			slog.Warn("let an adopted machine have the processors", "sandbox", id.ContainerID, "err", err)
		}
		l.machines[id.ContainerID] = s
		slog.Info("adopted", "sandbox", id.ContainerID, "state", s.now())
	}
	if err := l.endOrphans(ctx); err != nil {
		return fmt.Errorf("end what a launcher left: %w", err)
	}
	if err := l.sweepBundles(); err != nil {
		return fmt.Errorf("remove bundles: %w", err)
	}
	if err := l.sweepOwners(); err != nil {
		return fmt.Errorf("end leases of users: %w", err)
	}
	return l.groups.Sweep(func(id string) bool { return l.machines[id] != nil || l.elsewhere(id) })
}

// sweepBundles removes those of machines that never got as far as having
// processes. Preconditions: all others were adopted.
func (l *Launcher) sweepBundles() error {
	bundles, err := os.ReadDir(filepath.Dir(l.bundle("any")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range bundles {
		if l.machines[e.Name()] == nil {
			l.scrub(nil, e.Name())
		}
	}
	return nil
}

// elsewhere reports whether a machine is in the launcher of another version of
// the engine. They share the parent of their cgroups, and nothing else.
func (l *Launcher) elsewhere(id string) bool {
	all, own := filepath.Split(filepath.Clean(l.options.Run))
	runs, err := os.ReadDir(all)
	return err != nil || slices.ContainsFunc(runs, func(e fs.DirEntry) bool {
		_, err := os.Lstat(filepath.Join(all, e.Name(), "bundles", id))
		return e.Name() != own && err == nil
	})
}

// scrub removes the run state of a machine whose processes are gone.
func (l *Launcher) scrub(c *container.Container, id string) {
	if c != nil {
		if err := hostproc.Guard(c.Destroy); err != nil {
			slog.Warn("destroy", "sandbox", id, "err", err)
		}
	}
	own := id + "_sandbox:" + id // what gVisor calls a machine that is alone in its engine
	for _, name := range []string{own + ".state", own + ".lock", "runsc-" + id + ".sock"} {
		if err := os.Remove(filepath.Join(l.conf.RootDir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("remove run state", "sandbox", id, "err", err)
		}
	}
	if err := l.releaseOwner(id); err != nil {
		slog.Warn("release a user", "sandbox", id, "err", err)
	}
	if err := os.RemoveAll(l.bundle(id)); err != nil {
		slog.Warn("remove bundle", "sandbox", id, "err", err)
	}
}

func (l *Launcher) bundle(id string) string { return filepath.Join(l.options.Run, "bundles", id) }

// Version returns what the engine calls itself.
func (l *Launcher) Version() gvisor.Version {
	return gvisor.Version{Engine: version.Version(), PID: os.Getpid(), Volumes: true, Disks: true}
}

// Machines returns what lives here: all of it, or the machine with an id.
func (l *Launcher) Machines(id string) []gvisor.Found {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := []gvisor.Found{}
	add := func(id string, s *sandbox) {
		if state := s.now(); state != "" {
			found = append(found, gvisor.Found{ID: id, State: state})
		}
	}
	if id != "" {
		if s := l.machines[id]; s != nil {
			add(id, s)
		}
		return found
	}
	for id, s := range l.machines {
		add(id, s)
	}
	return found
}

// machine returns a machine by its id.
func (l *Launcher) machine(id string) (*sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.machines[id]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%s: %w", id, errGone)
}

// claim registers a new machine, so that no second one of its name starts.
func (l *Launcher) claim(id string) (*sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.machines[id] != nil {
		return nil, fmt.Errorf("%s: %w", id, errTaken)
	}
	s := l.newSandbox(id)
	l.machines[id] = s
	return s, nil
}

func (l *Launcher) drop(s *sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.machines[s.id] == s {
		delete(l.machines, s.id)
	}
	l.tidy = restart(l.tidy, tidyAfter, runtime.GC) // while machines end all the time, the heap grows
}

// Boot creates and starts a machine.
func (l *Launcher) Boot(ctx context.Context, c gvisor.Config) error {
	s, err := l.create(ctx, c, false)
	if err != nil {
		return err
	}
	return s.start(ctx)
}

// Prepare creates the processes of a machine that Restore fills later.
func (l *Launcher) Prepare(ctx context.Context, c gvisor.Config) error {
	s, err := l.create(ctx, c, true)
	if err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return errors.Join(err, s.kill(context.WithoutCancel(ctx)))
	}
	return nil
}

// create makes the processes of a machine, which may have a checkpoint.
func (l *Launcher) create(ctx context.Context, c gvisor.Config, asleep bool) (*sandbox, error) {
	// An older machine of that name may have ended just now, and its name is
	// not free before what it leaves is removed.
	if old, err := l.machine(c.ID); err == nil && old.over() {
		old.clear()
		l.drop(old)
	}
	s, err := l.claim(c.ID)
	if err != nil {
		return nil, err
	}
	if err := s.create(ctx, c, asleep); err != nil {
		return nil, errors.Join(fmt.Errorf("create: %w", err), s.kill(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// Restore makes a machine run out of a checkpoint, in the processes that Prepare
// made, if it did.
func (l *Launcher) Restore(ctx context.Context, r gvisor.Restore) error {
	s, err := l.machine(r.Config.ID)
	if errors.Is(err, errGone) {
		s, err = l.create(ctx, r.Config, true)
	}
	if err != nil {
		return err
	}
	return s.restore(ctx, r)
}

// Pause makes the processes of a machine stand still.
func (l *Launcher) Pause(ctx context.Context, id string) error {
	return l.with(id, func(s *sandbox) error { return s.pause(ctx) })
}

// Resume lets the processes of a machine go on.
func (l *Launcher) Resume(ctx context.Context, t gvisor.Target) error {
	return l.with(t.ID, func(s *sandbox) error { return s.resume(ctx, t.Checkpointed) })
}

// Checkpoint writes one of a paused machine, until ctx ends.
func (l *Launcher) Checkpoint(ctx context.Context, c gvisor.Checkpoint) (made gvisor.Made, err error) {
	if !c.Layers {
		return made, errors.New("the dozed that asks does not know how this launcher writes memory: start the one that it came with")
	}
	err = l.with(c.ID, func(s *sandbox) error {
		made, err = s.checkpoint(ctx, c)
		return err
	})
	return made, err
}

// Precopy copies the memory of a machine while it runs, until ctx ends.
func (l *Launcher) Precopy(ctx context.Context, p gvisor.Precopy) (made gvisor.Made, err error) {
	err = l.with(p.ID, func(s *sandbox) error {
		made, err = s.precopy(ctx, p)
		return err
	})
	return made, err
}

// Finish copies the memory of a machine that runs on, as it was when its checkpoint began,
// until ctx ends.
func (l *Launcher) Finish(ctx context.Context, t gvisor.Target) (made gvisor.Made, err error) {
	err = l.with(t.ID, func(s *sandbox) error {
		made, err = s.finish(ctx)
		return err
	})
	return made, err
}

// Rename gives a running machine another host name.
func (l *Launcher) Rename(ctx context.Context, r gvisor.Rename) error {
	return l.with(r.ID, func(s *sandbox) error { return s.administer(ctx, []string{naming}, "-hostname", r.Hostname) })
}

// Administer runs the agent's program once in a running machine.
func (l *Launcher) Administer(ctx context.Context, a gvisor.Administer) error {
	return l.with(a.ID, func(s *sandbox) error { return s.administer(ctx, administrator, a.Args...) })
}

// Archive writes the files of a machine.
func (l *Launcher) Archive(ctx context.Context, a gvisor.Archive) error {
	return l.with(a.ID, func(s *sandbox) error { return s.archive(ctx, a.File) })
}

// Reclaim moves the memory of a paused machine to swap, until ctx ends.
func (l *Launcher) Reclaim(ctx context.Context, id string) (r gvisor.Reclaimed, err error) {
	err = l.with(id, func(s *sandbox) error {
		r, err = s.reclaim(ctx)
		return err
	})
	return r, err
}

// Loaded waits until the memory of a restored machine is there.
func (l *Launcher) Loaded(ctx context.Context, id string) error {
	return l.with(id, func(s *sandbox) error { return s.loaded(ctx) })
}

// Stats returns what a machine costs in memory.
func (l *Launcher) Stats(_ context.Context, id string) (stats gvisor.Stats, err error) {
	err = l.with(id, func(s *sandbox) error {
		g := s.group.Load()
		if g == nil { // it is being created
			return nil
		}
		stats.MemoryBytes, err = g.Resident()
		stats.MemoryBytes += g.Elsewhere(int(s.pid.Load()))
		stats.SwapBytes = g.Swapped()
		kinds := g.Kinds()
		stats.GuestBytes, stats.EngineBytes, stats.CacheBytes = kinds.Shared, kinds.Own, kinds.Cache
		stats.CPUTime = g.CPUTime()
		return err
	})
	return stats, err
}

// Kill ends a machine at once and removes its run state. It is no error if
// there is none.
func (l *Launcher) Kill(ctx context.Context, id string) error {
	s, err := l.machine(id)
	if errors.Is(err, errGone) {
		return nil
	}
	return s.kill(ctx)
}

func (l *Launcher) with(id string, do func(*sandbox) error) error {
	s, err := l.machine(id)
	if err != nil {
		return err
	}
	return do(s)
}
