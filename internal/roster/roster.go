// Package roster keeps the nodes of a platform. It is what a node asks of control, it
// grants and ends leases, and it serves operators. What nodes have is in package crew.
package roster

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
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
	// TellNode tells a node what its process before knew, as [control.Link] says.
	TellNode(ctx context.Context, n fleet.Node, has func(machine string) bool, among []string) error
	// Accept records reports.
	Accept(ctx context.Context, reports []fleet.Report) error
	// Inform says what the nodes can do, together.
	Inform(info fleet.NodeInfo)
	// Lodgers, LodgerNamed and InTurn are as [control.Link] says.
	Lodgers(ctx context.Context, at func(machine string) bool, among []string, unplaced bool) ([]control.Lodger, error)
	LodgerNamed(ctx context.Context, workspace, name string) (control.Lodger, error)
	InTurn(ctx context.Context, of control.Lodger, do func(ctx context.Context, o fleet.Order, last control.Use) error) error
	// Residents, Forsake and Relent are as [control.Link] says.
	Residents(ctx context.Context, at func(machine string) bool) ([]control.Lodger, error)
	Forsake(ctx context.Context, of control.Lodger, why error) error
	Relent(ctx context.Context, of control.Lodger) error
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
	// Removed hears of a node that is off the records. nil: nobody has to.
	Removed func(id string)
	// TTL is how long a lease is good.
	TTL time.Duration
	// Grace is for how long control may grant leases without its records.
	Grace time.Duration
	// Copies are what the bucket has of machines; nil: there is no bucket, and nobody can have
	// what another node had.
	Copies Copies
	// FileGrace is for how long nothing has needed a file that is dropped from the bucket; 0: a day.
	FileGrace time.Duration
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

	book *lease.Book
	// joins has a lock for each node that joins, and for what all of them do one after the
	// other. A node that is slow to join keeps no other one from its lease.
	joins   *keylock.Locks
	adopted chan struct{} // closed when Adopt is done

	mu    sync.Mutex
	nodes map[string]*member // guarded by mu; by id
	keys  map[string][]byte  // guarded by mu; the seal keys of nodes that have joined, or are about to
	bytes map[string]*sent   // guarded by mu; by workspace
	// taking has a lock for each node. What decides which machines it still has holds it: its loss,
	// its return, and a rescue of what it had.
	taking *keylock.Locks
	gones  map[string]bool           // guarded by mu; nodes that are lost, whose sandboxes are not all elsewhere
	lost   bell.Bell                 // rings when a node is lost
	sure   atomic.Pointer[time.Time] // when the records were this control's for sure
	// leased says which nodes know of a lease that ends, as it is recorded; guarded by mu.
	leased map[string]bool
	// pending are machines that have a place, and have not begun there; guarded by mu.
	pending map[string]bool
	// parting are machines that their nodes may keep from waking, since they are to move;
	// guarded by mu.
	parting map[string]bool
	// purging are machines that a node was told to end its own copies of, by node, until it
	// renews: it has done so then. Guarded by mu.
	purging map[string]map[string]bool
	tally   tally
	// barred says why workspaces may send nothing more, as it was at barredAt; guarded by mu.
	barred   map[string]string
	barredAt time.Time
	// belongings are what nodes said that they have, since the records were restored; guarded by mu.
	belongings map[string]belongings
	limited    bool // the crew knows the limits of all workspaces; used by admit alone
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
	// here ends when the node is lost; lost ends it.
	here context.Context //nolint:containedctx // calls of others end with it
	lost context.CancelCauseFunc
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
		nodes: map[string]*member{}, keys: map[string][]byte{}, joins: keylock.New(), bytes: map[string]*sent{}, gones: map[string]bool{}, leased: map[string]bool{}, pending: map[string]bool{}, parting: map[string]bool{}, purging: map[string]map[string]bool{}, lost: bell.New(), taking: keylock.New(),
		belongings: map[string]belongings{},
	}
	r.sure.Store(&r.Began)
	return r
}

// Join implements [fleet.Control].
func (r *Roster) Join(ctx context.Context, n fleet.NodeInfo) (_ fleet.Lease, err error) {
	if n.ID == "" || n.Incarnation == "" || n.URL == "" {
		return fleet.Lease{}, doze.Errorf(doze.Invalid, "a node that joins says its id, its incarnation and its address")
	}
	if siblings.Have("/platform/nodes/{}", n.ID) {
		return fleet.Lease{}, doze.Errorf(doze.Invalid, "no node can have the id %s, which is a path of the API", n.ID)
	}
	if r.Check != nil {
		if err := r.Check(ctx, n.ID, n.URL); err != nil {
			return fleet.Lease{}, err
		}
	}
	_, release, err := r.joins.Take(ctx, turnOf(n.ID))
	if err != nil {
		return fleet.Lease{}, err
	}
	defer release()
	record, home, err := r.admit(ctx, n)
	if err != nil {
		return fleet.Lease{}, err
	}
	defer func() {
		if err != nil {
			r.unadmit(n.ID)
		}
	}()
	to := r.Dial(n)
	has := func(machine string) bool { return r.Crew.Of(crew.Machine, machine) == n.ID }
	if err = r.believe(ctx, n.ID, n.Machines, n.Held); err != nil {
		return fleet.Lease{}, err
	}
	var among []string // the home has what has no place besides
	if n.ID != home {
		among = r.machines(n.ID)
	}
	if err = r.Control.TellNode(ctx, to, has, among); err != nil {
		return fleet.Lease{}, err
	}
	l, err := r.welcome(ctx, record, n.Machines, n.Held, n.Leased, func(record store.Node) {
		m := &member{info: n, epoch: record.Epoch, state: record.State, bytes: map[string]uint64{}, heard: time.Now(), seq: n.Seq}
		r.mu.Lock()
		if was := r.nodes[n.ID]; was != nil { // it was not lost, so calls to it go on
			m.here, m.lost = was.here, was.lost
		} else {
			m.here, m.lost = context.WithCancelCause(context.WithoutCancel(ctx))
		}
		r.nodes[n.ID] = m
		r.mu.Unlock()
		for _, machine := range n.Leaving { // a control before this one moved them, or this one does
			r.part(machine, true)
		}
		r.Crew.Put(crew.Member{Info: n, Node: to, Open: record.State == doze.NodeReady, Load: fleet.Load{Driver: n.Driver, Memory: n.Memory}})
		r.Met(n)
		r.inform(n)
	})
	if err != nil {
		return fleet.Lease{}, err
	}
	slog.InfoContext(ctx, "a node joined", "node", n.ID, "url", n.URL, "version", n.Version, "epoch", l.Epoch)
	return l, r.adopt(ctx, false)
}

// Reclaim implements [fleet.Control].
func (r *Roster) Reclaim(ctx context.Context, node string, machines []string, held map[string]fleet.Held) (fleet.Lease, error) {
	_, release, err := r.joins.Take(ctx, turnOf(node))
	if err != nil {
		return fleet.Lease{}, err
	}
	defer release()
	record, err := r.Store.Node(ctx, node)
	if doze.Public(err).Kind == doze.NotFound {
		gone, err := r.overtaken(ctx, node, machines, held)
		return fleet.Lease{Gone: gone}, err
	}
	if err != nil {
		return fleet.Lease{}, err
	}
	return r.welcome(ctx, record, machines, held, true, func(store.Node) {}) // it has waited for a lease
}

// welcome grants a lease to a node that is here again, and says which of its machines other
// nodes have. The node keeps the rest: no rescue takes them. It may have been lost while
// control told it things, so its record is read anew. here is called before the lease is granted.
func (r *Roster) welcome(ctx context.Context, n store.Node, machines []string, held map[string]fleet.Held, leased bool, here func(store.Node)) (fleet.Lease, error) {
	_, release, err := r.taking.Take(ctx, n.ID)
	if err != nil {
		return fleet.Lease{}, err
	}
	defer release()
	record, err := r.Store.PutNode(ctx, n.ID, n.Body, time.Now())
	if err != nil {
		return fleet.Lease{}, err
	}
	// A node that was lost since it asked may have got machines after it made the list.
	if record.Epoch != n.Epoch || r.book.Over(n.ID, record.Epoch) {
		return fleet.Lease{}, errLosing
	}
	restored, err := r.Store.Restored(ctx)
	if err != nil {
		return fleet.Lease{}, err
	}
	find := r.gone
	if restored {
		find = func(ctx context.Context, node string, machines []string) ([]string, error) {
			return r.overtaken(ctx, node, machines, held)
		}
	}
	gone, err := find(ctx, n.ID, machines)
	if err != nil {
		return fleet.Lease{}, err
	}
	purging := map[string]bool{}
	for _, machine := range gone {
		purging[machine] = true
	}
	r.mu.Lock()
	r.purging[n.ID] = purging // before anything can come to the node
	r.mu.Unlock()
	here(record)
	l, err := r.grant(ctx, n.ID, record.Epoch, leased)
	if err != nil {
		return fleet.Lease{}, err
	}
	l.Gone = gone
	if restored {
		if err := r.remember(ctx, n.ID, machines, gone, held); err != nil {
			return fleet.Lease{}, err
		}
	} else {
		r.missing(n.ID, machines)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.gones, n.ID)
	return l, nil
}

// missing takes note of machines that have their place on a node, came from another one, and
// are not among those that the node has. A control before this one may have placed them.
func (r *Roster) missing(node string, has []string) {
	if r.Copies == nil {
		return
	}
	there := map[string]bool{}
	for _, machine := range has {
		there[machine] = true
	}
	for _, p := range r.Crew.On(node) {
		if p.Kind == crew.Machine && p.Epoch > firstEpoch && !there[p.ID] {
			r.pend(p.ID, true)
		}
	}
	r.lost.Ring()
}

// gone returns the machines of a node's list that it is to end. Other nodes have them, or
// nobody has: they were deleted while the node was away. Records say so of what has no place.
func (r *Roster) gone(ctx context.Context, node string, machines []string) (gone []string, err error) {
	var placeless []string
	for _, machine := range machines {
		switch {
		case r.Crew.Of(crew.Machine, machine) != node:
			gone = append(gone, machine)
		case r.Crew.Epoch(crew.Machine, machine) < firstEpoch:
			placeless = append(placeless, machine)
		}
	}
	named, err := r.Store.Machines(ctx, placeless)
	for _, machine := range placeless {
		if err == nil && !named[machine] {
			gone = append(gone, machine)
		}
	}
	return gone, err
}

// purges reports whether a node may be about to end its own copy of a machine.
func (r *Roster) purges(node, machine string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.purging[node][machine]
}

// errLosing is for a node whose lease ended while it asked for another one.
var errLosing = doze.Errorf(doze.Unavailable, "the lease of the node has just ended: try again in a moment")

// errLost ends calls to a node that is lost.
var errLost = doze.Errorf(doze.Unavailable, "the node was lost meanwhile")

// The turns that nodes take one after the other.
const (
	admitTurn = "admit"
	adoptTurn = "adopt"
)

// turnOf is the turn of a node.
func turnOf(node string) string { return "node/" + node }

// admit records a node, and returns which one is the home of everything that has no place.
// One that opens other secrets than those before it could run nothing that moves there.
func (r *Roster) admit(ctx context.Context, n fleet.NodeInfo) (_ store.Node, home string, err error) {
	_, release, err := r.joins.Take(ctx, admitTurn)
	if err != nil {
		return store.Node{}, "", err
	}
	defer release()
	if err := r.sameKey(n); err != nil {
		return store.Node{}, "", err
	}
	if err := r.limit(ctx); err != nil {
		return store.Node{}, "", err
	}
	if home, err = r.Store.Setting(ctx, HomeSetting); err != nil {
		return store.Node{}, "", err
	}
	if home == "" {
		home = n.ID
		if err := r.Store.SetSetting(ctx, HomeSetting, n.ID); err != nil {
			return store.Node{}, "", err
		}
		r.Crew.SetHome(n.ID)
	}
	record, err := r.Store.PutNode(ctx, n.ID, store.NodeBody{URL: n.URL, Version: n.Version, Driver: n.Driver, Memory: n.Memory}, time.Now())
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.keys[n.ID] = n.SealKey
	}
	return record, home, err
}

// limit has the crew know the limits that operators set before this process began. It hears of
// later ones as nodes do.
func (r *Roster) limit(ctx context.Context) error {
	if r.limited {
		return nil
	}
	all, err := r.Store.Limits(ctx)
	if err != nil {
		return err
	}
	r.Crew.Limit("", r.Quotas.Defaults)
	for workspace, own := range all {
		r.Crew.Limit(workspace, own)
	}
	r.limited = true
	return nil
}

// sameKey is an error if a node opens other secrets than the other ones.
func (r *Roster) sameKey(n fleet.NodeInfo) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, key := range r.keys {
		if id != n.ID && !bytes.Equal(key, n.SealKey) {
			return doze.Errorf(doze.Conflict,
				"the node %s has another egress.key than the nodes before it: join it with a token, or copy the file from the data directory of control", n.ID)
		}
	}
	return nil
}

// unadmit forgets the key of a node that could not join, and is not here.
func (r *Roster) unadmit(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[node] == nil {
		delete(r.keys, node)
	}
}

// machines are those that have their place on a node.
func (r *Roster) machines(node string) []string {
	all := []string{}
	for _, p := range r.Crew.On(node) {
		if p.Kind == crew.Machine {
			all = append(all, p.ID)
		}
	}
	return all
}

// take gives a machine of a lost node to another one. If the node came back meanwhile, the
// machine stays there, and taken is false.
func (r *Roster) take(ctx context.Context, machine, from, to string) (taken bool, err error) {
	_, release, err := r.taking.Take(ctx, from)
	if err != nil {
		return false, err
	}
	defer release()
	if lost, _, _ := r.unsettledOf(from, machine); !lost {
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
	_, release, err := r.joins.Take(ctx, adoptTurn)
	if err != nil {
		return err
	}
	defer release()
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
	if r.Copies == nil || !r.others(id) {
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
		if !r.book.Grant(id, epoch, time.Now()) {
			return fleet.Lease{}, errLosing
		}
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
	delete(r.purging, n.Node)
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
func (r *Roster) ImageRefs(ctx context.Context) ([]string, error) {
	if err := r.needCounting(ctx); err != nil {
		return nil, err
	}
	return r.Store.ImageRefs(ctx)
}

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
	barred := maps.Clone(r.bars())
	for workspace := range bytes { // it may have sent too much just now
		if why := r.Quotas.Barred(workspace); why != "" {
			barred[workspace] = why
		} else {
			delete(barred, workspace)
		}
	}
	return barred, nil
}

// barsEvery is how long nodes hear the same of workspaces that they do not name. Each node tells
// of traffic every second, and control would look at all workspaces for each of them.
const barsEvery = 250 * time.Millisecond

// bars are why workspaces may send nothing more, as it was a moment ago. Preconditions: r.mu is held.
func (r *Roster) bars() map[string]string {
	if r.barred == nil || time.Since(r.barredAt) >= barsEvery {
		r.barred, r.barredAt = map[string]string{}, time.Now()
		for workspace := range r.bytes {
			if why := r.Quotas.Barred(workspace); why != "" {
				r.barred[workspace] = why
			}
		}
	}
	return r.barred
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

// others reports whether another node than one has joined.
func (r *Roster) others(than string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := 0
	if r.nodes[than] != nil {
		most = 1
	}
	return len(r.nodes) > most
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
	if restored, err := r.Store.Restored(ctx); err != nil {
		return err
	} else if restored {
		slog.WarnContext(ctx, "the records were restored, and nobody has settled them: nothing expires, and sandboxes of lost nodes wait. When all nodes are here, run doze node settle")
	}
	var rescues sync.WaitGroup
	defer rescues.Wait()
	ctx, stop := context.WithCancel(ctx) // they end also if the records are another control's
	defer stop()
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
				if err := r.adopt(ctx, true); err != nil && ctx.Err() == nil {
					slog.ErrorContext(ctx, "what was begun before is not taken over yet", "err", err)
					late.Reset(time.Second)
				}
			} else {
				late.Reset(time.Second)
			}
		case <-own.C:
			if err := r.own(ctx); err != nil {
				return err
			}
		case now := <-tick.C:
			for _, l := range r.book.Tick(now) {
				err := r.lose(ctx, l)
				if errors.Is(err, store.ErrTaken) {
					return err
				}
				if err != nil && ctx.Err() == nil {
					slog.ErrorContext(ctx, "the loss of a node is not recorded yet", "node", l.Node, "err", err)
				}
			}
		}
	}
}

// lose says that others may have what a node had, whose lease is over for sure.
func (r *Roster) lose(ctx context.Context, l lease.Lapse) error {
	_, release, err := r.taking.Take(ctx, l.Node)
	if err != nil {
		return err
	}
	defer release()
	if !r.book.Over(l.Node, l.Epoch) { // it is here again, in another epoch
		return nil
	}
	err = r.Store.LoseNode(ctx, l.Node, l.Epoch)
	if err != nil && doze.Public(err).Kind != doze.NotFound { // another process of control was first
		return err
	}
	slog.WarnContext(ctx, "a node is lost: its lease is over", "node", l.Node, "epoch", l.Epoch, "renewed", l.At)
	r.dismiss(l.Node, l.Epoch)
	return nil
}

// dismiss has a node count as lost in an epoch, which the records say already. Preconditions: the turn
// of taking from the node is held.
func (r *Roster) dismiss(node string, epoch uint64) {
	r.book.Release(node)
	r.tally.losses.Add(1)
	r.mu.Lock()
	if m := r.nodes[node]; m != nil && m.epoch == epoch {
		delete(r.nodes, node)
		delete(r.keys, node)
		m.lost(errLost)
	}
	r.gones[node] = true
	r.mu.Unlock()
	r.Crew.Remove(node)
	r.lost.Ring()
}

// expect takes up what an earlier process of control knew. Nodes may have leases of it, and
// sandboxes of lost nodes may have no other yet.
func (r *Roster) expect(ctx context.Context) error {
	all, err := r.Store.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range all {
		r.Crew.SetDriver(n.ID, n.Body.Driver)
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
