// Package roster keeps the nodes of a platform. It is what a node asks of control, it
// grants and ends leases, and it serves operators. What nodes have is in package crew.
package roster

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/keylock"
	"github.com/dozehq/doze/internal/lease"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/store"
)

const (
	// HomeSetting is the record of the node that has everything without a place. It is the first
	// one that joined, until that is removed.
	HomeSetting = store.HomeNode
	// joinWait is how long after a start calls wait for the nodes on record to join. They do
	// so within a second.
	joinWait = 10 * time.Second
	// reportBatch is how many reports share a transaction, which costs a sync.
	reportBatch = 256
)

// Control is what a roster asks of those who keep sandboxes.
type Control interface {
	// Adopt takes over what an earlier process began. It is called once.
	Adopt(ctx context.Context) error
	// TellNode tells a node what its process before knew.
	TellNode(ctx context.Context, n fleet.Node, has func(machine string) bool) error
	// Accept records reports.
	Accept(ctx context.Context, reports []fleet.Report) error
	// Inform says what the nodes can do, together.
	Inform(info fleet.NodeInfo)
	// Lodgers, LodgerNamed and InTurn are as [control.Link] says.
	Lodgers(ctx context.Context, at func(machine string) bool) ([]control.Lodger, error)
	LodgerNamed(ctx context.Context, workspace, name string) (control.Lodger, error)
	InTurn(ctx context.Context, of control.Lodger, do func(ctx context.Context, o fleet.Order, last control.Use) error) error
}

// Config is what a [Roster] works with.
type Config struct {
	Store   *store.Store
	Crew    *crew.Crew
	Control Control
	Quotas  *quota.Book
	// Dial returns the client of a node that joins.
	Dial func(fleet.NodeInfo) fleet.Node
	// Check is an error unless the node that joins answers at its address, and no other one.
	// nil: any address is believed.
	Check func(ctx context.Context, id, url string) error
	// Met hears of a node before it is told anything: calls have to reach it.
	Met func(fleet.NodeInfo)
	// TTL is how long a lease is good.
	TTL time.Duration
	// Grace is for how long control may grant leases without its records.
	Grace time.Duration
	// Copies are what the bucket has of machines; nil: there is no bucket, and nobody can have
	// what another node had.
	Copies Copies
	// Master is the key of which those of machines in the bucket are made.
	Master []byte
	// Enrollment is what nodes join with.
	Enrollment Enrollment
	// Began is when control began; zero is now.
	Began time.Time
}

// Roster is all nodes that have joined. It is safe for concurrent use.
type Roster struct {
	Config

	book    *lease.Book
	joining sync.Mutex    // held while control tells a node what it forgot
	adopted chan struct{} // closed when Adopt is done

	mu    sync.Mutex
	nodes map[string]*member // guarded by mu; by id
	bytes map[string]*sent   // guarded by mu; by workspace
	// taking has a lock for each node. A call that decides what the node still has holds it.
	taking *keylock.Locks
	gones  map[string]bool           // guarded by mu; nodes that are lost, whose sandboxes are not all elsewhere
	lost   bell.Bell                 // rings when a node is lost
	sure   atomic.Pointer[time.Time] // when the records were this control's for sure
	// leased says which nodes know of a lease that ends, as it is recorded; guarded by mu.
	leased map[string]bool
	// pending are machines that have a place, and have not begun there; guarded by mu.
	pending map[string]bool
	tally   tally
}

var _ fleet.Control = (*Roster)(nil)

// member is a node that has joined this process.
type member struct {
	info  fleet.NodeInfo
	epoch uint64
	state doze.NodeState
	load  fleet.Load
	heard time.Time         // when it renewed last
	seq   uint64            // of the last renewal
	bytes map[string]uint64 // that its present process told last, by workspace
}

// sent counts what sandboxes of a workspace have sent and received since this process
// began, over all nodes and their processes. It only grows.
type sent struct{ sum atomic.Uint64 }

// New returns a roster without a node.
func New(c Config) *Roster {
	if c.Began.IsZero() {
		c.Began = time.Now()
	}
	r := &Roster{
		Config: c, book: lease.NewBook(c.TTL, c.Grace+ownTimeout+ownEvery, c.Began), adopted: make(chan struct{}),
		nodes: map[string]*member{}, bytes: map[string]*sent{}, gones: map[string]bool{}, leased: map[string]bool{}, pending: map[string]bool{}, lost: bell.New(), taking: keylock.New(),
	}
	r.sure.Store(&r.Began)
	return r
}

// Join implements [fleet.Control].
func (r *Roster) Join(ctx context.Context, n fleet.NodeInfo) (_ fleet.Lease, err error) {
	if n.ID == "" || n.Incarnation == "" || n.URL == "" {
		return fleet.Lease{}, doze.Errorf(doze.Invalid, "a node that joins says its id, its incarnation and its address")
	}
	if strings.HasSuffix(tokens, "/"+n.ID) {
		return fleet.Lease{}, doze.Errorf(doze.Invalid, "no node can have the id %s, which is a path of the API", n.ID)
	}
	if r.Check != nil {
		if err := r.Check(ctx, n.ID, n.URL); err != nil {
			return fleet.Lease{}, err
		}
	}
	r.joining.Lock()
	defer r.joining.Unlock()
	record, err := r.admit(ctx, n)
	if err != nil {
		return fleet.Lease{}, err
	}
	to := r.Dial(n)
	gone, lost, err := r.back(ctx, n.ID, n.Machines)
	if err != nil {
		return fleet.Lease{}, err
	}
	defer func() {
		if err != nil && lost { // it has no lease, and stands still
			r.setGone(n.ID)
		}
	}()
	r.Crew.Put(crew.Member{Info: n, Node: to, Open: record.State == doze.NodeReady, Load: fleet.Load{Driver: n.Driver, Memory: n.Memory}})
	r.Met(n)
	r.inform(n)
	has := func(machine string) bool { return r.Crew.Of(crew.Machine, machine) == n.ID }
	if err = r.Control.TellNode(ctx, to, has); err != nil {
		return fleet.Lease{}, err
	}
	r.mu.Lock()
	r.nodes[n.ID] = &member{info: n, epoch: record.Epoch, state: record.State, bytes: map[string]uint64{}, heard: time.Now()}
	r.mu.Unlock()
	if err = r.adopt(ctx, false); err != nil {
		return fleet.Lease{}, err
	}
	slog.InfoContext(ctx, "a node joined", "node", n.ID, "url", n.URL, "version", n.Version, "epoch", record.Epoch)
	l, err := r.grant(ctx, n.ID, record.Epoch, n.Leased)
	l.Gone = gone
	return l, err
}

// Reclaim implements [fleet.Control].
func (r *Roster) Reclaim(ctx context.Context, node string, machines []string) (fleet.Lease, error) {
	r.joining.Lock()
	defer r.joining.Unlock()
	record, err := r.Store.Node(ctx, node)
	if doze.Public(err).Kind == doze.NotFound {
		return fleet.Lease{}, nil
	}
	if err != nil {
		return fleet.Lease{}, err
	}
	if record, err = r.Store.PutNode(ctx, node, record.Body, time.Now()); err != nil {
		return fleet.Lease{}, err
	}
	gone, lost, err := r.back(ctx, node, machines)
	if err != nil {
		return fleet.Lease{}, err
	}
	l, err := r.grant(ctx, node, record.Epoch, true) // it has waited for one
	if err != nil && lost {
		r.setGone(node)
	}
	l.Gone = gone
	return l, err
}

// admit records a node. The first one is the home of everything that has no place. One
// that opens other secrets than those before it could run nothing that moves there.
func (r *Roster) admit(ctx context.Context, n fleet.NodeInfo) (store.Node, error) {
	for _, other := range r.members() {
		if other.info.ID != n.ID && !bytes.Equal(other.info.SealKey, n.SealKey) {
			return store.Node{}, doze.Errorf(doze.Conflict,
				"the node %s has another egress.key than the nodes before it: join it with a token, or copy the file from the data directory of control", n.ID)
		}
	}
	home, err := r.Store.Setting(ctx, HomeSetting)
	if err != nil {
		return store.Node{}, err
	}
	if home == "" {
		if err := r.Store.SetSetting(ctx, HomeSetting, n.ID); err != nil {
			return store.Node{}, err
		}
		r.Crew.SetHome(n.ID)
	}
	return r.Store.PutNode(ctx, n.ID, store.NodeBody{URL: n.URL, Version: n.Version, Driver: n.Driver, Memory: n.Memory}, time.Now())
}

// back takes note that a node is here again. It returns which machines of the node's list
// other nodes have, and whether the node was lost. The node keeps the rest: no rescue takes them.
func (r *Roster) back(ctx context.Context, node string, machines []string) (gone []string, lost bool, err error) {
	_, release, err := r.taking.Take(ctx, node)
	if err != nil {
		return nil, false, err
	}
	defer release()
	for _, machine := range machines {
		if r.Crew.Of(crew.Machine, machine) != node {
			gone = append(gone, machine)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	lost = r.gones[node]
	delete(r.gones, node)
	return gone, lost, nil
}

// take gives a machine of a lost node to another one. If the node came back meanwhile, the
// machine stays there, and taken is false.
func (r *Roster) take(ctx context.Context, machine, from, to string) (taken bool, err error) {
	_, release, err := r.taking.Take(ctx, from)
	if err != nil {
		return false, err
	}
	defer release()
	if lost, _ := r.unsettled(); !lost[from] {
		return false, nil
	}
	return r.give(ctx, machine, from, to)
}

// setGone has a node count as lost.
func (r *Roster) setGone(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gones[node] = true
}

// inform tells control what the nodes can do together, with one that joins.
func (r *Roster) inform(n fleet.NodeInfo) {
	all := n
	for _, m := range r.members() {
		if m.info.ID == n.ID {
			continue
		}
		all.Memory = max(all.Memory, m.info.Memory)
		all.Proxy = all.Proxy && m.info.Proxy
		all.Unmetered = all.Unmetered || m.info.Unmetered
		all.BuildDisk = max(all.BuildDisk, m.info.BuildDisk)
	}
	r.Control.Inform(all)
}

// adopt takes over what an earlier process of control began, once. It does so when all nodes
// on record have joined, or those that will not have had their time.
func (r *Roster) adopt(ctx context.Context, late bool) error {
	select {
	case <-r.adopted:
		return nil
	default:
	}
	if !late {
		all, err := r.Store.Nodes(ctx)
		if err != nil {
			return err
		}
		for _, n := range all {
			if n.State != doze.NodeLost && r.member(n.ID) == nil {
				return nil
			}
		}
	}
	if err := r.Control.Adopt(ctx); err != nil {
		return err
	}
	close(r.adopted)
	return r.scan(ctx)
}

// scan looks for sandboxes that an earlier process of control gave a place, and that have
// not begun there: their nodes say so.
func (r *Roster) scan(ctx context.Context) error {
	if r.Copies == nil {
		return nil
	}
	all, err := r.Control.Lodgers(ctx, func(machine string) bool { return r.Crew.Epoch(crew.Machine, machine) > firstEpoch })
	if err != nil {
		return err
	}
	by := map[string][]string{}
	for _, l := range all {
		at := r.Crew.Of(crew.Machine, l.Machine)
		by[at] = append(by[at], l.Machine)
	}
	for _, m := range r.Crew.Members() {
		there, err := m.Node.Statuses(ctx, by[m.Info.ID])
		if err != nil {
			continue // it is lost, or joins again
		}
		for _, machine := range by[m.Info.ID] {
			if _, ok := there[machine]; !ok {
				r.pend(machine, true)
			}
		}
	}
	r.lost.Ring()
	return nil
}

// firstEpoch is that of a sandbox which never moved.
const firstEpoch = 2

// next takes note of a renewal, and reports whether it is the latest.
func (r *Roster) next(m *member, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq <= m.seq {
		return false
	}
	m.seq = seq
	return true
}

// grant grants a lease to a node. A platform needs none where nobody else could have what
// a node has. A node that believes in a lease for ever is never lost, so it has to say
// first that it knows better: leased. The records say so before anybody counts on it.
func (r *Roster) grant(ctx context.Context, id string, epoch uint64, leased bool) (fleet.Lease, error) {
	others := slices.ContainsFunc(r.members(), func(m *member) bool { return m.info.ID != id })
	if r.Copies == nil || !others {
		r.book.Release(id)
		return fleet.Lease{Epoch: epoch}, r.recordLeased(ctx, id, false)
	}
	// Another control may have taken over, which waits for as long before it takes anything.
	if away := time.Since(*r.sure.Load()); away > r.Grace+ownTimeout {
		return fleet.Lease{}, doze.Errorf(doze.Unavailable, "control has not reached its records for %s, and grants no leases", away.Round(time.Second))
	}
	if leased {
		if err := r.recordLeased(ctx, id, true); err != nil {
			return fleet.Lease{}, err
		}
		r.book.Grant(id, epoch, time.Now())
	}
	return fleet.Lease{Epoch: epoch, TTL: r.book.TTL()}, nil
}

// recordLeased records whether a node knows of a lease which ends, if that is news.
func (r *Roster) recordLeased(ctx context.Context, id string, leased bool) error {
	r.mu.Lock()
	known, told := r.leased[id]
	r.mu.Unlock()
	if told && known == leased {
		return nil
	}
	if err := r.Store.SetNodeLeased(ctx, id, leased); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leased[id] = leased
	return nil
}

// Renew implements [fleet.Control].
func (r *Roster) Renew(ctx context.Context, n fleet.Renewal) (fleet.Lease, error) {
	m, err := r.known(n.Node, n.Incarnation)
	if err != nil {
		return fleet.Lease{}, err
	}
	if !r.next(m, n.Seq) {
		return fleet.Lease{}, doze.Errorf(doze.Conflict, "a later renewal came before this one")
	}
	if m.epoch != n.Epoch || m.state == doze.NodeLost {
		return fleet.Lease{}, fleet.ErrNotJoined
	}
	r.Crew.Beat(n.Node, n.Load)
	r.mu.Lock()
	m.load, m.heard = n.Load, time.Now()
	r.mu.Unlock()
	return r.grant(ctx, n.Node, n.Epoch, n.Leased)
}

// Record implements [fleet.Control].
func (r *Roster) Record(ctx context.Context, node string, reports []fleet.Report) error {
	if r.member(node) == nil {
		return fleet.ErrNotJoined
	}
	own := slices.DeleteFunc(slices.Clone(reports), func(p fleet.Report) bool { return r.Crew.Of(crew.Machine, p.UID) != node })
	for batch := range slices.Chunk(own, reportBatch) {
		if err := r.Control.Accept(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// ImageRefs implements [fleet.Control].
func (r *Roster) ImageRefs(ctx context.Context) ([]string, error) { return r.Store.ImageRefs(ctx) }

// Traffic implements [fleet.Control].
func (r *Roster) Traffic(_ context.Context, node, incarnation string, bytes map[string]uint64) (map[string]string, error) {
	m, err := r.known(node, incarnation)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for workspace, n := range bytes {
		of := r.bytes[workspace]
		if of == nil {
			of = &sent{}
			r.bytes[workspace] = of
			r.Quotas.Meter(workspace, of.sum.Load)
		}
		of.sum.Add(n - min(n, m.bytes[workspace]))
		m.bytes[workspace] = n
	}
	barred := map[string]string{}
	for workspace := range r.bytes {
		if why := r.Quotas.Barred(workspace); why != "" {
			barred[workspace] = why
		}
	}
	return barred, nil
}

// known returns a node whose present process has joined.
func (r *Roster) known(id, incarnation string) (*member, error) {
	m := r.member(id)
	if m == nil || m.info.Incarnation != incarnation {
		return nil, fleet.ErrNotJoined
	}
	return m, nil
}

func (r *Roster) member(id string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[id]
}

func (r *Roster) members() (all []*member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.nodes {
		all = append(all, m)
	}
	return all
}

// Present reports whether a node has joined.
func (r *Roster) Present() bool { return len(r.members()) > 0 }

const (
	// tickEvery is how often leases are looked at.
	tickEvery = 250 * time.Millisecond
	// ownEvery is how often control makes sure that the records are still its own, and
	// ownTimeout is how long that may take.
	ownEvery, ownTimeout = 2 * time.Second, 5 * time.Second
)

// own makes sure that the records are still this control's. It is an error if they are not
// any more: then another one grants leases.
func (r *Roster) own(ctx context.Context) error {
	asked := time.Now()
	bounded, cancel := context.WithTimeout(ctx, ownTimeout)
	defer cancel()
	err := r.Store.Own(bounded)
	switch {
	case errors.Is(err, store.ErrTaken):
		return err
	case err == nil:
		r.sure.Store(&asked)
	case ctx.Err() == nil:
		slog.WarnContext(ctx, "the records are out of reach: leases are renewed without them for a time", "most", r.Grace, "err", err)
	}
	return nil
}

// Run ends leases that are over, until ctx ends.
func (r *Roster) Run(ctx context.Context) error {
	if err := r.expect(ctx); err != nil {
		return err
	}
	var rescues sync.WaitGroup
	defer rescues.Wait()
	if r.Copies != nil {
		rescues.Go(func() { r.rescue(ctx) })
		rescues.Go(func() { r.sweep(ctx) })
		rescues.Go(func() { r.saveAll(ctx) })
	}
	late := time.NewTimer(joinWait)
	defer late.Stop()
	tick, own := time.NewTicker(tickEvery), time.NewTicker(ownEvery)
	defer tick.Stop()
	defer own.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			if r.Present() {
				r.joining.Lock()
				if err := r.adopt(ctx, true); err != nil && ctx.Err() == nil {
					slog.ErrorContext(ctx, "what was begun before is not taken over yet", "err", err)
					late.Reset(time.Second)
				}
				r.joining.Unlock()
			} else {
				late.Reset(time.Second)
			}
		case <-own.C:
			if err := r.own(ctx); err != nil {
				return err
			}
		case now := <-tick.C:
			for _, l := range r.book.Tick(now) {
				if err := r.lose(ctx, l); err != nil && ctx.Err() == nil {
					slog.ErrorContext(ctx, "the loss of a node is not recorded yet", "node", l.Node, "err", err)
				}
			}
		}
	}
}

// lose says that others may have what a node had, whose lease is over for sure.
func (r *Roster) lose(ctx context.Context, l lease.Lapse) error {
	err := r.Store.LoseNode(ctx, l.Node, l.Epoch)
	if err != nil && doze.Public(err).Kind != doze.NotFound { // another process of control was first
		return err
	}
	slog.WarnContext(ctx, "a node is lost: its lease is over", "node", l.Node, "epoch", l.Epoch, "renewed", l.At)
	r.book.Release(l.Node)
	r.tally.losses.Add(1)
	r.mu.Lock()
	if m := r.nodes[l.Node]; m != nil && m.epoch == l.Epoch {
		delete(r.nodes, l.Node)
	}
	r.gones[l.Node] = true
	r.mu.Unlock()
	r.Crew.Remove(l.Node)
	r.lost.Ring()
	return nil
}

// expect takes up what an earlier process of control knew. Nodes may have leases of it, and
// sandboxes of lost nodes may have no other yet.
func (r *Roster) expect(ctx context.Context) error {
	all, err := r.Store.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range all {
		switch {
		case n.State == doze.NodeLost:
			r.setGone(n.ID)
		case r.Copies != nil && n.Leased:
			r.book.Expect(n.ID, n.Epoch)
		}
	}
	r.lost.Ring()
	return nil
}

// SetState changes what an operator wants of a node.
func (r *Roster) SetState(ctx context.Context, id string, to doze.NodeState) error {
	n, err := r.Store.Node(ctx, id)
	if err != nil {
		return err
	}
	if n.State == doze.NodeLost {
		return doze.Errorf(doze.Conflict, "the node %s is lost: it is ready again when it joins", id)
	}
	if err := r.Store.SetNodeState(ctx, id, to); err != nil {
		return err
	}
	r.mu.Lock()
	if m := r.nodes[id]; m != nil {
		m.state = to
	}
	r.mu.Unlock()
	r.Crew.Update(id, func(m *crew.Member) { m.Open = to == doze.NodeReady })
	return nil
}
