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
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// All machines of a platform share one ceiling: the memory limit of the parent
// of their cgroups. It keeps a reserve of the host for everybody else. The
// kernel would kill one there without regard to which of them took too much,
// so a watch ends the machine that is furthest above its share before.

const (
	// fillRate is how many bytes in a second machines take at most together, by
	// which the watch knows how soon it must look again.
	fillRate = 4 << 30
	// Between these two the watch looks: often enough that nobody fills the
	// margin unseen, and seldom on a host that has plenty.
	lookSoonest, lookLatest = 5 * time.Millisecond, 2 * time.Second

	// The watch ends a machine when less than this share of the ceiling is free,
	// within bounds: what a machine takes until its end has taken effect.
	marginShare          = 1.0 / 32
	marginMin, marginMax = 32 << 20, 256 << 20

	// With less than this share of the ceiling free, the watch tells the kernel
	// who is within its share.
	scoreShare = 1.0 / 4
	scoreEvery = 500 * time.Millisecond

	// returnTime is how long the memory of a machine that was ended may take to come
	// back before another one is ended.
	returnTime = 3 * time.Second

	// pidsShare of the host's process numbers is for all machines together. The
	// host needs the rest to start anything at all, and to end them.
	pidsShare = 7.0 / 8
)

// The kernel kills the process with the highest score first: its share of the
// memory in thousandths, plus these numbers. In a machine the processes of the
// guest come before the engine, so that its own limit costs it one process and
// not everything. While memory is short, those of a machine within its share
// come after those of the others. All come before the host's own. No number is
// below 0: to lower it takes a capability that a host in a container lacks.
var scores = [...]struct{ engine, guest int }{
	Ordinary: {0, 1000},
	Spared:   {0, 500},
	Ending:   {1000, 1000},
}

// Standing is how a machine is treated when memory runs out.
type Standing int

const (
	Ordinary Standing = iota
	Spared            // memory is short, and it is within its share
	Ending            // it goes
)

// endedForOthers is the reason of an end by the watch.
const endedForOthers = "the host ran out of memory for sandboxes, and this one was the furthest above its share: it was ended so that the others go on. " +
	"Restore one of its snapshots, or delete it and create it again, with less in its memory and its files"

// A Member is a machine below a ceiling.
type Member interface {
	// Running reports whether its guest runs, so that it may take more.
	Running() bool
	// Stand sets how the kernel treats its processes when memory runs out.
	Stand(to Standing)
	// Evict ends it, and tells its owner why.
	Evict(why string)
}

// Ceiling is the limit of all machines of a platform together.
type Ceiling struct {
	groups Groups
	find   func(id string) (Member, bool)

	mu     sync.Mutex
	memory int64         // guarded by mu; what the node wants; 0 is no limit
	change chan struct{} // has one when memory changed
}

// NewCeiling returns the ceiling of all machines that have a group in g, without a
// limit. The machines that find returns are those that this process may end;
// others may have some more in g.
func NewCeiling(g Groups, find func(id string) (Member, bool)) *Ceiling {
	return &Ceiling{groups: g, find: find, change: make(chan struct{}, 1)}
}

// Set bounds what all machines take together, in bytes, from now on.
func (c *Ceiling) Set(memory int64) error {
	if memory <= 0 {
		return fmt.Errorf("a limit of %d bytes is none", memory)
	}
	c.mu.Lock()
	c.memory = memory
	c.mu.Unlock()
	select {
	case c.change <- struct{}{}:
	default:
	}
	return cmp.Or(c.groups.limitPIDs(), c.groups.limitMemory(memory))
}

// wanted returns the limit that the node wants, or 0.
func (c *Ceiling) wanted() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory
}

// limitMemory sets the limit of all machines together. What is in use already
// stays: then the limit comes as close as it can, and the next call is closer.
func (g Groups) limitMemory(bytes int64) error {
	all := g.Open("")
	used, err := all.usage()
	if err != nil {
		return err
	}
	now := max(bytes, used+marginMin) // cgroup v2 would kill at once
	name := "memory.limit_in_bytes"
	if g.unified {
		name = "memory.max"
	}
	err = write(all.memory, name, strconv.FormatInt(now, 10))
	if errors.Is(err, unix.EBUSY) { // somebody took more since we looked
		return nil
	}
	if err != nil {
		return fmt.Errorf("limit all machines together: %w", err)
	}
	return nil
}

// limitPIDs sets how many tasks all machines may have together.
func (g Groups) limitPIDs() error {
	most := int64(0)
	for _, name := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if most == 0 || n < most {
			most = n
		}
	}
	dirs := g.dirs("")
	return write(dirs[len(dirs)-1], "pids.max", strconv.FormatInt(int64(float64(most)*pidsShare), 10))
}

// margin is how much of a ceiling must be free.
func margin(limit int64) int64 {
	return min(max(int64(float64(limit)*marginShare), marginMin), marginMax)
}

// Run keeps machines below the ceiling until ctx ends.
func (c *Ceiling) Run(ctx context.Context) {
	w := watchman{Ceiling: c}
	for pause := lookLatest; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.change:
		case <-time.After(pause):
		}
		if limit := c.wanted(); limit > 0 {
			pause = w.look(limit)
		}
	}
}

// watchman is what the watch knows from one look to the next.
type watchman struct {
	*Ceiling

	scored time.Time // when the standings were last looked at
	tight  bool      // they were looked at because memory is short
	ended  time.Time // when a machine was last ended
	victim string    // which
	blind  bool      // the numbers could not be read
}

// look does what is due, and returns how soon to look again.
func (w *watchman) look(limit int64) time.Duration {
	free, err := w.groups.free(limit)
	if err != nil {
		if !w.blind {
			slog.Error("the memory of all machines cannot be watched", "err", err)
		}
		w.blind = true
		return lookLatest
	}
	w.blind = false
	if free < 0 { // the limit was lowered while more was in use
		if err := w.groups.limitMemory(limit); err != nil {
			slog.Error("lower the limit of all machines", "err", err)
		}
	}
	w.score(limit, free)
	if free < margin(limit) && !w.settling() {
		w.end(w.groups.takers(), limit, free)
	}
	soon := time.Duration(float64(free) / fillRate * float64(time.Second))
	return min(max(soon, lookSoonest), lookLatest)
}

// score tells the kernel who is within its share, while memory is short.
func (w *watchman) score(limit, free int64) {
	tight := float64(free) < float64(limit)*scoreShare
	if !tight && !w.tight || time.Since(w.scored) < scoreEvery {
		return
	}
	w.scored, w.tight = time.Now(), tight
	for _, t := range shares(w.groups.takers(), limit, free) {
		m, ours := w.find(t.id)
		switch {
		case !ours:
		case tight && t.excess < 0:
			m.Stand(Spared)
		default:
			m.Stand(Ordinary)
		}
	}
}

// settling reports whether the memory of the last victim is about to come back.
func (w *watchman) settling() bool {
	return w.victim != "" && time.Since(w.ended) <= returnTime && w.groups.exists(w.victim)
}

// end ends the machine that is the furthest above its share.
func (w *watchman) end(all []taker, limit, free int64) {
	worst, ok := furthest(shares(all, limit, free), func(id string) bool {
		m, ours := w.find(id)
		return !ours || m.Running()
	})
	if !ok {
		return
	}
	victim, ours := w.find(worst.id)
	if !ours {
		return // whose it is ends it
	}
	slog.Error("Ending the machine that is the furthest above its share of the memory", "sandbox", worst.id,
		"used", worst.used, "limit", worst.limit, "excess", worst.excess, "free", free)
	w.victim, w.ended = worst.id, time.Now()
	victim.Stand(Ending) // the kernel may be choosing, too
	victim.Evict(endedForOthers)
}

// furthest returns the machine that is the furthest above its share. Those that
// run come first: they are the ones that grow.
func furthest(all []taker, runs func(id string) bool) (worst taker, found bool) {
	awake := false
	for _, t := range all {
		if t.excess <= 0 {
			continue
		}
		now := runs(t.id)
		if !found || now && !awake || now == awake && t.excess > worst.excess {
			worst, found, awake = t, true, now
		}
	}
	return worst, found
}

// Stand sets the scores of all processes of the group, of which one is the engine.
func (g *Group) Stand(engine int, to Standing) {
	for _, pid := range g.pids() {
		Score(pid, pid == engine, to)
	}
}

// Score sets the score of one process, which is the engine or the guest's.
func Score(pid int, engine bool, to Standing) {
	score := scores[to].guest
	if engine {
		score = scores[to].engine
	}
	err := os.WriteFile(Path(pid, "oom_score_adj"), []byte(strconv.Itoa(score)), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		slog.Warn("cannot choose who dies first when memory runs out", "pid", pid, "err", err)
	}
}

// taker is a machine that takes memory.
type taker struct {
	id          string
	used, limit int64
	excess      int64 // above its share, by shares
}

// shares computes who is above its share. The ceiling is divided as the limits
// are: where all limits fit below it, nobody is above.
func shares(all []taker, limit, free int64) []taker {
	var limits, used float64
	for _, t := range all {
		limits, used = limits+float64(t.limit), used+float64(t.used)
	}
	// What others took of the host is not there to be divided.
	whole := min(float64(limit), used+float64(max(0, free)))
	for i, t := range all {
		all[i].excess = min(0, t.used-t.limit)
		if whole < limits {
			all[i].excess = t.used - int64(float64(t.limit)*whole/limits)
		}
	}
	return all
}

// free returns how much machines may still take: below the ceiling, and of what
// the host has.
func (g Groups) free(limit int64) (int64, error) {
	all := g.Open("")
	used, err := all.usage()
	if err != nil {
		return 0, err
	}
	available, err := availableMemory()
	if err != nil {
		return 0, err
	}
	if float64(limit-used) < float64(limit)*scoreShare { // what the kernel can drop may be most of it
		used -= g.droppable()
	}
	return min(limit-used, available), nil
}

// droppable is what the kernel can drop of the memory of all machines: files.
func (g Groups) droppable() int64 {
	all, total := g.Open(""), map[bool]string{true: "", false: "total_"}[g.unified]
	return all.counter("memory.stat", total+"inactive_file") + all.counter("memory.stat", total+"active_file")
}

// Free returns how many bytes all machines with a group below a parent may still take
// below their limit, counting as free what the kernel can drop. 0 is no limit. The
// caller need not be the process that made the groups.
func Free(parent string, limit int64) (int64, error) {
	if limit == 0 {
		return math.MaxInt64, nil
	}
	g, err := groupsOf(parent)
	if err != nil {
		return 0, err
	}
	return g.below(limit)
}

// below returns how many bytes are free below a limit.
func (g Groups) below(limit int64) (int64, error) {
	used, err := g.Open("").usage()
	if err != nil {
		return 0, fmt.Errorf("the memory of all machines: %w", err)
	}
	return limit - used + g.droppable(), nil
}

// takers returns all machines with their memory.
func (g Groups) takers() (all []taker) {
	entries, err := os.ReadDir(g.dirs("")[0])
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		m := g.Open(e.Name())
		used, err := m.Resident()
		limit, unread := m.limit()
		if err != nil || unread != nil {
			continue // it ended
		}
		all = append(all, taker{id: e.Name(), used: used, limit: limit})
	}
	return all
}

// limit returns the memory limit of the group.
func (g *Group) limit() (int64, error) {
	name := "memory.limit_in_bytes"
	if g.unified {
		name = "memory.max"
	}
	raw, err := os.ReadFile(filepath.Join(g.memory, name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// pids returns the processes of the group.
func (g *Group) pids() (all []int) {
	raw, err := os.ReadFile(filepath.Join(g.memory, "cgroup.procs"))
	if err != nil {
		return nil // it ended
	}
	for field := range strings.FieldsSeq(string(raw)) {
		if pid, err := strconv.Atoi(field); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// availableMemory is what the host can still give, in bytes.
func availableMemory() (int64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
