package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/trace"
)

// sandbox is one machine of this driver.
type sandbox struct {
	d      *Driver
	config machine.Config
	engine atomic.Pointer[engine] // that it is in, or was made with
	tier   atomic.Uint32
	tasks  sync.WaitGroup            // what a wake leaves to be done after it
	bytes  atomic.Int64              // size of the checkpoints
	back   atomic.Pointer[time.Time] // what WentBack returns; nil is zero
	ahead  *Base                     // what Precopy copied, for the next checkpoint; nil without

	process  sync.Mutex  // held while a process is created for a wake, or given back
	prepared atomic.Bool // it exists ahead of the wake; written while process is held
	closed   bool        // guarded by process

	lain  time.Time     // guarded by d.ready.mu; when it went to disk
	sleep time.Duration // guarded by d.ready.mu; how long it slept there the last time

	starting bool // guarded by d.mu; the end of its processes is no event yet
	died     bool // guarded by d.mu; they ended meanwhile
}

func (d *Driver) sandbox(c machine.Config, t machine.Tier) *sandbox {
	s := &sandbox{d: d, config: c}
	s.engine.Store(d.current)
	s.tier.Store(uint32(t))
	if n, ok := checkpoint.Has(c); ok {
		s.bytes.Store(n)
	}
	return s
}

// call asks the launcher of its engine.
func (s *sandbox) call(ctx context.Context, path string, in, out any) error {
	return s.engine.Load().call(ctx, path, in, out)
}

// timed is call for what somebody waits for: its time is that of a stage, within
// which the launcher tells its own.
func (s *sandbox) timed(ctx context.Context, stage trace.Stage, path string, in any) error {
	running := trace.Start(ctx, stage)
	if !running.On() {
		return s.call(ctx, path, in, nil)
	}
	var t Timed
	err := s.call(ctx, path, in, &t)
	running.End(t)
	return err
}

// Tier implements [machine.Machine].
func (s *sandbox) Tier() machine.Tier { return machine.Tier(s.tier.Load()) } //nolint:gosec // G115: we store tiers only

func (s *sandbox) reach(t machine.Tier) { s.tier.Store(uint32(t)) }

// WentBack implements [machine.Machine].
func (s *sandbox) WentBack() (made time.Time) {
	if t := s.back.Load(); t != nil {
		made = *t
	}
	return made
}

// fallBack makes the machine, which has no processes, sleep in what is left of it. That is
// the checkpoint that its memory was still coming from, or the last one. It returns
// [machine.ErrGone] if there is neither.
func (s *sandbox) fallBack(state string) error {
	if _, saved := checkpoint.Has(s.config); !saved {
		return s.goBack()
	}
	if err := s.lieBack(state); err != nil {
		return err
	}
	s.reach(machine.OnDisk)
	return nil
}

// restart wakes the machine, whose processes have ended, from what is left of it.
func (s *sandbox) restart(ctx context.Context) error {
	if err := s.settled(ctx); err != nil { // a checkpoint may be about to count no more
		return err
	}
	if err := s.kill(ctx); err != nil {
		return err
	}
	if err := s.fallBack(StatePaused); err != nil {
		return err
	}
	return s.restore(ctx)
}

// goBack makes the machine, which has no processes, sleep in its last checkpoint.
func (s *sandbox) goBack() error {
	made, err := checkpoint.GoBack(s.config)
	if err != nil {
		return err
	}
	s.back.Store(&made)
	bytes, _ := checkpoint.Has(s.config)
	s.bytes.Store(bytes)
	s.reach(machine.OnDisk)
	return nil
}

// lieBack records that a machine without processes went back to its checkpoint, because
// it ran after that. A process that was only created never ran. A checkpoint that is a
// copy of another machine is discarded: it is none of a machine that ran, and may not
// be complete on disk.
func (s *sandbox) lieBack(state string) error {
	if !checkpoint.Ran(s.config) {
		return nil
	}
	if checkpoint.IsOther(s.config) {
		if err := errors.Join(checkpoint.Discount(s.config), checkpoint.Sweep(s.config)); err != nil {
			return err
		}
		return s.goBack()
	}
	if state == StateCreated || !s.config.GoBack {
		return checkpoint.UnmarkRan(s.config)
	}
	made, err := checkpoint.MadeAt(checkpoint.Dir(s.config))
	if err == nil {
		s.back.Store(&made)
	}
	return errors.Join(err, checkpoint.UnmarkRan(s.config))
}

// outlast has what was just renamed or made in the machine's directory outlast a
// loss of power. Nobody waits for it.
func (s *sandbox) outlast() {
	s.tasks.Go(func() {
		if err := durable.Sync(s.config.Dir); err != nil {
			slog.Warn("a loss of power would not be noticed", "sandbox", s.config.ID, "err", err)
		}
		failpoint.Pass(failpoint.Lasts, s.config.ID)
	})
}

// Ready implements [machine.Machine].
func (s *sandbox) Ready() bool { return s.prepared.Load() }

// Suspend implements [machine.Machine]. The tiers are walked down one by one.
func (s *sandbox) Suspend(ctx context.Context, to machine.Tier) error {
	if s.Tier() == machine.OnDisk {
		s.d.ready.shrink(s)
		return s.unprepare(ctx)
	}
	for s.Tier() < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.down(ctx, s.Tier().Next(to)); err != nil {
			return err
		}
	}
	return nil
}

func (s *sandbox) down(ctx context.Context, to machine.Tier) (err error) {
	switch to {
	case machine.Paused:
		err = s.call(context.WithoutCancel(ctx), PathPause, Target{ID: s.config.ID}, nil)
	case machine.Saved:
		err = s.save(ctx)
	case machine.Swapped:
		err = s.reclaim(ctx)
	case machine.OnDisk:
		// The checkpoint is complete: from here on the memory may go.
		if err = failpoint.Reach(failpoint.Release, s.config.ID); err != nil {
			break
		}
		err = s.kill(ctx)
		if err != nil {
			s.d.know(s)
		}
	case machine.Awake:
	}
	if err != nil {
		return fmt.Errorf("to %s: %w", to, err)
	}
	s.reach(to)
	if to == machine.OnDisk {
		s.d.ready.want(s)
	}
	return nil
}

// save makes the checkpoint of the paused machine. Whatever goes wrong, the machine
// is paused as before, and no checkpoint is there.
func (s *sandbox) save(ctx context.Context) error {
	if err := s.settled(ctx); err != nil { // a wake may still be loading memory, out of the old checkpoint
		return err
	}
	if err := s.present(ctx); err != nil {
		return err // and the old checkpoint is all that is left
	}
	s.ahead = nil // it goes with the rest
	// That checkpoint is older than what ran since, whether or not it was retired.
	if err := errors.Join(checkpoint.Retire(s.config), checkpoint.Sweep(s.config)); err != nil {
		return fmt.Errorf("remove old checkpoints: %w", err)
	}
	err := s.write(ctx, checkpoint.Dir(s.config), stands)
	if err != nil && full(err) && ctx.Err() == nil && s.makesRoom(ctx) {
		slog.WarnContext(ctx, "the last checkpoint makes room for the next", "sandbox", s.config.ID)
		if err := errors.Join(checkpoint.Outdate(s.config), checkpoint.Sweep(s.config)); err != nil {
			return fmt.Errorf("remove the last checkpoint: %w", err)
		}
		// Until this one is complete, there is none. So not even a request ends it.
		err = s.write(context.WithoutCancel(ctx), checkpoint.Dir(s.config), stands)
	}
	if err != nil {
		return err
	}
	bytes, _ := checkpoint.Has(s.config)
	s.bytes.Store(bytes)
	if err := checkpoint.Outdate(s.config); err != nil {
		slog.WarnContext(ctx, "the last checkpoint stays beside the next", "sandbox", s.config.ID, "err", err)
	}
	s.tasks.Go(s.discardStale)
	return nil
}

// makesRoom reports whether the last checkpoint is there, and the next one would fit in
// its place for sure. If not, it stays: it is all that a crash would leave.
func (s *sandbox) makesRoom(ctx context.Context) bool {
	bytes, ok := checkpoint.Freed(checkpoint.Last(s.config))
	if !ok {
		return false
	}
	var disk unix.Statfs_t
	stats, err := s.Stats(ctx)
	if err = errors.Join(err, unix.Statfs(s.config.Dir, &disk)); err != nil {
		slog.WarnContext(ctx, "the room for a checkpoint is unknown", "sandbox", s.config.ID, "err", err)
		return false
	}
	return int64(disk.Bavail)*disk.Bsize+bytes >= stats.MemoryBytes+stats.SwapBytes //nolint:gosec // G115: no disk is larger
}

// full reports whether an error is that of a disk without room: the engine and
// the launcher have words for it only.
func full(err error) bool {
	return errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error())
}

// settled waits until what a wake or a checkpoint left to be done is done.
func (s *sandbox) settled(ctx context.Context) error {
	done := make(chan struct{})
	go func() { s.tasks.Wait(); close(done) }() // ends with them
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// present fails if the machine has no processes, or not all of its memory.
func (s *sandbox) present(ctx context.Context) error {
	err := s.call(ctx, PathLoaded, Target{ID: s.config.ID}, nil)
	if errors.Is(err, errGone) {
		return errors.New("its processes have ended")
	}
	return err
}

// stands is how a checkpoint of a machine is taken that stands still already.
func stands(ctx context.Context, take func(context.Context) error) error { return take(ctx) }

// write makes a checkpoint of the machine in dir. Its still takes the checkpoint while
// the machine stands still. If write cannot, nothing is
// there. When ctx ends it returns at once, and what is left to be removed is
// removed in tasks: somebody waits for the machine.
func (s *sandbox) write(ctx context.Context, dir string, still func(ctx context.Context, take func(context.Context) error) error) (err error) {
	runs := s.Tier() == machine.Awake
	for try := 1; ; try++ {
		err = s.writeOnce(ctx, dir, runs, still)
		lost := errors.Is(err, errLost)
		if !lost && !errors.Is(err, errLate) || ctx.Err() != nil || try == lateTries {
			return err
		}
		slog.WarnContext(ctx, "a checkpoint is taken again", "sandbox", s.config.ID, "err", err)
		runs = runs && (!lost || try+1 < lateTries)
	}
}

// lateTries is how often a checkpoint is taken that a signal for an earlier one ended, or that
// the guest was too fast for. For the last time the machine stands still.
const lateTries = 3

// writeOnce is write, once. Where the machine runs before and after, runs says that its
// memory is copied after it went on.
func (s *sandbox) writeOnce(ctx context.Context, dir string, runs bool, still func(ctx context.Context, take func(context.Context) error) error) (err error) {
	if err := failpoint.Reach(failpoint.Make, s.config.ID); err != nil {
		return err
	}
	if err := checkpoint.Begin(dir); err != nil {
		return err
	}
	defer func() {
		switch {
		case err != nil && ctx.Err() != nil:
			s.tasks.Go(func() { s.abandon(dir) })
		case err != nil:
			err = errors.Join(err, checkpoint.Cancel(dir))
		}
	}()
	if dir == checkpoint.Dir(s.config) {
		if err := checkpoint.Continue(s.config); err != nil {
			return err
		}
	}
	if err := failpoint.Reach(failpoint.Checkpoint, s.config.ID); err != nil {
		return err
	}
	// When ctx ends, the engine's own part is stopped, and so is what the launcher copies.
	var made Made
	what := Checkpoint{
		ID: s.config.ID, Dir: checkpoint.Making(dir), Layers: true, Base: s.base(), Counted: s.ahead != nil,
		Yields: dir == checkpoint.Dir(s.config), // a machine that is kept goes on when it is done
		Runs:   runs,
	}
	if err := still(ctx, func(ctx context.Context) error {
		return s.engine.Load().halting(ctx, PathCheckpoint, what, &made)
	}); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if made.Runs {
		if err := s.engine.Load().halting(ctx, PathFinish, Target{ID: s.config.ID}, &made); err != nil {
			return fmt.Errorf("checkpoint: copy memory: %w", err)
		}
	}
	err = layout.Commit(ctx, &s.tasks, s.config, s.engine.Load().version, dir, made.Files...)
	if ctx.Err() != nil && err != nil && s.present(context.WithoutCancel(ctx)) != nil {
		err = layout.Commit(context.WithoutCancel(ctx), &s.tasks, s.config, s.engine.Load().version, dir, made.Files...) // it is all that is left
	}
	if err != nil {
		return err
	}
	if s.ahead != nil { // the checkpoint has all that counts of it
		s.dropAhead()
		if err := checkpoint.Trim(dir, made.Files); err != nil {
			slog.WarnContext(ctx, "a checkpoint takes more room than it needs", "sandbox", s.config.ID, "err", err)
		}
	}
	s.trust(ctx, dir)
	return nil
}

// base returns what the next checkpoint shares where it is the same. That is what was
// copied while the machine ran, or the checkpoint that the machine woke from, if
// somebody vouches for it.
func (s *sandbox) base() *Base {
	if s.ahead != nil {
		return s.ahead
	}
	last := checkpoint.Last(s.config)
	if !s.d.vouchers.Vouched(last) {
		return nil
	}
	m, err := s.d.manifest(last, s.config)
	if err != nil {
		return nil
	}
	index, ok := m.Index()
	if !ok {
		return nil
	}
	return &Base{Dir: last, Index: index}
}

// abandon keeps what a checkpoint that was stopped has copied, for the next one
// of the same machine, and removes the rest.
func (s *sandbox) abandon(dir string) {
	if dir == checkpoint.Dir(s.config) {
		bytes, left, err := checkpoint.Stop(s.config)
		if err != nil {
			slog.Warn("keep what a checkpoint copied", "sandbox", s.config.ID, "err", err)
		}
		if left {
			s.bytes.Store(bytes)
		}
	}
	if err := checkpoint.Cancel(dir); err != nil {
		slog.Warn("remove a checkpoint that was stopped", "sandbox", s.config.ID, "err", err)
	}
}

// trust vouches for a checkpoint that is known to be sound.
func (s *sandbox) trust(ctx context.Context, dir string) {
	if err := cmp.Or(failpoint.Reach(failpoint.Vouch, s.config.ID), s.d.vouchers.Vouch(dir)); err != nil {
		slog.WarnContext(ctx, "the next wake will read the whole checkpoint", "sandbox", s.config.ID, "err", err)
	}
}

// Snapshot implements [machine.Machine].
func (s *sandbox) Snapshot(ctx context.Context, dir string, freeze machine.Freeze) (err error) {
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("snapshot: %w", cmp.Or(err, fs.ErrExist))
	}
	if err := os.RemoveAll(dir + unmade); err != nil { // of an attempt that was cut short
		return fmt.Errorf("snapshot: %w", err)
	}
	switch s.Tier() {
	case machine.Awake, machine.Paused:
		s.tasks.Wait()
		err = s.write(ctx, dir, func(ctx context.Context, take func(context.Context) error) error { return s.still(ctx, freeze, take) })
		s.dropAhead()
	default:
		err = s.copyCheckpoint(ctx, dir)
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// still calls do while the machine, which is awake or paused, stands still.
func (s *sandbox) still(ctx context.Context, freeze machine.Freeze, do func(context.Context) error) (err error) {
	if s.Tier() == machine.Awake {
		thaw, err := freeze.Begin()
		if err != nil {
			return err
		}
		defer thaw()
		if err := s.down(ctx, machine.Paused); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Resume(context.WithoutCancel(ctx))) }()
	}
	return do(ctx)
}

// copyCheckpoint gives the checkpoint of the sleeping machine a second name.
func (s *sandbox) copyCheckpoint(ctx context.Context, dir string) error {
	own := checkpoint.Dir(s.config)
	m, err := s.d.manifest(own, s.config)
	if err != nil {
		return err
	}
	if err := checkpoint.Copy(s.config, m, dir); err != nil {
		return err
	}
	if s.d.vouchers.Vouched(own) {
		s.trust(ctx, dir)
	}
	return nil
}

// Rename implements [machine.Machine].
func (s *sandbox) Rename(ctx context.Context, hostname string) error {
	if t := s.Tier(); t != machine.Awake {
		return fmt.Errorf("rename: the machine is %s and must be awake", t)
	}
	if err := s.call(context.WithoutCancel(ctx), PathRename, Rename{s.config.ID, hostname}, nil); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	s.config.Hostname = hostname
	return nil
}

// Administer implements [machine.Machine].
func (s *sandbox) Administer(ctx context.Context, args ...string) error {
	if t := s.Tier(); t != machine.Awake {
		return fmt.Errorf("administer: the machine is %s and must be awake", t)
	}
	if err := s.call(context.WithoutCancel(ctx), PathAdminister, Administer{s.config.ID, args}, nil); err != nil {
		return fmt.Errorf("administer: %w", err)
	}
	return nil
}

// Archive implements [machine.Machine].
func (s *sandbox) Archive(ctx context.Context, file string) error {
	if t := s.Tier(); t != machine.Awake && t != machine.Paused {
		return fmt.Errorf("archive: the machine is %s and must be awake", t)
	}
	// The engine reads files in pieces, and fails for one that grows meanwhile.
	s.tasks.Wait()
	err := s.still(ctx, nil, func(ctx context.Context) error {
		return s.call(context.WithoutCancel(ctx), PathArchive, Archive{s.config.ID, file}, nil)
	})
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// swapRest is what may stay in RAM of a machine whose memory is in swap: what
// the kernel keeps about its processes. The largest have thousands.
const swapRest = 32 << 20

// reclaim moves the machine's memory to the host's swap. A machine that is
// needed meanwhile need not wait for it: the launcher stops when ctx ends.
func (s *sandbox) reclaim(ctx context.Context) error {
	var r Reclaimed
	if err := s.call(ctx, PathReclaim, Target{ID: s.config.ID}, &r); err != nil {
		return err
	}
	if r.Left > swapRest && r.Left > r.Moved || r.Moved == 0 {
		return fmt.Errorf("%d MB stay in memory: the host's swap is full, or it has none", r.Left>>20)
	}
	return nil
}

// Resume implements [machine.Machine].
func (s *sandbox) Resume(ctx context.Context) error {
	switch s.Tier() {
	case machine.Awake:
		return nil
	case machine.Paused:
		err := s.timed(ctx, trace.Launch, PathResume, Target{ID: s.config.ID})
		if errors.Is(err, errGone) { // its end was not heard of yet
			err = s.restart(ctx)
		}
		if err != nil {
			return fmt.Errorf("resume: %w", err)
		}
	case machine.Saved, machine.Swapped:
		if err := s.resumeSaved(ctx); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
	case machine.OnDisk:
		if err := s.restore(ctx); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	s.reach(machine.Awake)
	return nil
}

// discardAfter is when the checkpoint of a machine that woke is removed: to give its
// blocks back keeps the disk busy, and a machine in swap reads from it.
const discardAfter = 250 * time.Millisecond

// resumeSaved lets the machine go on and makes its checkpoint count no more, at the
// same time: neither waits for the other, and both are done when it returns. If the
// machine is gone, its checkpoint is what is left of it. If the machine is sure to
// stand still, the checkpoint is the same, and the machine is given up for it.
func (s *sandbox) resumeSaved(ctx context.Context) error {
	s.d.begin(s)
	var both errgroup.Group
	both.Go(func() error {
		defer trace.Start(ctx, trace.Retire).End()
		err := checkpoint.Retire(s.config)
		if err == nil {
			s.outlast() // else the checkpoint would count again
		}
		return err
	})
	both.Go(func() error {
		return s.timed(ctx, trace.Launch, PathResume, Target{ID: s.config.ID, Checkpointed: true})
	})
	err := both.Wait()
	died := s.d.settle(s)
	if err == nil && died == nil {
		s.tasks.Go(func() {
			time.Sleep(discardAfter)
			s.discard()
		})
		return nil
	}
	if back := checkpoint.TakeBack(s.config); back != nil {
		return errors.Join(err, died, back)
	}
	if died != nil {
		s.reach(machine.OnDisk)
	}
	if !errors.Is(err, errGone) && !errors.Is(err, errStill) {
		return errors.Join(err, died)
	}
	slog.WarnContext(ctx, "a machine does not go on, and wakes from its checkpoint", "sandbox", s.config.ID, "err", err)
	if err := s.kill(ctx); err != nil {
		return err
	}
	s.reach(machine.OnDisk)
	return s.restore(ctx)
}

// restore runs the checkpoint. Unless somebody vouches for it, it is read and
// compared with its manifest while the engine's process is created; the first
// instruction waits for both.
func (s *sandbox) restore(ctx context.Context) error {
	dir := checkpoint.Dir(s.config)
	reading := trace.Start(ctx, trace.Manifest)
	m, err := s.d.manifest(dir, s.config)
	reading.End()
	if err != nil {
		return err
	}
	defer s.d.rush.enter()()
	s.engine.Store(s.d.engine(m.Engine))
	s.process.Lock()
	defer s.process.Unlock()
	start := time.Now()
	var verified, prepared time.Duration
	both, work := errgroup.WithContext(ctx)
	both.Go(func() error {
		defer func() { verified = time.Since(start) }()
		defer trace.Start(ctx, trace.Verify).End()
		if s.d.vouchers.Vouched(dir) {
			return nil
		}
		if err := cmp.Or(failpoint.Reach(failpoint.Verify, s.config.ID), checkpoint.Verify(work, dir, m)); err != nil {
			return err
		}
		s.trust(ctx, dir)
		return nil
	})
	both.Go(func() (err error) {
		// A created process that nobody fills is removed below.
		prepared, err = s.take(context.WithoutCancel(ctx))
		return err
	})
	if err := both.Wait(); err != nil {
		return errors.Join(err, s.kill(ctx))
	}
	if err := failpoint.Reach(failpoint.Restore, s.config.ID); err != nil {
		return errors.Join(err, s.kill(ctx))
	}
	s.d.begin(s)
	marked := make(chan struct{})
	go func() { // the machine does not wait for the disk, and its caller waits for both
		defer close(marked)
		if err := checkpoint.MarkRan(s.config); err != nil {
			slog.WarnContext(ctx, "a crash in the next second would not be noticed", "sandbox", s.config.ID, "err", err)
			return
		}
		s.outlast()
	}()
	err = s.timed(context.WithoutCancel(ctx), trace.Launch, PathRestore, Restore{Config: s.config, Dir: dir, Files: m.Files})
	<-marked
	if errors.Is(err, errGone) {
		err = errProcess
	}
	if err == nil {
		err = s.d.settle(s)
	}
	if err != nil {
		return errors.Join(err, s.d.vouchers.Doubt(dir), s.kill(ctx), checkpoint.UnmarkRan(s.config))
	}
	slog.DebugContext(ctx, "restored", "sandbox", s.config.ID, "verified", verified, "prepared", prepared, "took", time.Since(start))
	s.tasks.Go(s.finishRestore)
	return nil
}

// errProcess is what restore returns if the process that waited for the checkpoint
// ended just now. The checkpoint is there, and so nothing is gone.
var errProcess = errors.New("the process that waited for the checkpoint has ended")

func (s *sandbox) kill(ctx context.Context) error {
	s.d.forget(s)
	if err := s.call(context.WithoutCancel(ctx), PathKill, Target{ID: s.config.ID}, nil); err != nil {
		return err
	}
	return s.dropDisk()
}

// dropDisk removes the disk that the processes of the machine wrote to, which are gone.
func (s *sandbox) dropDisk() error {
	if s.config.Disk == 0 {
		return nil
	}
	return cmp.Or(failpoint.Reach(failpoint.Drop, s.config.ID), checkpoint.DropDisk(s.config))
}

// finishRestore waits until all memory is loaded; then the checkpoint counts no
// more. If loading fails the engine ends the machine, which is an event, and
// the checkpoint stays.
func (s *sandbox) finishRestore() {
	ctx, cancel := context.WithTimeout(context.Background(), LimitCheckpoint) //nolint:forbidigo // outlives the wake
	defer cancel()
	failpoint.Pass(failpoint.Loaded, s.config.ID)
	if err := s.call(ctx, PathLoaded, Target{ID: s.config.ID}, nil); err != nil {
		if s.d.knows(s) { // and nobody ended it meanwhile
			slog.Error("load memory", "sandbox", s.config.ID, "err", err)
		}
		return
	}
	if !s.d.knows(s) {
		return // it has ended, and the checkpoint is what is left of it
	}
	if err := checkpoint.Discount(s.config); err != nil {
		slog.Error("retire a checkpoint", "sandbox", s.config.ID, "err", err)
		return
	}
	s.discard()
}

func (s *sandbox) discard() {
	failpoint.Pass(failpoint.Discard, s.config.ID)
	if err := checkpoint.Sweep(s.config); err != nil {
		slog.Warn("remove a checkpoint", "sandbox", s.config.ID, "err", err)
	}
	last := checkpoint.Last(s.config)
	bytes, _ := checkpoint.Size(last)
	s.bytes.Store(bytes)
	if err := s.d.vouchers.Moved(checkpoint.Dir(s.config), last); err != nil {
		slog.Warn("the next checkpoint shares nothing with the last", "sandbox", s.config.ID, "err", err)
	}
}

// discardStale gives back the blocks of a checkpoint that counts no more.
func (s *sandbox) discardStale() {
	if err := checkpoint.RemoveStale(s.config); err != nil {
		slog.Warn("remove a checkpoint", "sandbox", s.config.ID, "err", err)
	}
}

// Dial implements [machine.Machine].
func (s *sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	return s.d.options.Dial(ctx, s.config.Link, port)
}

// Stats implements [machine.Machine].
func (s *sandbox) Stats(ctx context.Context) (machine.Stats, error) {
	stats := machine.Stats{DiskBytes: s.bytes.Load()}
	if s.config.Disk > 0 {
		stats.StorageBytes = checkpoint.DiskBytes(s.config)
	}
	if s.Tier() == machine.OnDisk && !s.Ready() {
		return stats, nil
	}
	var live machine.Stats
	err := s.call(ctx, PathStats, Target{ID: s.config.ID}, &live)
	if errors.Is(err, errGone) && s.Tier() == machine.OnDisk { // since we looked
		return stats, nil
	}
	if err != nil {
		return stats, fmt.Errorf("stats: %w", err)
	}
	live.DiskBytes, live.StorageBytes = stats.DiskBytes, stats.StorageBytes
	return live, nil
}

// Close implements [machine.Machine].
func (s *sandbox) Close(ctx context.Context) error {
	s.process.Lock()
	s.closed = true
	s.prepared.Store(false)
	s.d.ready.remove(s)
	err := s.kill(ctx)
	s.process.Unlock()
	if err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	s.tasks.Wait() // the kill ended what they wait for
	s.d.leave(s)
	s.reach(machine.OnDisk)
	return errors.Join(os.RemoveAll(s.config.Dir), s.d.vouchers.Doubt(checkpoint.Dir(s.config)), s.d.vouchers.Doubt(checkpoint.Last(s.config)))
}
