package gvisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/trace"
)

const (
	// readyLimit bounds the creation of a process ahead of its need.
	readyLimit = LimitStart
	// readyCalm is for how long nobody must have waited for a machine before a
	// process is created ahead.
	readyCalm = time.Second
	// readyPatience is after how long one is created all the same.
	readyPatience = 10 * time.Second
	// readyLook is the pause between looks at what goes on.
	readyLook = 250 * time.Millisecond
	// readyRoom is how much of a processor has to be idle for the new process, and
	// for each wake that is under way. Some of each is always in use.
	readyRoom = 0.75
	// readySleep is how long the first sleep of a sandbox on disk is taken to be.
	readySleep = 5 * time.Minute
)

// ready is the set of sandboxes on disk whose next process exists already. Such
// a process knows the root file system and the network of its sandbox and waits
// for the memory; it saves the wake about 30 ms and costs about 11 MB. To create
// it costs as much as the wake saves, and so one is created at a time, and not
// while others wake.
type ready struct {
	most int           // that there are at a time
	calm time.Duration // as [readyCalm]
	rush *rush

	mu    sync.Mutex
	list  []*sandbox // guarded by mu; those that have a process, or are just getting it
	queue []*sandbox // guarded by mu; those that could do with one; who went to disk last comes last
	works bool       // guarded by mu; work runs
}

// want makes the sandbox, which went to disk just now, one that could do with a
// process.
func (r *ready) want(s *sandbox) {
	if r.most == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.lain = time.Now()
	r.queue = append(without(r.queue, s), s)
	r.queue = slices.Delete(r.queue, 0, max(0, len(r.queue)-r.most))
	r.begin()
}

// woke takes note that a sandbox has slept on disk: it tells how long it may sleep
// the next time.
func (r *ready) woke(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.lain.IsZero() {
		s.sleep = time.Since(s.lain)
	}
}

// remove takes a sandbox out. Its place is free for another one.
func (r *ready) remove(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list, r.queue = without(r.list, s), without(r.queue, s)
	r.begin()
}

// shrink takes a sandbox out because its memory is needed: nobody gets its place.
func (r *ready) shrink(s *sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list, r.queue = without(r.list, s), nil
}

// has reports whether a sandbox has a process, or is to get it.
func (r *ready) has(s *sandbox) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.list, s)
}

func without(all []*sandbox, s *sandbox) []*sandbox {
	return slices.DeleteFunc(all, func(o *sandbox) bool { return o == s })
}

// begin starts work if there is some. Preconditions: mu is held.
func (r *ready) begin() {
	if r.works {
		return
	}
	if _, _, ok := r.choose(time.Now()); ok {
		r.works = true
		go r.work() // ends when nobody is left to be given a process
	}
}

// choose returns the sandbox that gets a process next, and the one that gives up its
// process for that, or nil if there is room. The one that has slept longest gives up,
// if it has slept for longer than the next one did the last time. Until then it is more
// likely to wake first. Preconditions: mu is held.
func (r *ready) choose(now time.Time) (next, leaves *sandbox, ok bool) {
	if len(r.queue) == 0 {
		return nil, nil, false
	}
	next = r.queue[len(r.queue)-1]
	if len(r.list) < r.most {
		return next, nil, true
	}
	leaves = slices.MinFunc(r.list, func(a, b *sandbox) int { return a.lain.Compare(b.lain) })
	return next, leaves, now.Sub(leaves.lain) > cmp.Or(next.sleep, readySleep)
}

// take moves the next sandbox of the queue to the list. The sandbox that leaves for it
// is off the list already.
func (r *ready) take() (next, leaves *sandbox, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if next, leaves, ok = r.choose(time.Now()); !ok {
		r.works = false
		return nil, nil, false
	}
	r.list, r.queue = append(without(r.list, leaves), next), without(r.queue, next)
	next.tasks.Add(1) // who removes it from here waits for its tasks then
	return next, leaves, true
}

// work creates processes, one at a time, when there is room for it.
func (r *ready) work() {
	ctx := context.Background() //nolint:forbidigo // outlives the move to disk
	for {
		r.rush.settle(r.calm)
		next, leaves, ok := r.take()
		if !ok {
			return
		}
		if leaves != nil {
			if err := leaves.unprepare(ctx); err != nil {
				slog.Warn("give back a process", "sandbox", leaves.config.ID, "err", err)
			}
		}
		if !next.prepare(ctx) {
			r.remove(next)
		}
		next.tasks.Done()
	}
}

// rush counts the calls that wait for a machine.
type rush struct {
	idled   func() time.Duration // of the processors, all together, since some time
	waiting atomic.Int64         // calls
	last    atomic.Int64         // when one ended, in Unix nanoseconds
}

// enter says that somebody waits for a machine, until leave is called.
func (r *rush) enter() (leave func()) {
	r.waiting.Add(1)
	return func() {
		r.last.Store(time.Now().UnixNano())
		r.waiting.Add(-1)
	}
}

// settle returns when nobody has waited for a machine for a while, when the
// processors have room, or when neither will be soon.
func (r *rush) settle(calm time.Duration) {
	began := time.Now()
	for at, was := began, r.idled(); ; {
		time.Sleep(min(readyLook, calm))
		now, idle := time.Now(), r.idled()
		waiting := int(r.waiting.Load())
		if waiting == 0 && now.Sub(time.Unix(0, r.last.Load())) >= calm {
			return
		}
		if roomy((idle-was).Seconds()/now.Sub(at).Seconds(), waiting) || now.Sub(began) > readyPatience {
			return
		}
		at, was = now, idle
	}
}

// roomy reports whether one more process can start without taking the processors
// from those that somebody waits for.
func roomy(idle float64, waiting int) bool { return idle >= readyRoom*float64(waiting+1) }

// idled returns for how long the host's processors had nothing to do since its
// start, all together.
func idled() time.Duration {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	return idleTime(raw)
}

// userTick is the unit of times in /proc (USER_HZ), on every processor that Go
// knows.
const userTick = time.Second / 100

// idleTime reads /proc/stat: its first line is cpu, and then the times of user,
// nice, system, idle, iowait.
func idleTime(stat []byte) (total time.Duration) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 6 || string(fields[0]) != "cpu" {
		return 0
	}
	for _, field := range fields[4:6] {
		n, err := strconv.ParseInt(string(field), 10, 54)
		if err != nil {
			return 0
		}
		total += time.Duration(n) * userTick
	}
	return total
}

// prepare creates the process of s ahead of the next wake, and reports whether it
// did. Without it the wake is slower and otherwise the same.
func (s *sandbox) prepare(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	return s.created(ctx)
}

func (s *sandbox) created(ctx context.Context) bool {
	s.process.Lock()
	defer s.process.Unlock()
	if s.closed || s.prepared.Load() || s.Tier() != machine.OnDisk || !s.d.ready.has(s) {
		return false // a wake or an end was faster, or the memory is needed
	}
	failpoint.Pass(failpoint.Ahead, s.config.ID)
	if err := s.call(ctx, PathPrepare, Boot{Config: s.config}, nil); err != nil {
		slog.Warn("prepare a process", "sandbox", s.config.ID, "err", err)
		return false
	}
	s.prepared.Store(true)
	return true
}

// unprepare gives the waiting process back, if there is one. Preconditions: it is
// not in d.ready.
func (s *sandbox) unprepare(ctx context.Context) error {
	s.process.Lock()
	defer s.process.Unlock()
	if !s.prepared.Swap(false) {
		return nil // it was taken by a wake
	}
	return s.kill(ctx)
}

// take makes sure that the process exists, and reports how long that took.
// Preconditions: process is held.
func (s *sandbox) take(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	if err := failpoint.Reach(failpoint.Take, s.config.ID); err != nil {
		return 0, err
	}
	s.d.ready.woke(s)
	s.d.ready.remove(s)
	if s.prepared.Swap(false) {
		return time.Since(start), nil
	}
	err := s.timed(ctx, trace.Prepare, PathPrepare, Boot{Config: s.config})
	if errors.Is(err, errTaken) {
		err = s.takeOver(ctx)
	}
	return time.Since(start), err
}

// takeOver makes the process anew when there is one already: of a driver that
// ended while it asked for it, and which may be of another kind. One that ever
// ran is not touched. Preconditions: process is held.
func (s *sandbox) takeOver(ctx context.Context) error {
	state, err := s.engine.Load().find(ctx, s.config.ID)
	if err != nil {
		return err
	}
	if state != StateCreated {
		return fmt.Errorf("it is %s: %w", state, errTaken)
	}
	if err := s.kill(ctx); err != nil {
		return err
	}
	return s.timed(ctx, trace.Prepare, PathPrepare, Boot{Config: s.config})
}
