package planetest

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// Shelf is a bucket in memory, which nodes share: what is left of machines, by UID.
type Shelf struct {
	mu  sync.Mutex
	all map[string]shelved // guarded by mu
}

// shelved is a copy of a machine.
type shelved struct {
	machine Machine
	at      time.Time
}

// NewShelf returns an empty shelf.
func NewShelf() *Shelf { return &Shelf{all: map[string]shelved{}} }

// errNoShelf is for a node without a bucket.
var errNoShelf = doze.Errorf(doze.Unsupported, "there is no bucket")

// Shelve copies a machine, as a node does with one that sleeps.
func (n *Node) Shelve(uid string) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.shelve(uid)
}

// shelve is Shelve. Preconditions: mu is held.
func (n *Node) shelve(uid string) {
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	n.Shelf.all[uid] = shelved{*n.Machines[uid], time.Now()}
}

// Depart implements [fleet.Mover].
func (n *Node) Depart(_ context.Context, uid string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	switch {
	case n.Shelf == nil:
		return errNoShelf
	case n.Machines[uid] == nil:
		return doze.Wrap(fleet.ErrMoved, doze.NotFound, "no such sandbox")
	case n.fail["depart "+uid] != nil:
		return n.fail["depart "+uid]
	}
	n.shelve(uid)
	return nil
}

// Return implements [fleet.Mover].
func (n *Node) Return(context.Context, string) error { return nil }

// Leave implements [fleet.Mover].
func (n *Node) Leave(_ context.Context, uid string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	delete(n.Machines, uid)
	return nil
}

// Revive implements [fleet.Mover].
func (n *Node) Revive(_ context.Context, o fleet.Order, _ time.Time, _ bool) (time.Time, error) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if n.Shelf == nil {
		return time.Time{}, errNoShelf
	}
	if err := n.fail["revive"]; err != nil {
		return time.Time{}, err
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	of, there := n.Shelf.all[o.UID]
	if !there {
		return time.Time{}, doze.Errorf(doze.NotFound, "the bucket has nothing of it")
	}
	if n.Machines[o.UID] == nil {
		m := of.machine
		m.Order = o
		n.Machines[o.UID] = &m
		n.Move(o.UID, doze.Running, "")
	}
	return of.at, nil
}

// Has returns the UIDs of all machines.
func (n *Node) Has() map[string]bool {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	all := map[string]bool{}
	for uid := range maps.Keys(n.Machines) {
		all[uid] = true
	}
	return all
}
