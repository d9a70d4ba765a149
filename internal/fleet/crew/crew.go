// Package crew makes one node of many. It places what is new, records where, and passes
// each call to the node that has what the call is about. What no node can be asked about
// has an error with [fleet.ErrUnreachable] in it, and counts as there.
package crew

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/placement"
)

// A Kind is a kind of thing that has a place.
type Kind string

// The kinds of things. The ids of each are never reused.
const (
	Machine  Kind = "machine"
	Snapshot Kind = "snapshot"
	Volume   Kind = "volume"
	Builder  Kind = "builder" // by the id of its workspace
	Image    Kind = "image"   // that was built or loaded, by its reference
)

// A Place says which node has a thing.
type Place struct {
	Kind Kind
	ID   string
	Node string
	// Epoch grows with each node that gets the thing.
	Epoch uint64
}

// A Ledger records places. What a method returned without an error outlasts a crash.
type Ledger interface {
	// Places returns all places that are recorded.
	Places(ctx context.Context) ([]Place, error)
	// Put records a place, or another node for a thing that has one.
	Put(ctx context.Context, p Place) error
	// Remove forgets the place of a thing that is gone. One that has none is no error.
	Remove(ctx context.Context, k Kind, id string) error
}

// A Member is a node of a crew.
type Member struct {
	Info fleet.NodeInfo
	Node fleet.Node
	// Open says that it takes what is new.
	Open bool
	Load fleet.Load

	images map[string]bool // of Load
}

// thing is the key of a place.
type thing struct {
	kind Kind
	id   string
}

type things map[thing]struct{}

// A Crew is all nodes of a platform. It is safe for concurrent use.
type Crew struct {
	ledger Ledger
	atlas  *fleet.Atlas // what edges know

	mu      sync.Mutex
	home    string                 // guarded by mu; the node of all things without a place
	members map[string]*Member     // guarded by mu; by the id of the node
	places  map[thing]Place        // guarded by mu; changed by settle and unsettle alone
	held    map[string]things      // guarded by mu; the keys of places, by node
	drivers map[string]string      // guarded by mu; by node, also those that are away; as machine.Traits names it
	claimed claims                 // guarded by mu
	limits  map[string]doze.Limits // guarded by mu; by workspace, the empty one has the defaults
	volumes map[string]*copied     // guarded by mu; by volume
	saved   map[thing]bool         // guarded by mu; what never changes, and the bucket has
	lent    map[loan]int           // guarded by mu; nodes that may have snapshots and images of others now
	least   uint64                 // guarded by mu; epochs that machines and volumes get with another node are no lower
}

var _ fleet.Node = (*Crew)(nil)

// Open returns a crew without members. home is the node that has all things without a
// place, and atlas learns where machines are.
func Open(ctx context.Context, l Ledger, home string, atlas *fleet.Atlas) (*Crew, error) {
	all, err := l.Places(ctx)
	if err != nil {
		return nil, err
	}
	c := &Crew{ledger: l, atlas: atlas, members: map[string]*Member{}, places: map[thing]Place{}, held: map[string]things{}, drivers: map[string]string{}, claimed: newClaims(), limits: map[string]doze.Limits{}, volumes: map[string]*copied{}, saved: map[thing]bool{}, lent: map[loan]int{}}
	c.SetHome(home)
	for _, p := range all {
		c.settle(p)
		if p.Kind == Machine {
			atlas.Put(p.ID, p.Node)
		}
	}
	return c, nil
}

// SetHome says which node has all things without a place: the first one that joined, or
// another one when no such things are left.
func (c *Crew) SetHome(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.home = id; id != "" {
		c.atlas.SetHome(id)
	}
}

// SetLeast says which epoch a machine or a volume has at least that gets another node. Records that
// were restored do not know which epochs were given since.
func (c *Crew) SetLeast(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.least = epoch
}

// Home returns the node of all things without a place, or nothing before one joined.
func (c *Crew) Home() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.home
}

// Put adds a member, or replaces the one with its id.
func (c *Crew) Put(m Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.images = set(m.Load.Images)
	c.members[m.Info.ID] = &m
	c.drivers[m.Info.ID] = m.Load.Driver
}

// SetDriver says what drives the sandboxes of a node that may be away, if that is known.
func (c *Crew) SetDriver(node, driver string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drivers[node] = driver
}

// Driver returns what drives the sandboxes of a node, or nothing if that is not known.
func (c *Crew) Driver(node string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drivers[node]
}

// Discard forgets a node that is off the records.
func (c *Crew) Discard(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.members, node)
	delete(c.drivers, node)
}

// Remove removes a member. What it has counts as there, and cannot be reached.
func (c *Crew) Remove(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.members, id)
}

// Update changes what is known of a member, if it is there.
func (c *Crew) Update(id string, change func(*Member)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[id]; m != nil {
		change(m)
	}
}

// Members returns all members by id, in the order of the ids.
func (c *Crew) Members() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Member
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		all = append(all, *c.members[id])
	}
	return all
}

// Member returns the member with an id, if it is there.
func (c *Crew) Member(id string) (Member, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	if m == nil {
		return Member{}, false
	}
	return *m, true
}

// On returns what is recorded on a node. What has no place of its own is not in it.
func (c *Crew) On(node string) (all []Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.held[node] {
		all = append(all, c.places[t])
	}
	return all
}

// Machines returns the ids of all machines that have a place of their own.
func (c *Crew) Machines() (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t := range c.places {
		if t.kind == Machine {
			ids = append(ids, t.id)
		}
	}
	return ids
}

// Forget forgets the place of what is gone.
func (c *Crew) Forget(ctx context.Context, k Kind, id string) { c.forget(ctx, k, id) }

// Of returns the id of the node that has a thing, or has had it if the thing is gone. It
// is empty while no node has ever joined.
func (c *Crew) Of(k Kind, id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(k, id)
}

// of is Of. Preconditions: c.mu is held.
func (c *Crew) of(k Kind, id string) string { return cmp.Or(c.places[thing{k, id}].Node, c.home) }

// errAway is the end of a call about what is on a node that cannot be asked.
func errAway(node string) error {
	err := errors.Join(fleet.ErrUnreachable, errors.New("the node has not joined: "+node))
	return doze.Wrap(err, doze.Unavailable, "the node of the sandbox cannot be reached: try again")
}

// node returns the node of a thing.
func (c *Crew) node(k Kind, id string) (fleet.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.of(k, id)
	if m := c.members[at]; m != nil {
		return m.Node, nil
	}
	if at == "" {
		return nil, fleet.ErrNoNode
	}
	return nil, errAway(at)
}

// any returns some node and its id, one that takes what is new if there is one: what it is asked
// for, each can do.
func (c *Crew) any() (n fleet.Node, at string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		m := c.members[id]
		if m.Open {
			return m.Node, id, nil
		}
		if n == nil {
			n, at = m.Node, id
		}
	}
	if n == nil {
		return nil, "", fleet.ErrNoNode
	}
	return n, at, nil
}

// on makes a call that returns something to the node of a thing.
func on[Out any](c *Crew, k Kind, id string, do func(fleet.Node) (Out, error)) (out Out, err error) {
	n, err := c.node(k, id)
	if err != nil {
		return out, err
	}
	return do(n)
}

// tell makes a call to the node of a thing.
func (c *Crew) tell(k Kind, id string, do func(fleet.Node) error) error {
	n, err := c.node(k, id)
	if err != nil {
		return err
	}
	return do(n)
}

// all makes a call to every member at the same time, and joins the errors. A node that
// has things, or may have, and is not a member, is an error with [fleet.ErrUnreachable].
func (c *Crew) all(do func(id string, n fleet.Node) error) error {
	return c.some(func(*Member) bool { return true }, do)
}

// some is all for the members that asked reports. It is called with c.mu held.
func (c *Crew) some(asked func(*Member) bool, do func(id string, n fleet.Node) error) error {
	c.mu.Lock()
	nodes := map[string]fleet.Node{}
	for id, m := range c.members {
		if asked(m) {
			nodes[id] = m.Node
		}
	}
	away := map[string]bool{}
	for at := range c.held {
		away[at] = c.members[at] == nil
	}
	if c.home != "" {
		away[c.home] = c.members[c.home] == nil
	}
	c.mu.Unlock()
	var calls sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for id, n := range nodes {
		calls.Go(func() {
			if err := do(id, n); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	calls.Wait()
	for id, is := range away {
		if is {
			errs = append(errs, errAway(id))
		}
	}
	return errors.Join(errs...)
}

// split groups ids by their node, and asks each node for its own. What reachable nodes
// answer is returned with the error about the others.
func split[Out any](c *Crew, k Kind, ids []string, ask func(n fleet.Node, ids []string) (map[string]Out, error)) (map[string]Out, error) {
	by := map[string][]string{}
	c.mu.Lock()
	for _, id := range ids {
		at := c.of(k, id)
		by[at] = append(by[at], id)
	}
	c.mu.Unlock()
	var calls sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	out := map[string]Out{}
	for _, its := range by {
		calls.Go(func() {
			some, err := on(c, k, its[0], func(n fleet.Node) (map[string]Out, error) { return ask(n, its) })
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(out, some)
			errs = append(errs, err)
		})
	}
	calls.Wait()
	return out, errors.Join(errs...)
}

// stays reports whether an image has a node: nobody pulls what was built here.
func (c *Crew) stays(ref string) bool { return strings.HasPrefix(ref, doze.BuiltPrefix) }

// choose returns a node for something new.
func (c *Crew) choose(w placement.Want) (id string, n fleet.Node, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.chooseHeld(w)
}

// chooseHeld is choose. Preconditions: c.mu is held.
func (c *Crew) chooseHeld(w placement.Want) (id string, n fleet.Node, err error) {
	if len(c.members) == 0 {
		return "", nil, fleet.ErrNoNode
	}
	id, why, ok := placement.Choose(w, c.candidates())
	if !ok {
		return "", nil, doze.Errorf(doze.Unavailable, "%s", why.String())
	}
	return id, c.members[id].Node, nil
}

// Choose returns the id of a node for something that comes from elsewhere.
func (c *Crew) Choose(w placement.Want) (string, error) {
	id, _, err := c.choose(w)
	return id, err
}

// Allot is Choose for a machine. The machine counts there until the node says the next time what it has. Many that come at the same time do not all go to
// the same node.
func (c *Crew) Allot(machine, workspace string, w placement.Want) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, _, err := c.chooseHeld(w)
	if err == nil {
		c.claimed.put(machine, id, claim{memory: w.Memory, workspace: workspace, counted: true, arrives: true})
	}
	return id, err
}

// place returns the node of a new thing, and records it first. One that has a place keeps
// it: the call is a second one. Nodes in w.Not have refused it.
func (c *Crew) place(ctx context.Context, k Kind, id string, w placement.Want) (fleet.Node, error) {
	c.mu.Lock()
	was, placed := c.places[thing{k, id}]
	c.mu.Unlock()
	if placed && !slices.Contains(w.Not, was.Node) {
		return c.node(k, id)
	}
	at, n, err := c.choose(w)
	if err != nil {
		return nil, err
	}
	if err := c.put(ctx, Place{k, id, at, c.Epoch(k, id) + 1}); err != nil {
		return nil, err
	}
	if k == Machine {
		c.Arrived(id) // nobody asks for it before it is there
		c.mu.Lock()
		defer c.mu.Unlock()
		c.claimed.put(id, at, claim{memory: w.Memory})
	}
	return n, nil
}

// Move records that a node has a thing from now on. Edges hear of a machine with [Crew.Arrived]:
// until then, their requests to it wait.
func (c *Crew) Move(ctx context.Context, k Kind, id, to string) error {
	return c.put(ctx, Place{k, id, to, c.next(k, id)})
}

// next is the epoch of a thing with another node.
func (c *Crew) next(k Kind, id string) uint64 {
	next := c.Epoch(k, id) + 1
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(next, c.least)
}

// Found records that a node has had a thing since an epoch: records that were restored do not know
// it. Edges hear of a machine.
func (c *Crew) Found(ctx context.Context, k Kind, id, at string, epoch uint64) error {
	err := c.put(ctx, Place{k, id, at, epoch})
	if err == nil && k == Machine {
		c.Arrived(id)
	}
	return err
}

// put records a place.
func (c *Crew) put(ctx context.Context, p Place) error {
	if err := c.ledger.Put(ctx, p); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(p)
	return nil
}

// settle takes note of the place of a thing. Preconditions: c.mu is held.
func (c *Crew) settle(p Place) {
	c.unsettle(thing{p.Kind, p.ID})
	t := thing{p.Kind, p.ID}
	c.places[t] = p
	if c.held[p.Node] == nil {
		c.held[p.Node] = things{}
	}
	c.held[p.Node][t] = struct{}{}
	if p.Kind == Machine {
		c.claimed.move(p.ID, p.Node)
	}
}

// unsettle forgets the place of a thing, if it has one. Preconditions: c.mu is held.
func (c *Crew) unsettle(t thing) {
	was, ok := c.places[t]
	if !ok {
		return
	}
	delete(c.places, t)
	if delete(c.held[was.Node], t); len(c.held[was.Node]) == 0 {
		delete(c.held, was.Node)
	}
}

// Arrived has edges know where a machine is that moved, and has begun there.
func (c *Crew) Arrived(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.places[thing{Machine, id}]; ok {
		c.atlas.Put(id, p.Node)
	}
}

// Epoch is that in which the present node of a thing has it.
func (c *Crew) Epoch(k Kind, id string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(1, c.places[thing{k, id}].Epoch)
}

// forget takes a thing that is gone out of the ledger. A record that stays is harmless:
// the ids are never reused.
func (c *Crew) forget(ctx context.Context, k Kind, id string) {
	c.mu.Lock()
	_, placed := c.places[thing{k, id}]
	if k == Machine {
		c.claimed.drop(id)
	}
	c.mu.Unlock()
	if !placed {
		return
	}
	if err := c.ledger.Remove(ctx, k, id); err != nil {
		slog.WarnContext(ctx, "the place of what is gone stays on record", "kind", k, "id", id, "err", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsettle(thing{k, id})
	delete(c.saved, thing{k, id})
	switch k {
	case Volume:
		delete(c.volumes, id)
	case Machine:
		c.atlas.Drop(id)
	case Snapshot, Builder, Image:
	}
}

// candidates is what placement knows of the members. Preconditions: c.mu is held.
func (c *Crew) candidates() []placement.Node {
	nodes := make([]placement.Node, 0, len(c.members))
	for id, m := range c.members {
		var claimed share
		if s := c.claimed.on[id]; s != nil {
			claimed = *s
		}
		nodes = append(nodes, placement.Node{
			ID: id, Open: m.Open, Driver: m.Load.Driver, Memory: m.Load.Memory, Reserved: m.Load.Reserved + claimed.memory,
			Disk: m.Load.Disk, Processors: m.Load.Processors, Busy: m.Load.Busy + claimed.busy, Sandboxes: m.Load.Sandboxes, Has: func(image string) bool { return m.images[image] },
		})
	}
	return nodes
}

// count says that nothing is claimed for a machine any more.
func (c *Crew) count(machine string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.claimed.all[machine]; p != nil {
		p.counted = true
	}
}

// Beat takes over what a member says of its load.
func (c *Crew) Beat(id string, l fleet.Load) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[id]
	if m == nil {
		return
	}
	if !sane(l.Workspaces) {
		l.Workspaces = nil // the node is asked
	}
	if !slices.Equal(m.Load.Images, l.Images) {
		m.images = set(l.Images)
	}
	m.Load = l
	c.claimed.hear(id)
}

func set(all []string) map[string]bool {
	is := make(map[string]bool, len(all))
	for _, one := range all {
		is[one] = true
	}
	return is
}
