// Package simulate_test lets random things happen to a platform of many nodes in virtual
// time: the control role as it is, on a real database, and hosts in memory. After each step it
// looks whether the promises of a fleet hold. A failure is repeated with -seed, though not to
// the last step: goroutines take turns as they like.
package simulate_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/placement"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/store"
)

var (
	nodes     = flag.Int("nodes", 20, "how many nodes to simulate")
	sandboxes = flag.Int("sandboxes", 1000, "how many sandboxes there are when things begin to happen")
	steps     = flag.Int("steps", 300, "how many things happen")
	seeds     = flag.Uint64("seeds", 2, "how many seeds to simulate")
	seed      = flag.Uint64("seed", 0, "the first seed; 0 is a random one")
	loud      = flag.Bool("loud", false, "show the log of the platform")
)

const (
	// sandboxMemory is that of each sandbox.
	sandboxMemory doze.Megabytes = 1024
	image                        = "base"
	workspace                    = "main"
	// ttl is how long a lease is good, as by default.
	ttl = 30 * time.Second
	// fillers create sandboxes at the same time, and fillRound is how many begin before those
	// of the round before may fall asleep.
	fillers, fillRound = 16, 20
	// stepMost is the longest time from one thing to the next.
	stepMost = 2 * time.Second
	// harmedMost is the part of the nodes that are away at the same time.
	harmedMost = 0.1
	// callsMost bounds what is under way. A drain is one call.
	callsMost = 64
	// hostsLooked is at how many hosts each look looks, in turn.
	hostsLooked = 100
	// settled is after what time without harm everything is as it should be: leases are over,
	// what did not work was tried again, and places of what is gone were swept.
	settled = 12 * time.Minute
)

// TestSimulation has the nodes, the sandboxes and the seeds of its flags.
func TestSimulation(t *testing.T) {
	if !*loud {
		was := slog.Default()
		slog.SetDefault(slog.New(slog.DiscardHandler))
		t.Cleanup(func() { slog.SetDefault(was) })
	}
	first := *seed
	if first == 0 {
		first = rand.Uint64N(1 << 32)
	}
	for i := range *seeds {
		t.Run(fmt.Sprintf("seed=%d", first+i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newSimulation(t, first+i).run() })
		})
	}
}

// A process is one process of control.
type process struct {
	crew   *crew.Crew
	roster *roster.Roster
	dead   atomic.Bool // it reaches nobody, and nobody reaches it
	end    func()
	ctx    context.Context //nolint:containedctx // of the process, and ends with it
	calls  sync.WaitGroup  // to its API
}

// A simulation is one platform.
type simulation struct {
	t       *testing.T
	life    context.Context //nolint:containedctx // of hosts
	p       *planetest.Platform
	control atomic.Pointer[process] // nil: there is none
	hosts   map[string]*host
	shelf   *shelf
	chaos   atomic.Bool
	harmed  map[string]func() // by host: what ends its harm; used by the driver alone
	made    int               // used by the driver alone
	looked  int               // used by the driver alone; hosts

	mu       sync.Mutex
	dice     *rand.Rand                  // guarded by mu
	counts   map[string]int              // guarded by mu
	holders  map[string]map[string]*host // guarded by mu; which hosts have a machine
	several  map[string]bool             // guarded by mu; machines that more than one host has
	lost     map[string]bool             // guarded by mu; machines of which nobody has a copy
	wanted   map[string]bool             // guarded by mu; names of sandboxes that are there
	unsure   map[string]bool             // guarded by mu; names that may be there or not
	gone     map[string]bool             // guarded by mu; names that were deleted
	busy     map[string]bool             // guarded by mu; names that a call is about
	underway int                         // guarded by mu; calls
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	t.Helper()
	s := &simulation{
		t: t, life: t.Context(), shelf: &shelf{all: map[string]*copied{}, got: map[string]bool{}}, hosts: map[string]*host{}, harmed: map[string]func(){},
		dice: rand.New(rand.NewPCG(seed, 0)), counts: map[string]int{}, holders: map[string]map[string]*host{}, several: map[string]bool{}, lost: map[string]bool{},
		wanted: map[string]bool{}, unsure: map[string]bool{}, gone: map[string]bool{}, busy: map[string]bool{},
	}
	s.p = planetest.StartOn(t, databaseOf(t), false)
	s.p.Stop()
	many := int64(doze.QuotaLimitMax)
	s.p.Limits = doze.Limits{doze.QuotaSandboxes: many, doze.QuotaSandboxesAwake: many, doze.QuotaMemoryAwake: many, doze.QuotaRequests: many}
	for i := range *nodes {
		s.hosts[nameOf(i)] = newHost(s, nameOf(i))
	}
	return s
}

// run is the whole life of a platform.
func (s *simulation) run() {
	began := monotonic()
	s.open()
	for _, id := range slices.Sorted(maps.Keys(s.hosts)) {
		s.hosts[id].begin()
	}
	planetest.After(ttl)
	s.fill()
	filled := monotonic()
	placing := s.place()
	s.chaos.Store(true)
	for range *steps {
		s.step()
		s.look()
		if s.t.Failed() {
			break
		}
	}
	s.chaos.Store(false)
	for _, heal := range s.harmed {
		heal()
	}
	clear(s.harmed)
	planetest.After(settled)
	if !s.t.Failed() {
		s.look()
		s.balance()
	}
	s.t.Logf("%d nodes, %d sandboxes, %s to create them, %s in all, %s in virtual time, %d MB at most",
		len(s.hosts), len(s.wanted), filled-began, monotonic()-began, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Round(time.Second), peak()>>20)
	if !s.t.Failed() {
		s.t.Log("after each step no machine could run on two hosts, and no host gave away more memory than it has")
		s.t.Log("in the end records, ledger and hosts agreed, and each sandbox that the bucket had was there")
	}
	s.t.Logf("placement: p50 %s, p99 %s of a processor", placing[len(placing)/2], placing[len(placing)*99/100])
	for _, h := range s.hosts {
		h.end()
	}
	s.kill()
	for _, what := range slices.Sorted(maps.Keys(s.counts)) {
		s.t.Logf("%7d %s", s.counts[what], what)
	}
}

// open begins a process of control.
func (s *simulation) open() {
	s.t.Helper()
	p := &process{}
	s.p.Crew = func(records *store.Store) fleet.Node {
		home, err := records.Setting(s.t.Context(), roster.HomeSetting)
		if err != nil {
			s.t.Fatal(err)
		}
		if p.crew, err = crew.Open(s.t.Context(), plane.Ledger{Store: records}, home, fleet.NewAtlas()); err != nil {
			s.t.Fatal(err)
		}
		return p.crew
	}
	s.p.Open(true)
	p.roster = roster.New(roster.Config{
		Store: s.p.Store, Crew: p.crew, Control: control.Link{Server: s.p.Ctl}, Quotas: s.p.Quotas, TTL: ttl, Copies: s.shelf,
		Master: []byte("0123456789abcdef0123456789abcdef"), Met: func(fleet.NodeInfo) {},
		Dial: func(n fleet.NodeInfo) fleet.Node { return &toNode{s.hosts[n.ID], s.hosts[n.ID], p} },
	})
	s.p.Rooms.Nodes.Roster = p.roster
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithCancel(s.t.Context())
	var loop sync.WaitGroup
	loop.Go(func() { _ = p.roster.Run(p.ctx) })
	p.end = func() {
		cancel()
		p.calls.Wait()
		loop.Wait()
		s.p.Stop()
	}
	s.control.Store(p)
}

// kill ends the process of control, whatever it is at.
func (s *simulation) kill() {
	p := s.control.Load()
	p.dead.Store(true)
	s.control.Store(nil)
	s.census(p)
	p.end()
}

// census adds up what a process of control counted.
func (s *simulation) census(p *process) {
	c := p.roster.Census(s.t.Context())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["nodes lost"] += int(c.Losses)
	for of, all := range map[string]map[string]uint64{"rescues": c.Rescues, "moves": c.Moves} {
		for what, n := range all {
			s.counts[of+": "+what] += int(n)
		}
	}
}

// fill creates sandboxes, most of which sleep when it is done.
func (s *simulation) fill() {
	for s.made < *sandboxes {
		var tasks sync.WaitGroup
		slots := make(chan struct{}, fillers)
		for range min(fillRound*len(s.hosts), *sandboxes-s.made) {
			name := s.newName()
			slots <- struct{}{}
			tasks.Go(func() {
				defer func() { <-slots }()
				if code, text := s.call("POST", "/sandboxes", bodyOf(name)); code != http.StatusOK {
					s.t.Errorf("create: %d %s", code, text)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.wanted[name] = true
			})
		}
		tasks.Wait()
		if s.t.Failed() {
			s.t.FailNow()
		}
		planetest.After(2 * idleAfter)
	}
	planetest.After(idleAfter + 2*copyAfter)
	s.look()
}

func (s *simulation) newName() string {
	s.made++
	return fmt.Sprintf("s%d", s.made)
}

// bodyOf is that of a create.
func bodyOf(name string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"runtime":{"memory":%d,"image":%q}}}`, name, sandboxMemory, image)
}

// call sends a request to the API of the process of control that there is.
func (s *simulation) call(method, path, body string) (code int, text string) {
	p := s.control.Load()
	if p == nil {
		return http.StatusBadGateway, "there is no control"
	}
	w := s.p.DoAs(p.ctx, method, path, body)
	return w.Code, w.Body.String()
}

// place measures what a choice of a node takes of a processor, of all nodes that there are.
func (s *simulation) place() []time.Duration {
	const times = 1000
	all := make([]time.Duration, times)
	c := s.control.Load().crew
	runtime.LockOSThread() // whose time is counted
	defer runtime.UnlockOSThread()
	for i := range all {
		began := processor()
		if _, err := c.Choose(placement.Want{Memory: sandboxMemory, Image: image}); err != nil {
			s.t.Fatal(err)
		}
		all[i] = processor() - began
	}
	slices.Sort(all)
	return all
}

// things are what can happen, and how often of all together.
var things = []struct {
	name   string
	weight int
	do     func(s *simulation)
}{
	{"creates", 20, (*simulation).create},
	{"deletes", 14, (*simulation).remove},
	{"uses", 30, (*simulation).use},
	{"sleeps", 10, func(s *simulation) { s.about("sleeps", "POST", "/sleep", "") }},
	{"wakes", 14, func(s *simulation) { s.about("wakes", "POST", "/wake", "") }},
	{"moves", 12, func(s *simulation) { s.about("moves", "POST", "/move", "{}") }},
	{"drains", 1, func(s *simulation) { s.operate("drain") }},
	{"cordons", 1, func(s *simulation) { s.operate("cordon") }},
	{"uncordons", 3, func(s *simulation) { s.operate("uncordon") }},
	{"nodes cut off", 2, func(s *simulation) {
		s.harm(func(h *host) { h.cut.Store(true) }, func(h *host) { h.cut.Store(false) })
	}},
	{"nodes without power", 1, func(s *simulation) { s.harm((*host).crash, (*host).begin) }},
	{"restarts of nodes", 2, func(s *simulation) { s.harm((*host).restart, func(*host) {}) }},
	{"nodes back", 3, (*simulation).heal},
	{"restarts of control", 1, (*simulation).restart},
}

// step lets something happen, and a moment pass.
func (s *simulation) step() {
	sum := 0
	for _, one := range things {
		sum += one.weight
	}
	n := s.roll(sum)
	for _, one := range things {
		if n -= one.weight; n < 0 {
			s.count("steps: " + one.name)
			one.do(s)
			break
		}
	}
	planetest.After(s.upTo(stepMost))
}

// begin has a call be under way, about a name that no other one is about. done gets its
// answer.
func (s *simulation) begin(method, path, name, body string, done func(code int)) {
	p := s.control.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if p == nil || s.underway >= callsMost || s.busy[name] {
		return
	}
	s.underway++
	s.busy[name] = name != ""
	p.calls.Go(func() {
		code, text := s.call(method, path, body)
		if code >= http.StatusInternalServerError && code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout && !p.dead.Load() {
			s.count(fmt.Sprintf("answers %d: %.100s", code, text))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.underway--
		delete(s.busy, name)
		if p.dead.Load() {
			code = http.StatusBadGateway // nobody heard the answer
		}
		done(code)
	})
}

func (s *simulation) create() {
	name := s.newName()
	s.begin("POST", "/sandboxes", name, bodyOf(name), func(code int) {
		if code == http.StatusOK {
			s.wanted[name] = true
			s.counts["created"]++
		} else {
			s.unsure[name] = true
			s.counts["creates that failed"]++
		}
	})
}

func (s *simulation) remove() {
	name := s.some()
	if name == "" {
		return
	}
	s.begin("DELETE", "/sandboxes/"+name, name, "", func(code int) {
		delete(s.wanted, name)
		switch code {
		case http.StatusOK:
			s.gone[name] = true
			s.counts["deleted"]++
		case http.StatusNotFound:
			s.t.Errorf("the sandbox %s is not there", name)
		default:
			s.unsure[name] = true
			s.counts["deletes that failed"]++
		}
	})
}

// about makes a call about some sandbox, which need not work.
func (s *simulation) about(what, method, path, body string) {
	name := s.some()
	if name == "" {
		return
	}
	s.begin(method, "/sandboxes/"+name+path, name, body, func(code int) {
		switch code {
		case http.StatusOK:
			s.counts["done: "+what]++
		case http.StatusNotFound:
			s.t.Errorf("the sandbox %s is not there", name)
		default:
			s.counts[fmt.Sprintf("refused: %s, %d", what, code)]++
		}
	})
}

// use sends requests to some sandboxes, to each host that has them.
func (s *simulation) use() {
	s.mu.Lock()
	var uids []string
	for uid := range s.holders { // in no order
		if uids = append(uids, uid); len(uids) > 20 {
			break
		}
	}
	s.mu.Unlock()
	for _, uid := range uids {
		for _, h := range s.at(uid) {
			if h.runs(uid) {
				h.request(uid)
			}
		}
	}
}

func (s *simulation) operate(what string) {
	s.begin("POST", "/platform/nodes/"+nameOf(s.roll(len(s.hosts)))+"/"+what, "", "", func(code int) {
		s.counts[fmt.Sprintf("%s: %d", what, code)]++
	})
}

// harm does something to a node that has no harm, until its end. Some have it for longer than a lease.
func (s *simulation) harm(do, undo func(*host)) {
	id := nameOf(s.roll(len(s.hosts)))
	if s.harmed[id] != nil || float64(len(s.harmed)) >= max(1, harmedMost*float64(len(s.hosts))) {
		return
	}
	h := s.hosts[id]
	do(h)
	s.harmed[id] = func() { undo(h) }
}

func (s *simulation) heal() {
	for id, undo := range s.harmed {
		undo()
		delete(s.harmed, id)
		return
	}
}

// restart ends the process of control, and begins another one some time later.
func (s *simulation) restart() {
	s.kill()
	planetest.After(s.upTo(ttl))
	s.look()
	s.open()
}

// some is the name of a sandbox that is there.
func (s *simulation) some() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.wanted { // in no order
		if !s.busy[name] {
			return name
		}
	}
	return ""
}

// look looks at what must hold at each moment.
func (s *simulation) look() {
	s.mu.Lock()
	several := slices.Collect(maps.Keys(s.several))
	s.mu.Unlock()
	for _, uid := range several {
		s.alone(uid)
	}
	for range min(hostsLooked, len(s.hosts)) {
		s.looked++
		id := nameOf(s.looked % len(s.hosts))
		h := s.hosts[id]
		h.turn.Lock()
		sum, _ := h.reserved()
		h.turn.Unlock()
		if sum > hostMemory {
			s.t.Errorf("sandboxes on %s may use %d of %d MB", id, sum, hostMemory)
		}
	}
}

// at are the hosts that have a machine.
func (s *simulation) at(uid string) []*host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.holders[uid]))
}

// alone looks whether a machine may run on one host at most.
func (s *simulation) alone(uid string) {
	all := s.at(uid)
	if len(all) < 2 {
		return
	}
	var on []string
	for _, h := range all {
		if h.runs(uid) {
			on = append(on, h.String())
		}
	}
	if len(on) > 1 {
		s.t.Errorf("%s may run at once on %s", uid, strings.Join(on, " and "))
	}
}

// holds takes note that a host has a machine.
func (s *simulation) holds(h *host, uid string) {
	slog.Info("a host has a machine", "host", h.id, "machine", uid)
	s.mu.Lock()
	if s.holders[uid] == nil {
		s.holders[uid] = map[string]*host{}
	}
	s.holders[uid][h.id] = h
	if len(s.holders[uid]) > 1 {
		s.several[uid] = true
	}
	s.mu.Unlock()
	s.alone(uid)
}

// left takes note that a host has a machine no more, since another one has it, or will.
func (s *simulation) left(h *host, uid string) {
	s.deleted(h, uid)
	if len(s.at(uid)) > 0 || s.shelf.has(uid) {
		return
	}
	if s.shelf.had(uid) {
		named, err := s.p.Store.Machines(s.life, []string{uid})
		if err == nil && !named[uid] {
			s.count("copies that ended on nodes that were away, of what was deleted")
			return
		}
		s.t.Errorf("the last host forgets %s, of which the bucket has no copy any more: %v, %v", uid, named, err)
	}
	s.hopeless(uid) // its host was lost before it had slept for long enough
}

// deleted takes note that a host has a machine no more.
func (s *simulation) deleted(h *host, uid string) {
	slog.Info("a host has a machine no more", "host", h.id, "machine", uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.holders[uid], h.id)
	if len(s.holders[uid]) < 2 {
		delete(s.several, uid)
	}
	if len(s.holders[uid]) == 0 {
		delete(s.holders, uid)
	}
}

// hopeless takes note that the bucket has nothing of a machine whose host was lost.
func (s *simulation) hopeless(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lost[uid] {
		s.lost[uid] = true
		s.counts["lost without a copy"]++
	}
}

// balance looks whether records, ledger and hosts agree, when nothing happens any more.
func (s *simulation) balance() {
	ctx := s.t.Context()
	c := s.control.Load().crew
	names, machines := map[string]doze.Phase{}, map[string]bool{}
	err := s.p.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		name := sb.Metadata.Name
		names[name] = sb.Phase
		at := c.Of(crew.Machine, sb.Machine)
		switch sb.Phase {
		case doze.Running, doze.Standby:
		case doze.Failed:
			s.counts["failed in the end"]++
			machines[sb.Machine] = true
			return nil
		default:
			s.t.Errorf("%s is %s in the end", name, sb.Phase)
			return nil
		}
		machines[sb.Machine] = true
		h := s.hosts[at]
		h.turn.Lock()
		h.Mu.Lock()
		m := h.Machines[sb.Machine]
		switch {
		case m == nil:
			s.t.Errorf("%s, which is %s, is %s on %s, as the records say, and is not there but on %v", name, sb.Machine, sb.Phase, at, hostsOf(s.at(sb.Machine)))
		case m.Phase != sb.Phase:
			s.t.Errorf("%s is %s on %s, and %s in the records", name, m.Phase, at, sb.Phase)
		case h.away[sb.Machine]:
			s.t.Errorf("%s waits on %s to depart, and nobody moves it", name, at)
		}
		h.Mu.Unlock()
		h.turn.Unlock()
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for name := range s.wanted {
		if _, there := names[name]; !there {
			s.t.Errorf("%s is lost", name)
		}
	}
	for name := range s.gone {
		if phase, there := names[name]; there {
			s.t.Errorf("%s was deleted, and is %s", name, phase)
		}
	}
	if failed := s.counts["failed in the end"]; failed > s.counts["lost without a copy"] {
		s.t.Errorf("%d sandboxes failed, and %d had no copy", failed, s.counts["lost without a copy"])
	}
	for id, h := range s.hosts {
		if err := func() error { h.turn.Lock(); defer h.turn.Unlock(); return h.still() }(); err != nil {
			s.t.Errorf("%s stands still in the end: %v", id, err)
		}
		for uid := range h.Has() {
			if at := c.Of(crew.Machine, uid); at != id && !h.runs(uid) { // the node hears of it when it joins again
				s.counts["copies that do not wake, of what moved"]++
			} else if !machines[uid] || at != id {
				s.t.Errorf("%s has %s, which is on %s", id, uid, c.Of(crew.Machine, uid))
			}
		}
	}
	places, err := s.p.Store.Places(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range places {
		if p.Kind == string(crew.Machine) && !machines[p.ID] {
			s.t.Errorf("the ledger has %s on %s, which is nowhere", p.ID, p.Node)
		}
	}
}

func hostsOf(all []*host) (ids []string) {
	for _, h := range all {
		ids = append(ids, h.id)
	}
	return ids
}

func (s *simulation) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

func (s *simulation) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dice.IntN(n)
}

// happens reports whether something happens that does so to some of a thousand.
func (s *simulation) happens(per1000 int) bool { return s.roll(1000) < per1000 }

// upTo is a time up to d.
func (s *simulation) upTo(d time.Duration) time.Duration { return time.Duration(s.roll(int(d))) }

// pass lets a time pass, or returns why ctx has ended.
func (s *simulation) pass(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
