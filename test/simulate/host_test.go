package simulate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/lease"
	"github.com/dozehq/doze/internal/plane/planetest"
)

const (
	// hostMemory is what the sandboxes of a host can have together: as many as 48 may be awake.
	hostMemory = 48 * sandboxMemory
	// hostDisk is never short.
	hostDisk = 10_000_000
	// idleAfter is after what time without a request a sandbox falls asleep, and copyAfter after
	// what time of sleep the bucket has it.
	idleAfter, copyAfter = time.Minute, time.Minute
	// lookEvery is how often a host looks for either.
	lookEvery = 20 * time.Second
	// leaseLeast is how long a lease must still be good for a new process to go on under it.
	leaseLeast = 5 * time.Second
	// undoMost is how long a host may take to remove what other hosts have.
	undoMost = 3 * time.Second
)

// A host is a node with a lease, a memory that it never sells twice, and a bucket that it
// shares. Its session with control and its end of the lease are those of a real node. Its
// machines outlive its process, but not its power.
type host struct {
	*planetest.Node

	s   *simulation
	id  string
	cut atomic.Bool // nobody reaches it, and it reaches nobody

	turn   sync.Mutex
	off    bool            // guarded by turn; it has no power
	frozen bool            // guarded by turn; its machines stand still
	away   map[string]bool // guarded by turn; machines that departed, as their records say: they do not wake
	leased bool            // guarded by turn; it has leases, as it is on its disk
	until  time.Time       // guarded by turn; as the guard of the lease knows it
	stored map[string]int  // guarded by turn; what the checkpoint of a machine has, by machine
	sent   map[string]int  // guarded by turn; likewise what the bucket has of it

	starts  int           // used by the driver alone
	process *atomic.Int64 // counts restarts
	end     func()        // of its process; used by the driver alone
	control *toControl
}

func newHost(s *simulation, id string) *host {
	h := &host{
		Node: planetest.NewNode(), s: s, id: id, process: new(atomic.Int64),
		away: map[string]bool{}, stored: map[string]int{}, sent: map[string]int{}, end: func() {},
	}
	h.Report = func(fleet.Report) {}
	h.control = &toControl{h}
	return h
}

// begin starts a process, as the start of a real node does it.
func (h *host) begin() {
	h.starts++
	ctx, cancel := context.WithCancel(h.s.life)
	h.turn.Lock()
	h.off = false
	leased, until := h.leased, h.until
	h.turn.Unlock()
	holder := lease.NewHolder(lease.Actions{
		Fence:   func(context.Context) { h.freeze(true) },
		Unfence: func(context.Context) { h.freeze(false) },
		Check:   func(context.Context) { h.freeze(false) },
		Tell: func(until time.Time) {
			h.turn.Lock()
			defer h.turn.Unlock()
			h.leased, h.until = !until.IsZero(), until
		},
	})
	session := fleet.NewSession(h.control, fleet.Side{
		Traffic: func() map[string]uint64 { return nil }, Barred: func(map[string]string) {},
		Lease: holder, Load: func(context.Context) fleet.Load { return h.load() },
		Machines: func() []string { return slices.Sorted(maps.Keys(h.Has())) },
		Held:     h.Held,
		Leaving: func() []string {
			h.turn.Lock()
			defer h.turn.Unlock()
			return slices.Sorted(maps.Keys(h.away))
		},
		Lost: func(ctx context.Context, machines []string) error {
			h.discard(machines)
			h.freeze(false)
			return h.s.pass(ctx, h.s.upTo(undoMost))
		},
	})
	info := fleet.NodeInfo{
		ID: h.id, Incarnation: strconv.Itoa(h.starts), URL: "https://" + h.id, Memory: hostMemory,
		SealKey: h.s.p.Opener.Sealer().Key(), BuildDisk: planetest.BuildDisk,
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		switch left := time.Until(until); {
		case leased && left > leaseLeast:
			holder.Resume(until)
		case leased:
			h.freeze(true)
			if !h.reclaim(ctx, holder) {
				return
			}
		}
		h.adopt(session.Report)
		_ = session.Run(ctx, info)
	})
	tasks.Go(func() { h.look(ctx) })
	h.end = func() {
		cancel()
		tasks.Wait()
		h.end = func() {}
	}
}

// reclaim asks for a lease until there is one.
func (h *host) reclaim(ctx context.Context, holder *lease.Holder) bool {
	for {
		asked := time.Now()
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		l, err := h.control.Reclaim(bounded, h.id, slices.Sorted(maps.Keys(h.Has())), h.Held())
		cancel()
		if err == nil {
			h.discard(l.Gone)
			holder.Extend(asked, l.TTL)
			h.freeze(false)
			return true
		}
		if h.s.pass(ctx, time.Second) != nil {
			return false
		}
	}
}

// adopt has a new process report how the machines are.
func (h *host) adopt(report func(fleet.Report)) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Report = report
	for uid, m := range h.Machines {
		h.Move(uid, m.Phase, "")
	}
}

// crash ends the process, and the power of the host: what ran is as its checkpoint is.
func (h *host) crash() {
	h.turn.Lock()
	h.off = true
	h.turn.Unlock()
	h.end()
	h.turn.Lock()
	defer h.turn.Unlock()
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for uid, m := range h.Machines {
		if m.Phase == doze.Running {
			m.Phase, m.Memory = doze.Standby, strconv.Itoa(h.stored[uid])
		}
	}
}

// restart ends the process, and begins another one. Machines run meanwhile.
func (h *host) restart() {
	h.end()
	h.begin()
}

// String says how the host is, for failures.
func (h *host) String() string {
	h.turn.Lock()
	defer h.turn.Unlock()
	lease := "for ever"
	if h.leased {
		lease = time.Until(h.until).String()
	}
	return fmt.Sprintf("%s (started %d times, power %t, cut off %t, frozen %t, lease %s)", h.id, h.starts, !h.off, h.cut.Load(), h.frozen, lease)
}

// freeze has the machines stand still, or go on.
func (h *host) freeze(still bool) {
	h.turn.Lock()
	h.frozen = still
	h.turn.Unlock()
	if !still {
		for uid := range h.Has() {
			h.s.alone(uid)
		}
	}
}

// still is why nothing runs here, or nil. Preconditions: turn is held.
func (h *host) still() error {
	if h.off || h.frozen || h.leased && time.Now().After(h.until) {
		return doze.Wrap(fleet.ErrMoved, doze.Unavailable, "the node may run nothing now")
	}
	return nil
}

// runs reports whether a machine runs here, or would with its next request.
func (h *host) runs(uid string) bool {
	h.turn.Lock()
	defer h.turn.Unlock()
	return h.still() == nil && !h.away[uid] && h.Has()[uid]
}

// reserved is what machines that are awake may use. Preconditions: turn is held.
func (h *host) reserved() (sum doze.Megabytes, awake int) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, m := range h.Machines {
		if m.Phase == doze.Running {
			sum += m.Order.Memory
			awake++
		}
	}
	return sum, awake
}

// room is [fleet.ErrFull] if a machine cannot run besides those that do. Preconditions: turn is held.
func (h *host) room(o *fleet.Order) error {
	if sum, _ := h.reserved(); sum+o.Memory > hostMemory {
		h.s.count("refused by a full node")
		return doze.Wrap(fleet.ErrFull, doze.Unavailable, "the node has no memory left")
	}
	return nil
}

func (h *host) load() fleet.Load {
	h.turn.Lock()
	defer h.turn.Unlock()
	sum, awake := h.reserved()
	return fleet.Load{
		Memory: hostMemory, Reserved: sum, Sandboxes: h.Count(), Awake: awake, Processors: 16, Disk: hostDisk, Images: []string{image},
		Workspaces: map[string]fleet.Awake{workspace: {Sandboxes: awake, Memory: sum}},
	}
}

// look puts sandboxes to sleep that nobody uses, and has the bucket have those that sleep.
func (h *host) look(ctx context.Context) {
	for h.s.pass(ctx, lookEvery) == nil {
		for uid, n := range h.sleepers() {
			if err := h.copy(ctx, uid); err == nil {
				h.turn.Lock()
				h.sent[uid] = n
				h.turn.Unlock()
			}
		}
	}
}

// sleepers puts sandboxes to sleep, and returns those of which the bucket has no copy.
func (h *host) sleepers() map[string]int {
	h.turn.Lock()
	defer h.turn.Unlock()
	h.Mu.Lock()
	defer h.Mu.Unlock()
	all := map[string]int{}
	if h.still() != nil {
		return all
	}
	for uid, m := range h.Machines {
		since := time.Since(m.LastUsed)
		switch {
		case m.Phase == doze.Running && since > idleAfter:
			h.stored[uid] = memoryOf(m)
			h.Move(uid, doze.Standby, "")
		case m.Phase == doze.Standby && since > idleAfter+copyAfter && h.sent[uid] != memoryOf(m)+1 && !h.away[uid]:
			all[uid] = memoryOf(m) + 1
		}
	}
	return all
}

// memoryOf is what a machine knows: how often it was used.
func memoryOf(m *planetest.Machine) int {
	n, _ := strconv.Atoi(m.Memory) // a fresh machine knows nothing
	return n
}

// copy has the bucket have a machine, if it is still the machine of this host.
func (h *host) copy(ctx context.Context, uid string) error {
	c, err := h.control.Claim(ctx, h.id, uid)
	if err != nil {
		return err
	}
	h.Mu.Lock()
	m := h.Machines[uid]
	var saved planetest.Machine
	if m != nil {
		saved = *m
	}
	h.Mu.Unlock()
	if m == nil {
		return doze.Wrap(fleet.ErrMoved, doze.NotFound, "no such sandbox")
	}
	return h.s.shelf.save(uid, c.Epoch, saved)
}

// discard removes machines that other hosts have.
func (h *host) discard(machines []string) {
	for _, uid := range machines {
		h.remove(uid)
	}
}

// remove removes a machine that another host has, or will have.
func (h *host) remove(uid string) {
	h.turn.Lock()
	_ = h.Node.Leave(h.s.life, uid)
	delete(h.away, uid)
	delete(h.stored, uid)
	delete(h.sent, uid)
	h.turn.Unlock()
	h.s.left(h, uid)
}

// request is one from outside: it wakes a sandbox and changes its memory.
func (h *host) request(uid string) {
	h.turn.Lock()
	defer h.turn.Unlock()
	h.Mu.Lock()
	m := h.Machines[uid]
	usable := m != nil && (m.Phase == doze.Running || m.Phase == doze.Standby)
	h.Mu.Unlock()
	if !usable || h.still() != nil || h.away[uid] || m.Phase == doze.Standby && h.room(&m.Order) != nil {
		return
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	m.LastUsed, m.Memory = time.Now(), strconv.Itoa(memoryOf(m)+1)
	if m.Phase == doze.Standby {
		h.Move(uid, doze.Running, "")
	}
	h.s.count("uses")
}

// Create implements [fleet.Node].
func (h *host) Create(ctx context.Context, o fleet.Order) error {
	h.turn.Lock()
	err := h.still()
	if err == nil {
		err = h.room(&o)
	}
	if err == nil {
		err = h.Node.Create(ctx, o)
	}
	h.turn.Unlock()
	if err != nil {
		return errors.Join(err, h.Node.Delete(ctx, o.UID)) // nothing is left, and nothing is claimed
	}
	h.s.holds(h, o.UID)
	return nil
}

// Delete implements [fleet.Node].
func (h *host) Delete(ctx context.Context, uid string) error {
	h.turn.Lock()
	err := h.still()
	h.turn.Unlock()
	if err != nil {
		return err
	}
	if err := h.Node.Delete(ctx, uid); err != nil {
		return err
	}
	h.turn.Lock()
	delete(h.away, uid)
	delete(h.stored, uid)
	delete(h.sent, uid)
	h.turn.Unlock()
	h.s.deleted(h, uid)
	return nil
}

// Sleep implements [fleet.Node].
func (h *host) Sleep(ctx context.Context, uid string, deep bool) error {
	h.turn.Lock()
	defer h.turn.Unlock()
	if err := h.still(); err != nil {
		return err
	}
	h.Mu.Lock()
	if m := h.Machines[uid]; m != nil {
		h.stored[uid] = memoryOf(m)
	}
	h.Mu.Unlock()
	return h.Node.Sleep(ctx, uid, deep)
}

// Wake implements [fleet.Node].
func (h *host) Wake(ctx context.Context, uid string) error {
	h.turn.Lock()
	defer h.turn.Unlock()
	if err := h.still(); err != nil {
		return err
	}
	if h.away[uid] {
		return doze.Errorf(doze.Unavailable, "the sandbox is about to move")
	}
	h.Mu.Lock()
	m := h.Machines[uid]
	asleep := m != nil && m.Phase == doze.Standby
	h.Mu.Unlock()
	if asleep {
		if err := h.room(&m.Order); err != nil {
			return err
		}
	}
	return h.Node.Wake(ctx, uid)
}

// Depart implements [fleet.Mover].
func (h *host) Depart(ctx context.Context, uid string) error {
	h.turn.Lock()
	err := h.still()
	if err == nil {
		h.Mu.Lock()
		switch m := h.Machines[uid]; {
		case m == nil:
			err = doze.Wrap(fleet.ErrMoved, doze.NotFound, "no such sandbox")
		case m.Phase == doze.Running:
			h.stored[uid] = memoryOf(m)
			h.Move(uid, doze.Standby, "")
		}
		h.Mu.Unlock()
	}
	if err == nil {
		h.away[uid] = true
	}
	h.turn.Unlock()
	if err != nil {
		return err
	}
	if err := h.copy(ctx, uid); err != nil {
		return errors.Join(err, h.Return(ctx, uid))
	}
	return nil
}

// Return implements [fleet.Mover].
func (h *host) Return(_ context.Context, uid string) error {
	h.turn.Lock()
	delete(h.away, uid)
	h.turn.Unlock()
	h.s.alone(uid)
	return nil
}

// Leave implements [fleet.Mover].
func (h *host) Leave(_ context.Context, uid string) error {
	if h.Has()[uid] {
		h.remove(uid)
	}
	return nil
}

// Revive implements [fleet.Mover].
func (h *host) Revive(ctx context.Context, o fleet.Order, _ time.Time, _ bool) (time.Time, error) {
	c, err := h.control.Claim(ctx, h.id, o.UID)
	if err != nil {
		return time.Time{}, err
	}
	copied, err := h.s.shelf.claim(o.UID, c.Epoch)
	if err != nil {
		if doze.Public(err).Kind == doze.NotFound {
			h.s.hopeless(o.UID)
		}
		return time.Time{}, err
	}
	h.turn.Lock()
	err = h.still()
	if err == nil && !h.Has()[o.UID] {
		if err = h.room(&o); err == nil {
			m := copied.machine
			m.Order, m.LastUsed = o, time.Now()
			h.Mu.Lock()
			h.Machines[o.UID] = &m
			h.stored[o.UID] = memoryOf(&m)
			h.Move(o.UID, doze.Running, "")
			h.Mu.Unlock()
		}
	}
	h.turn.Unlock()
	if err != nil {
		return time.Time{}, err
	}
	h.s.holds(h, o.UID)
	return copied.at, nil
}

// Usage implements [fleet.Node]: the disk of a host is not what is simulated.
func (h *host) Usage(context.Context) (fleet.Usage, error) { return fleet.Usage{At: time.Now()}, nil }

// A shelf is the bucket: the last copy of each machine, and since which epoch.
type shelf struct {
	mu  sync.Mutex
	all map[string]*copied // guarded by mu; by machine
	got map[string]bool    // guarded by mu; machines of which it has ever had a copy
}

type copied struct {
	epoch   uint64
	at      time.Time // zero: it has an epoch alone
	machine planetest.Machine
}

// of returns the row of a machine, for a host that has the machine in an epoch.
// Preconditions: mu is held.
func (s *shelf) of(uid string, epoch uint64) (*copied, error) {
	c := s.all[uid]
	if c == nil {
		c = &copied{}
		s.all[uid] = c
	}
	if c.epoch > epoch {
		return nil, doze.Errorf(doze.Conflict, "another node has had the sandbox since")
	}
	c.epoch = epoch
	return c, nil
}

func (s *shelf) save(uid string, epoch uint64, m planetest.Machine) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.of(uid, epoch)
	if err != nil {
		return err
	}
	c.machine, c.at, s.got[uid] = m, time.Now(), true
	return nil
}

func (s *shelf) claim(uid string, epoch uint64) (copied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.of(uid, epoch)
	if err == nil && c.at.IsZero() {
		err = doze.Errorf(doze.NotFound, "the bucket has no copy of the sandbox")
	}
	if err != nil {
		return copied{}, err
	}
	return *c, nil
}

// had reports whether the bucket has ever had a copy of a machine.
func (s *shelf) had(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[uid]
}

// has reports whether a host can go on from what the bucket has of a machine.
func (s *shelf) has(uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[uid] != nil && !s.all[uid].at.IsZero()
}

// List implements [roster.Copies].
func (s *shelf) List(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.all)), nil
}

// Has implements [roster.Copies].
func (s *shelf) Has(_ context.Context, uid string) (bool, error) { return s.has(uid), nil }

// Archived implements [roster.Copies]: nobody archives anything here.
func (*shelf) Archived(context.Context, string) (bool, error) { return false, nil }

// Claimed implements [roster.Copies].
func (*shelf) Claimed(context.Context, string) (uint64, error) { return 0, nil }

// Needs implements [roster.Copies]: no copy here needs files.
func (*shelf) Needs(context.Context, string) ([]fleet.FileNeed, error) { return nil, nil }

// Dropped implements [roster.Copies].
func (*shelf) Dropped(context.Context, string) (bool, error) { return false, nil }

// Bytes implements [roster.Copies].
func (*shelf) Bytes(context.Context, string) (int64, error) { return 0, nil }

// Now implements [roster.Copies].
func (*shelf) Now(context.Context) (time.Time, error) { return time.Now(), nil }

// Drop implements [roster.Copies].
func (s *shelf) Drop(_ context.Context, uid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, uid)
	return nil
}

// Bury implements [roster.Copies]: what is dropped is in no list.
func (*shelf) Bury(context.Context, string, time.Duration) (bool, error) { return true, nil }

// nameOf is the id of a host.
func nameOf(i int) string { return fmt.Sprintf("n%04d", i) }
