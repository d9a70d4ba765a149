package node_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

var (
	simulations = flag.Uint64("simulations", 4, "how many seeds to simulate")
	firstSeed   = flag.Uint64("seed", 1, "the first seed")
)

// TestSimulation lets random things happen to some sandboxes, and looks after
// each whether everything fits. A failure is repeated with -seed.
func TestSimulation(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+*simulations; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			virtual(t, func(h *host) { newSimulation(h, seed).run() })
		})
	}
}

const (
	simulatedSteps = 400
	simulatedBoxes = 6
	// simulatedBudget is too little for all of them to sleep in memory.
	simulatedBudget = 3 << 20
	// patience is after what time every call must have ended: the longest
	// waits for a boot, for a wake, and for a machine that moves.
	patience = 10 * time.Minute
	delayMax = 20 * time.Second
)

type simulation struct {
	*host

	dice    *rand.Rand
	p       *process
	m       *mortal // the host of p
	made    int
	taken   int
	boxes   []string // wanted, or being made or deleted
	deleted map[string]bool
	calls   *sync.WaitGroup // to p
}

func newSimulation(h *host, seed uint64) *simulation {
	h.Ready = seed%2 == 0
	s := &simulation{host: h, dice: rand.New(rand.NewPCG(seed, 0)), deleted: map[string]bool{}}
	h.app = func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.URL.Query().Get("for")); err == nil {
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "hello")
	}
	s.begin()
	return s
}

// begin starts a process that will die at a random step.
func (s *simulation) begin() {
	m := s.mortal(math.MaxInt) // not while it starts, which this goroutine does
	o := m.options()
	o.SwapAfter, o.Budget = swapAfter, simulatedBudget
	o.Ahead, o.Spares = filepath.Join(s.dir, "ahead"), 1
	s.p, s.m, s.calls = s.startWith(o), m, &sync.WaitGroup{}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = s.dice.IntN(400)
	s.sweep()
	s.t.Cleanup(func() { close(m.end) })
}

// sweep gives back the addresses that nobody has, as a start does.
func (s *simulation) sweep() {
	s.set(func() { maps.DeleteFunc(s.leases, func(id string, _ bool) bool { return !s.p.Owns(id) }) })
}

// stop ends the process in order, unless it dies meanwhile.
func (s *simulation) stop() {
	ended, p, calls := make(chan struct{}), s.p, s.calls
	go func() {
		defer close(ended)
		p.stop()
		calls.Wait()
	}()
	select {
	case <-ended:
	case <-s.m.died:
		time.Sleep(delayMax) // what the host was told to do, it does
	}
}

// revive starts another process after a death.
func (s *simulation) revive() {
	for s.m.gone() {
		time.Sleep(delayMax) // as in stop
		s.begin()
		synctest.Wait()
	}
}

// steps are what can happen, by how likely it is.
var steps = []struct {
	weight int
	name   string
	do     func(*simulation)
}{
	{8, "create", (*simulation).create},
	{40, "request", (*simulation).request},
	{4, "delete", (*simulation).remove},
	{6, "snapshot", (*simulation).snapshot},
	{3, "drop", (*simulation).dropSnapshot},
	{5, "fork", (*simulation).fork},
	{5, "archive", func(s *simulation) {
		s.with("archive", func(ctx context.Context, id string) error { _, err := s.p.Archive(ctx, id); return err })
	}},
	{10, "unarchive", func(s *simulation) {
		s.with("unarchive", func(ctx context.Context, id string) error { return s.p.Unarchive(ctx, order(id)) })
	}},
	{5, "disable", func(s *simulation) { s.with("disable", s.p.Disable) }},
	{8, "enable", func(s *simulation) { s.with("enable", s.p.Enable) }},
	{3, "kill", (*simulation).kill},
	{2, "oom", func(s *simulation) { s.OutOfMemory(s.pick(), false) }},
	{15, "fault", (*simulation).fault},
	{10, "delay", (*simulation).slow},
	{4, "keepalive", func(s *simulation) { id, n := s.pick(), s.dice.IntN(2); s.set(func() { s.holds[id] = n }) }},
	{3, "deaf", func(s *simulation) { deaf := s.dice.IntN(3) == 0; s.set(func() { s.deaf = deaf }) }},
	{4, "memory", func(s *simulation) { free := s.dice.Int64N(3 << 20); s.set(func() { s.free = free }) }},
	{3, "restart", func(s *simulation) { s.stop(); s.begin() }},
	{1, "reboot", func(s *simulation) { s.stop(); time.Sleep(delayMax); s.Reboot(); s.begin() }},
	{40, "time", func(s *simulation) { time.Sleep(time.Duration(s.dice.Int64N(int64(2 * time.Minute)))) }},
}

func (s *simulation) run() {
	total := 0
	for _, step := range steps {
		total += step.weight
	}
	var history []string
	for range simulatedSteps {
		n := s.dice.IntN(total)
		for _, step := range steps {
			if n -= step.weight; n < 0 {
				history = append(history, step.name)
				step.do(s)
				break
			}
		}
		synctest.Wait()
		s.revive()
		s.check()
		if s.t.Failed() {
			s.t.Fatalf("after %q", history[max(0, len(history)-20):])
		}
	}
	s.settle()
}

func (s *simulation) pick() string {
	if len(s.boxes) == 0 {
		return "nobody"
	}
	return s.boxes[s.dice.IntN(len(s.boxes))]
}

// call runs something that must return.
func (s *simulation) call(what string, do func(context.Context) error) {
	give := time.Duration(s.dice.Int64N(int64(3 * time.Minute)))
	m := s.m
	s.calls.Go(func() {
		ctx, cancel := context.WithTimeout(s.t.Context(), give)
		defer cancel()
		began := time.Now()
		err := do(ctx)
		if late := time.Since(began) - give; late > patience && !m.gone() {
			s.t.Errorf("%s returned %v after its time: %v", what, late, err)
		}
	})
}

func (s *simulation) with(what string, do func(context.Context, string) error) {
	id := s.pick()
	s.call(what, func(ctx context.Context) error { return do(ctx, id) })
}

func (s *simulation) create() { s.createFrom("") }

func (s *simulation) createFrom(snapshot string) {
	if len(s.boxes) >= simulatedBoxes {
		return
	}
	s.made++
	id, p := fmt.Sprintf("s%d", s.made), s.p
	s.boxes = append(s.boxes, id)
	o := order(id)
	o.From = snapshot
	s.call("create", func(ctx context.Context) error { return p.Create(ctx, o) })
}

func (s *simulation) snapshot() {
	s.taken++
	id, box, p := fmt.Sprintf("n%d", s.taken), s.pick(), s.p
	s.call("snapshot", func(ctx context.Context) error { _, err := p.Snapshot(ctx, box, id); return err })
}

// anySnapshot is one of the complete ones, or none.
func (s *simulation) anySnapshot() string {
	files, err := s.p.Snapshots(s.t.Context())
	if err != nil {
		s.t.Error(err)
	}
	ids := slices.Sorted(maps.Keys(files))
	if len(ids) == 0 {
		return ""
	}
	return ids[s.dice.IntN(len(ids))]
}

func (s *simulation) dropSnapshot() {
	if id, p := s.anySnapshot(), s.p; id != "" {
		s.call("drop", func(ctx context.Context) error { return p.DropSnapshot(ctx, id) })
	}
}

func (s *simulation) fork() {
	if id := s.anySnapshot(); id != "" {
		s.createFrom(id)
	}
}

func (s *simulation) remove() {
	if len(s.boxes) == 0 {
		return
	}
	i, p := s.dice.IntN(len(s.boxes)), s.p
	id := s.boxes[i]
	if s.dice.IntN(2) == 0 { // or somebody deletes it again, and goes on using it
		s.boxes = slices.Delete(s.boxes, i, i+1)
	}
	s.deleted[id] = true // a process that dies of it tells nobody
	s.call("delete", func(ctx context.Context) error { return p.Delete(ctx, id) })
}

// kill ends one of the machines that have processes.
func (s *simulation) kill() {
	if alive := s.Processes(); len(alive) > 0 {
		s.OutOfMemory(alive[s.dice.IntN(len(alive))], s.dice.IntN(2) == 0)
	}
}

func (s *simulation) request() {
	id, p, m, d := s.pick(), s.p, s.m, time.Duration(s.dice.Int64N(int64(time.Minute)))
	s.call("request", func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/?for="+d.String(), nil)
		if err != nil {
			return err
		}
		resp, err := p.Transport(id, appPort).RoundTrip(r)
		if err != nil {
			if e := doze.Public(err); e.Kind == doze.Internal && ctx.Err() == nil && !m.gone() {
				s.t.Errorf("a request got %v", err)
			}
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	})
}

var (
	faults = []machinetest.Op{
		machinetest.OpBoot, machinetest.OpPause, machinetest.OpSave, machinetest.OpSwap, machinetest.OpDrop, machinetest.OpRelease,
		machinetest.OpResume, machinetest.OpRestore, machinetest.OpDial, machinetest.OpClose,
		machinetest.OpSnapshot, machinetest.OpDiscard, machinetest.OpArchive,
	}
	reasons = []error{errBroken, fmt.Errorf("%w: a bit", machine.ErrDamaged), context.DeadlineExceeded}
)

func (s *simulation) fault() {
	if s.dice.IntN(4) == 0 {
		step := []string{"image", "lease", "release"}[s.dice.IntN(3)]
		s.set(func() { s.failing[step] = errBroken })
		return
	}
	s.FailNext(faults[s.dice.IntN(len(faults))], reasons[s.dice.IntN(len(reasons))])
}

func (s *simulation) slow() {
	s.Delay(faults[s.dice.IntN(len(faults))], time.Duration(s.dice.Int64N(int64(delayMax)))*time.Duration(s.dice.IntN(2)))
}

// check looks at what must be true at any time.
func (s *simulation) check() {
	s.mu.Lock()
	leases, reports, seqs := make([]string, 0, len(s.leases)), map[string]doze.Phase{}, map[string]uint64{}
	for id := range s.leases {
		leases = append(leases, id)
	}
	for _, r := range s.reports {
		if r.Seq <= seqs[r.UID] {
			s.t.Errorf("%s: report %d after %d", r.UID, r.Seq, seqs[r.UID])
		}
		reports[r.UID], seqs[r.UID] = r.Phase, r.Seq
	}
	s.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(s.dir, "sandboxes"))
	if err != nil {
		s.t.Fatal(err)
	}
	known := func(what, id string) {
		if !s.p.Owns(id) && !strings.HasPrefix(id, "spare-") {
			s.t.Errorf("%s of %s, which nobody knows", what, id)
		}
	}
	for _, id := range leases {
		known("a lease", id)
	}
	for _, e := range entries {
		if _, ok := s.p.Status(e.Name()); e.IsDir() && !ok {
			s.t.Errorf("a directory of %s, which nobody knows", e.Name())
		}
	}
	for _, id := range s.Processes() {
		known("a process", id)
	}
	for id, told := range reports {
		st, ok := s.p.Status(id)
		// Nobody is told of what a start removes.
		unfinished := told == doze.Starting || told == doze.Deleting
		if !ok && told != doze.Terminated && !unfinished && !s.deleted[id] {
			s.t.Errorf("%s is gone, last reported %s", id, told)
		}
		if ok && st.Phase != told && st.Phase != doze.Starting {
			s.t.Errorf("%s is %s, last reported %s", id, st.Phase, told)
		}
		if ok && st.Phase == doze.Running && st.Tier != "awake" {
			s.t.Errorf("%s is %s and its machine %s", id, st.Phase, st.Tier)
		}
		if ok && (st.Phase == doze.Disabled || st.Phase == doze.Standby) && st.Tier == "awake" {
			s.t.Errorf("%s is %s and its machine %s", id, st.Phase, st.Tier)
		}
	}
}

// settle ends all faults: everything must work, and then be gone.
func (s *simulation) settle() {
	for _, op := range faults {
		s.Delay(op, 0)
	}
	s.set(func() { s.deaf = false; clear(s.failing); s.free = 1 << 30 })
	time.Sleep(patience)
	s.revive()
	time.Sleep(patience)
	if synctest.Wait(); !s.m.gone() {
		s.calls.Wait()
	}
	s.stop()
	time.Sleep(delayMax)
	s.p = s.startWith(s.spare(0)) // for ever
	s.sweep()
	entries, err := os.ReadDir(s.options().Dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		id := e.Name()
		if !e.IsDir() {
			continue
		}
		if s.p.phase(id) == doze.Archived && s.ask(func() bool { return s.leases[id] }) {
			s.t.Errorf("%s is archived and has a lease", id)
		}
		if n := s.p.Holds(id); n != 0 {
			s.t.Errorf("%s: %d holds are left", id, n)
		}
		var err error
		for range 50 { // faults that were ordered and have not come
			if err = s.p.Delete(s.t.Context(), id); err == nil {
				break
			}
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
		s.p.empty(id)
	}
	if left := s.Processes(); len(left) > 0 {
		s.t.Errorf("processes are left: %q", left)
	}
	left := func() []os.DirEntry {
		all, err := os.ReadDir(filepath.Join(s.dir, "snapshots"))
		if err != nil {
			s.t.Fatal(err)
		}
		return all
	}
	for range 50 { // as above
		for _, e := range left() {
			if err := s.p.DropSnapshot(s.t.Context(), e.Name()); err != nil {
				s.t.Log("drop:", err)
			}
		}
	}
	if all := left(); len(all) > 0 {
		s.t.Errorf("of snapshots is left: %v", all)
	}
	if left := s.ahead("machines"); len(left) > 0 || len(s.leases) > 0 {
		s.t.Errorf("machines %q and leases %v are left", left, s.leases)
	}
}
