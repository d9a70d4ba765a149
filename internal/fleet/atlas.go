package fleet

import (
	"context"
	"encoding/json"
	"sync"
)

// An Atlas says on which node a machine is, in memory. Control writes it, and edges
// follow: no request waits for a database. It is safe for concurrent use.
type Atlas struct {
	mu   sync.RWMutex
	home string                       // guarded by mu; the node of every machine that has no place of its own
	at   map[string]string            // guarded by mu; the id of a node, by machine
	tell func(machine string, at any) // guarded by mu

	changed chan struct{} // guarded by mu; closed by the next change
}

// homeKey is the key under which the home is told. No machine has it.
const homeKey = ""

// NewAtlas returns an atlas without a place.
func NewAtlas() *Atlas {
	return &Atlas{at: map[string]string{}, tell: func(string, any) {}, changed: make(chan struct{})}
}

// Node returns the id of the node of a machine. It is empty if there is none.
func (a *Atlas) Node(machine string) string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if node, ok := a.at[machine]; ok {
		return node
	}
	return a.home
}

// Await waits until a machine is not on a node any more, and reports whether that is so.
func (a *Atlas) Await(ctx context.Context, machine, node string) bool {
	for {
		a.mu.RLock()
		now, ok := a.at[machine]
		if !ok {
			now = a.home
		}
		changed := a.changed
		a.mu.RUnlock()
		if now != node {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Put says on which node a machine is from now on.
func (a *Atlas) Put(machine, node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(machine, node)
}

// SetHome says which node has every machine without a place of its own. A platform has
// such machines if it began with one node.
func (a *Atlas) SetHome(node string) { a.Put(homeKey, node) }

// Drop forgets a machine that is gone.
func (a *Atlas) Drop(machine string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.at[machine]; ok {
		delete(a.at, machine)
		a.tell(machine, nil)
	}
}

// Tell calls fn for every place, and then for each change. Without a value, a machine is
// gone. fn must not block.
func (a *Atlas) Tell(fn func(machine string, at any)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tell = fn
	if a.home != "" {
		fn(homeKey, a.home)
	}
	for machine, node := range a.at {
		fn(machine, node)
	}
}

// Apply takes over what another atlas told.
func (a *Atlas) Apply(machine string, at json.RawMessage) error {
	if at == nil {
		a.Drop(machine)
		return nil
	}
	var node string
	if err := json.Unmarshal(at, &node); err != nil {
		return err
	}
	a.Put(machine, node)
	return nil
}

// put is Put. Preconditions: a.mu is held.
func (a *Atlas) put(machine, node string) {
	if machine == homeKey {
		a.home = node
	} else if node == a.home {
		// It would be found without.
		delete(a.at, machine)
	} else {
		a.at[machine] = node
	}
	a.tell(machine, node)
	close(a.changed)
	a.changed = make(chan struct{})
}
