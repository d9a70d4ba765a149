// Package hostproc has what a driver of machines needs of processes on the host.
// Cgroups limit a machine and count what it costs, and a ceiling bounds all of them
// together. It moves their memory between RAM and swap, and ends them. It knows no
// engine: to it, a machine is a process with descendants.
package hostproc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where every host has them.
const cgroupRoot = "/sys/fs/cgroup"

const (
	// CPUPeriod is the kernel's default, in microseconds.
	CPUPeriod = 100_000

	// pidsMax bounds the host's tasks of one machine. Every task of the guest
	// is at most one of them.
	pidsMax = 16 << 10

	// relief is what a machine gets on top for a moment when its memory runs out. When
	// the kernel kills a process, the engine gives its memory back some milliseconds
	// later, or up to 5 seconds later if it looked just before. If the engine needs a
	// page meanwhile, the kernel would kill the next process. That may be the guest's
	// first one.
	relief, reliefTime = 32 << 20, 10 * time.Second

	// reclaimIdle is how many rounds in a row, reclaimPause apart, must have
	// moved less than reclaimLeast before what is left is taken for all that
	// stays. In a round that moves nothing the kernel may find out what nobody
	// used since the one before, and a disk that is busy may still be writing.
	// Less than reclaimRest is not worth another round.
	reclaimIdle, reclaimPause = 20, 25 * time.Millisecond
	reclaimLeast, reclaimRest = 1 << 20, 4 << 20
	// interruptEvery is the pause between attempts to stop such a round.
	interruptEvery = time.Millisecond

	// yieldShare is how much less of busy processors a machine gets that works for
	// nobody, than one that somebody waits for. Until lastMost it gets none.
	yieldShare, lastMost = 16, 2 * time.Second
	// Shares and weight are what the kernel gives a group by default, on cgroup v1
	// and v2.
	cpuShares, cpuWeight = 1024, 100

	// The kernel counts a kill a little after it tells about the shortage.
	oomSettle, oomPatience = 20 * time.Millisecond, 2 * time.Second
)

// Groups is the place of the cgroups of all machines of a platform.
type Groups struct {
	root    string
	name    string // below the root of each hierarchy
	unified bool   // cgroup v2
	freezes bool   // v1 has the controller for it
}

// controllers that we use, in every hierarchy where v1 has one each.
var controllers = []string{"memory", "cpu", "pids"}

// freezer is the controller of v1 that stops tasks. Every group of v2 can do that.
const freezer = "freezer"

// OpenGroups finds out how the host does it and prepares the parent.
func OpenGroups(name string) (Groups, error) {
	g, err := groupsOf(name)
	if err != nil {
		return g, err
	}
	return g, g.prepare()
}

// groupsOf finds out how the host does it.
func groupsOf(name string) (Groups, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return Groups{}, fmt.Errorf("%s: %w", cgroupRoot, err)
	}
	g := Groups{root: cgroupRoot, name: name, unified: st.Type == unix.CGROUP2_SUPER_MAGIC}
	if !g.unified {
		err := unix.Statfs(filepath.Join(cgroupRoot, freezer), &st)
		g.freezes = err == nil && st.Type == unix.CGROUP_SUPER_MAGIC
	}
	return g, nil
}

// prepare makes the parent and lets it limit its children.
func (g Groups) prepare() error {
	for _, dir := range g.dirs("") {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if !g.unified {
		// Kernels before 5.11 limit a parent for itself alone unless they are told.
		// They refuse while it has children, which then were made by us, after this.
		if err := g.Open("").writeIf("memory.use_hierarchy", "1"); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("limit machines together: %w", err)
		}
		return nil
	}
	for _, dir := range []string{g.root, filepath.Join(g.root, g.name)} {
		for _, c := range controllers {
			if err := write(dir, "cgroup.subtree_control", "+"+c); err != nil {
				return fmt.Errorf("enable the %s controller: %w", c, err)
			}
		}
	}
	return nil
}

// dirs returns the directories of one group, or of the parent for no id.
func (g Groups) dirs(id string) []string {
	if g.unified {
		return []string{filepath.Join(g.root, g.name, id)}
	}
	var dirs []string
	for _, c := range controllers {
		dirs = append(dirs, filepath.Join(g.root, c, g.name, id))
	}
	if g.freezes {
		dirs = slices.Insert(dirs, len(dirs)-1, filepath.Join(g.root, freezer, g.name, id))
	}
	return dirs
}

// Open returns the group of a machine, which need not exist.
func (g Groups) Open(id string) *Group {
	dirs := g.dirs(id)
	if g.unified {
		return &Group{id: id, dirs: dirs, memory: dirs[0], cpu: dirs[0], unified: true}
	}
	return &Group{id: id, dirs: dirs, memory: dirs[0], cpu: dirs[1]}
}

// Make creates the group of a machine with the limit of its memory, in bytes, the
// engine's included. The processor is limited later ([Group.LimitCPU]), so that a
// start or a wake is not slowed down.
func (g Groups) Make(id string, memory int64) (*Group, error) {
	made := g.Open(id)
	for _, dir := range made.dirs {
		if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(fmt.Errorf("make a cgroup: %w", err), made.Remove())
		}
	}
	pids := made.dirs[len(made.dirs)-1]
	err := write(pids, "pids.max", strconv.Itoa(pidsMax))
	if g.unified {
		err = errors.Join(err, write(made.memory, "memory.oom.group", "0"))
	}
	if err = errors.Join(err, made.limitMemory(memory), made.allowSwap(false)); err != nil {
		return nil, errors.Join(fmt.Errorf("limit a cgroup: %w", err), made.Remove())
	}
	return made, nil
}

// exists reports whether a machine has a group. It goes with the last process in it.
func (g Groups) exists(id string) bool {
	_, err := os.Lstat(g.Open(id).memory)
	return err == nil
}

// Sweep removes the groups of machines that are not there any more.
func (g Groups) Sweep(live func(id string) bool) error {
	var errs []error
	for _, parent := range g.dirs("") {
		entries, err := os.ReadDir(parent)
		errs = append(errs, err)
		for _, e := range entries {
			if e.IsDir() && !live(e.Name()) {
				errs = append(errs, g.Open(e.Name()).Remove())
			}
		}
	}
	return errors.Join(errs...)
}

// Group is the cgroup of one machine.
type Group struct {
	id          string   // of the machine
	dirs        []string // all of it
	memory, cpu string   // where those two controllers are
	unified     bool
	seen        atomic.Int64 // kills that watch reported
	seenAt      atomic.Int64 // when it did, in Unix nanoseconds
}

// Add moves a process in, with all its threads.
func (g *Group) Add(pid int) error {
	for _, dir := range g.dirs {
		if err := write(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move process %d into its cgroup: %w", pid, err)
		}
	}
	return nil
}

// LimitCPU bounds the group's share of the host's processors; 0 is no bound.
func (g *Group) LimitCPU(cpus float64) error {
	quota := strconv.Itoa(int(math.Ceil(cpus * CPUPeriod)))
	if cpus == 0 {
		quota = map[bool]string{true: "max", false: "-1"}[g.unified]
	}
	if g.unified {
		return write(g.cpu, "cpu.max", quota+" "+strconv.Itoa(CPUPeriod))
	}
	return write(g.cpu, "cpu.cfs_quota_us", quota)
}

// A standing is how a group shares busy processors with the others. Processors that are
// idle are for all of them.
type standing int

const (
	// level is an equal share.
	level standing = iota
	// below is a small share.
	below
	// last is nothing, as long as another group has work: the kernel takes a processor
	// from such a group at once (SCHED_IDLE).
	last
)

// Level gives the group an equal share of the processors again.
func (g *Group) Level() error { return g.stand(level) }

// stand gives the group a share of the processors. A kernel before 5.15 has no last.
func (g *Group) stand(at standing) error {
	const idle = "cpu.idle"
	if _, err := os.Lstat(filepath.Join(g.cpu, idle)); err == nil {
		if at == last {
			return write(g.cpu, idle, "1")
		}
		if err := write(g.cpu, idle, "0"); err != nil { // before its share: an idle group has none
			return err
		}
	}
	name, share := "cpu.shares", cpuShares
	if g.unified {
		name, share = "cpu.weight", cpuWeight
	}
	if at != level {
		share /= yieldShare
	}
	return write(g.cpu, name, strconv.Itoa(share))
}

// Behind lets all others have the processors first, until the returned function
// is called or somebody waits for the machine, which ctx tells. After lastMost it gets a
// small share: a host whose guests compute all day is to put the others to sleep.
func (g *Group) Behind(ctx context.Context) (ahead func()) {
	if err := g.stand(last); err != nil { // then others wait a little
		slog.WarnContext(ctx, "let others have the processors", "sandbox", g.id, "err", err)
		return func() {}
	}
	var mu sync.Mutex
	now := last // guarded by mu
	rise := func(to standing) {
		mu.Lock()
		defer mu.Unlock()
		if now == level {
			return
		}
		now = to
		if err := g.stand(to); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) { // else it has ended
			slog.ErrorContext(ctx, "let it have the processors as others do", "sandbox", g.id, "err", err)
		}
	}
	hungry := time.AfterFunc(lastMost, func() { rise(below) })
	stop := context.AfterFunc(ctx, func() { rise(level) })
	return func() {
		hungry.Stop()
		stop()
		rise(level) // or waits until it is done
	}
}

// limitMemory bounds what the group is charged for: memory, with what of it is
// in the host's swap. Otherwise a host with swap would not limit it at all. On
// cgroup v2 what is in swap comes on top, but it is only what reclaim moved.
func (g *Group) limitMemory(bytes int64) error {
	limit := strconv.FormatInt(bytes, 10)
	if g.unified {
		return write(g.memory, "memory.max", limit)
	}
	const alone, sum = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	err := write(g.memory, alone, limit)
	if errors.Is(err, unix.EINVAL) { // the sum must not be below it at any time
		return cmp.Or(g.writeIf(sum, limit), write(g.memory, alone, limit))
	}
	return cmp.Or(err, g.writeIf(sum, limit))
}

// writeIf writes to a file that not every host has: swap is accounted for only
// where the kernel was told to.
func (g *Group) writeIf(name, value string) error {
	if _, err := os.Lstat(filepath.Join(g.memory, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return write(g.memory, name, value)
}

// usage returns the bytes of memory that the group is charged for.
func (g *Group) usage() (int64, error) {
	name := "memory.usage_in_bytes"
	if g.unified {
		name = "memory.current"
	}
	raw, err := os.ReadFile(filepath.Join(g.memory, name))
	if err != nil {
		return 0, fmt.Errorf("read the memory in use: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// Resident returns the bytes of memory that the group takes, without files: the
// kernel drops a checkpoint that was written when somebody needs the memory.
func (g *Group) Resident() (int64, error) {
	used, err := g.usage()
	for _, files := range []string{"inactive_file", "active_file"} {
		used -= g.counter("memory.stat", files)
	}
	return max(0, used), err
}

// Elsewhere returns the bytes of a process's own memory that are charged to
// another group: those of its start, before it was moved here.
func (g *Group) Elsewhere(pid int) int64 {
	raw, err := os.ReadFile(Path(pid, "statm"))
	if err != nil {
		return 0 // it ended
	}
	var size, resident, shared int64 // pages
	if _, err := fmt.Sscan(string(raw), &size, &resident, &shared); err != nil {
		return 0
	}
	own := "rss"
	if g.unified {
		own = "anon"
	}
	return max(0, (resident-shared)*int64(os.Getpagesize())-g.counter("memory.stat", own))
}

// Swapped returns the bytes that the group has in the host's swap.
func (g *Group) Swapped() int64 {
	if g.unified {
		raw, _ := os.ReadFile(filepath.Join(g.memory, "memory.swap.current")) // without it there is none
		n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		return n
	}
	return g.counter("memory.stat", "swap")
}

// Reclaim moves the memory of the group to the host's swap, all that can be,
// until ctx ends, and returns what is left in RAM. What was moved comes back
// page by page when it is used.
func (g *Group) Reclaim(ctx context.Context) (left int64, err error) {
	if err := g.allowSwap(true); err != nil {
		return 0, fmt.Errorf("allow swap: %w", err)
	}
	defer func() { err = errors.Join(err, g.allowSwap(false)) }()
	left, err = g.usage()
	for idle := 0; err == nil && idle < reclaimIdle; idle++ {
		before := left
		if err = g.push(ctx, before); err != nil {
			return 0, fmt.Errorf("move memory to swap: %w", err)
		}
		if left, err = g.usage(); left < reclaimRest {
			break
		}
		if before-left >= reclaimLeast {
			idle = 0
			continue
		}
		select {
		case <-ctx.Done():
			return left, context.Cause(ctx)
		case <-time.After(reclaimPause):
		}
	}
	return left, err
}

// push asks the kernel once to move all that is in use. It may give up early.
func (g *Group) push(ctx context.Context, used int64) error {
	name, value, early := "memory.force_empty", "0", unix.EBUSY
	if g.unified {
		name, value, early = "memory.reclaim", strconv.FormatInt(used, 10)+" swappiness=max", unix.EAGAIN
	}
	// The kernel decides by the memory in use, which it counts every two seconds unless
	// somebody asks. Right after a checkpoint has read all memory, it would find none
	// that it may move.
	if _, err := os.ReadFile(filepath.Join(g.memory, "memory.stat")); err != nil {
		return err
	}
	err := writeUntil(ctx, filepath.Join(g.memory, name), value)
	if g.unified && errors.Is(err, unix.EINVAL) { // Linux before 6.15 does not know the second word
		err = writeUntil(ctx, filepath.Join(g.memory, name), strconv.FormatInt(used, 10))
	}
	if errors.Is(err, early) {
		return nil
	}
	return err
}

// allowSwap sets whether the kernel may move memory of the group to swap by
// itself. It is allowed while we ask for it only: what a machine that runs has
// there makes it slow.
func (g *Group) allowSwap(yes bool) error {
	if g.unified { // what is there is not limited together with the memory
		return g.writeIf("memory.swap.max", map[bool]string{true: "max", false: "0"}[yes])
	}
	return g.writeIf("memory.swappiness", map[bool]string{true: "100", false: "0"}[yes])
}

// writeUntil writes to a file of the kernel that works at what is written for
// long, and stops it when ctx ends.
func writeUntil(ctx context.Context, name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	written := make(chan struct{})
	var interrupter sync.WaitGroup
	defer interrupter.Wait()
	defer close(written)
	thread := unix.Gettid()
	interrupter.Go(func() { interruptWhen(ctx, thread, written) })
	for ctx.Err() == nil {
		if _, err = unix.Write(int(f.Fd()), []byte(value)); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return context.Cause(ctx)
}

// interruptWhen interrupts what a thread of ours asked of the kernel when ctx
// ends, until done is closed: the thread may not have asked yet. The signal is
// one that Go's runtime sends to itself and so expects at any time.
func interruptWhen(ctx context.Context, thread int, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	for {
		_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
		select {
		case <-done:
			return
		case <-time.After(interruptEvery):
		}
	}
}

// kills returns how many processes the kernel killed for lack of memory.
func (g *Group) kills() int64 {
	name := "memory.oom_control"
	if g.unified {
		name = "memory.events"
	}
	return g.counter(name, "oom_kill")
}

// counter returns one number of a file of names and numbers, or 0.
func (g *Group) counter(file, name string) int64 {
	raw, err := os.ReadFile(filepath.Join(g.memory, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if count, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
			return n
		}
	}
	return 0
}

// ShortOfMemory reports whether the kernel killed processes of the group just
// now. An earlier kill is not the reason of an end.
func (g *Group) ShortOfMemory() bool {
	return g.kills() > g.seen.Load() || time.Since(time.Unix(0, g.seenAt.Load())) < oomPatience
}

// Watch calls report whenever the kernel killed processes of the group for its
// limit, with their number since the last time, until end is closed.
func (g *Group) Watch(end <-chan struct{}, limit int64, report func(kills int64)) {
	events, err := g.oomEvents()
	if err != nil {
		return // the host does not tell; the end of a machine is still noticed
	}
	rung := make(chan struct{}, 1)
	go func() {
		defer close(rung)
		buffer := make([]byte, 4096)
		for {
			if _, err := events.Read(buffer); err != nil {
				return
			}
			_ = g.limitMemory(limit + relief) // at once; the kernel is choosing its victim
			select {
			case rung <- struct{}{}:
			default: // one is waiting to be seen
			}
		}
	}()
	defer func() {
		_ = events.Close()
		for range rung { // waits until the reader is gone
		}
	}()
	g.seen.Store(g.kills())
	since, told, relieved := time.Now(), true, true // an earlier launcher may have died at it
	for {
		var again <-chan time.Time
		if relieved || !told {
			again = time.After(oomSettle)
		}
		select {
		case <-end:
			return
		case _, ok := <-rung:
			if !ok {
				return
			}
			since, told, relieved = time.Now(), false, true
		case <-again:
		}
		if now := g.kills(); now > g.seen.Load() {
			g.seenAt.Store(time.Now().UnixNano())
			report(now - g.seen.Swap(now))
			told = true
		}
		told = told || time.Since(since) > oomPatience
		relieved = relieved && !g.unrelieve(limit, time.Since(since))
	}
}

// unrelieve sets the old limit again, when memory came back or there is none to
// come, and reports whether it did. The kernel refuses on cgroup v1 as long as
// more is in use; on v2 it would kill for it, so that we look first.
func (g *Group) unrelieve(limit int64, after time.Duration) bool {
	used, err := g.usage()
	back := used < limit-relief || used < limit && after > reliefTime
	return err != nil || back && g.limitMemory(limit) == nil
}

// oomEvents returns a file that can be read whenever memory ran out: an eventfd on
// cgroup v1, an inotify watch on v2.
func (g *Group) oomEvents() (*os.File, error) {
	if g.unified {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, fmt.Errorf("inotify: %w", err)
		}
		file := os.NewFile(uintptr(fd), "inotify")
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(g.memory, "memory.events"), unix.IN_MODIFY); err != nil {
			return nil, errors.Join(fmt.Errorf("watch memory events: %w", err), file.Close())
		}
		return file, nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	file := os.NewFile(uintptr(fd), "eventfd")
	control, err := os.Open(filepath.Join(g.memory, "memory.oom_control"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch memory: %w", err), file.Close())
	}
	defer func() { _ = control.Close() }()
	if err := write(g.memory, "cgroup.event_control", fmt.Sprintf("%d %d", fd, control.Fd())); err != nil {
		return nil, errors.Join(fmt.Errorf("watch memory: %w", err), file.Close())
	}
	return file, nil
}

// Remove deletes the group. The kernel refuses as long as a process is ending
// in it.
func (g *Group) Remove() error {
	var errs []error
	for _, dir := range g.dirs {
		err := unix.Rmdir(dir)
		for patience := oomPatience; errors.Is(err, unix.EBUSY) && patience > 0; patience -= oomSettle {
			time.Sleep(oomSettle)
			err = unix.Rmdir(dir)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

func write(dir, name, value string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(value), 0)
}
