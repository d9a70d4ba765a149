package planetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// Shelf is a bucket in memory, which nodes share: what is left of machines, by UID.
type Shelf struct {
	mu  sync.Mutex
	all map[string]shelved // guarded by mu
	// volumes are what is left of disks, by id; guarded by mu
	volumes map[string]Disk
	// snapshots are those that were saved, by id; guarded by mu
	snapshots map[string]string
	// images are those that were saved, by reference; guarded by mu
	images map[string][]byte
	// claims are the newest epochs that nodes claimed, by name in the bucket; guarded by mu
	claims map[string]uint64
}

// shelved is a copy of a machine.
type shelved struct {
	machine Machine
	at      time.Time
}

// NewShelf returns an empty shelf.
func NewShelf() *Shelf {
	return &Shelf{all: map[string]shelved{}, volumes: map[string]Disk{}, snapshots: map[string]string{}, images: map[string][]byte{}, claims: map[string]uint64{}}
}

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
	for _, v := range n.Machines[uid].Order.Volumes {
		if d, there := n.Disks[v.ID]; there {
			n.Shelf.volumes[v.ID] = d
		}
	}
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
	delete(n.claims, uid)
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
	if err := n.Shelf.claim(o.UID, o.Epoch); err != nil {
		return time.Time{}, err
	}
	if n.Machines[o.UID] == nil {
		for _, v := range o.Volumes {
			if v.ID != "" {
				if err := n.Shelf.claim(fleet.VolumeObject(v.ID), v.Epoch); err != nil {
					return time.Time{}, err
				}
				d := n.Shelf.volumes[v.ID]
				d.Epoch = v.Epoch
				n.Disks[v.ID] = d
			}
		}
		m := of.machine
		m.Order = o
		n.Machines[o.UID] = &m
		if m.Phase == doze.Archived && o.Archived {
			return of.at, nil
		}
		n.Move(o.UID, doze.Running, "")
	}
	return of.at, nil
}

// Held returns what the node knows of its machines and disks, as [fleet.NodeInfo] says.
func (n *Node) Held() map[string]fleet.Held {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	all := map[string]fleet.Held{}
	for uid, m := range n.Machines {
		all[uid] = fleet.Held{Epoch: m.Order.Epoch, Workspace: m.Order.Workspace, Name: m.Order.Name}
	}
	for id, d := range n.Disks {
		all[fleet.VolumeObject(id)] = fleet.Held{Epoch: max(firstEpoch, d.Epoch)}
	}
	return all
}

// Has reports whether there is a copy of a machine, a snapshot or an image.
func (s *Shelf) Has(_ context.Context, uid string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.all[uid]
	if id, of := strings.CutPrefix(uid, fleet.SnapshotObject("")); of {
		_, there = s.snapshots[id]
	}
	if id, of := strings.CutPrefix(uid, fleet.VolumeObject("")); of {
		_, there = s.volumes[id]
	}
	for ref := range s.images {
		there = there || fleet.ImageObject(ref) == uid
	}
	return there, nil
}

// Claimed returns the newest epoch in which a node has claimed something.
func (s *Shelf) Claimed(_ context.Context, object string) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[object], nil
}

// claim makes an epoch the newest of something. An older one is an error. Preconditions: mu is held.
func (s *Shelf) claim(object string, epoch uint64) error {
	if epoch < s.claims[object] {
		return fmt.Errorf("epoch %d of %s was claimed, which is newer than %d", s.claims[object], object, epoch)
	}
	s.claims[object] = epoch
	return nil
}

// Archived reports whether the copy of a machine has an archive.
func (s *Shelf) Archived(_ context.Context, uid string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, there := s.all[uid]
	return there && of.machine.Phase == doze.Archived, nil
}

// SaveVolume implements [fleet.Mover].
func (n *Node) SaveVolume(_ context.Context, id string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	d, there := n.Disks[id]
	switch {
	case n.Shelf == nil:
		return errNoShelf
	case n.fail["save"] != nil:
		return n.fail["save"]
	case !there:
		return doze.Errorf(doze.NotFound, "no such disk")
	case n.attached(id):
		return doze.Errorf(doze.Unavailable, "a sandbox has the disk")
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	n.Shelf.volumes[id] = d
	return nil
}

// attached reports whether a machine has a disk. Preconditions: Mu is held.
func (n *Node) attached(disk string) bool {
	for _, m := range n.Machines {
		if slices.ContainsFunc(m.Order.Volumes, func(v fleet.Volume) bool { return v.ID == disk }) {
			return true
		}
	}
	return false
}

// SaveSnapshot implements [fleet.Mover].
func (n *Node) SaveSnapshot(_ context.Context, id string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	memory, there := n.Saved[id]
	switch {
	case n.Shelf == nil:
		return errNoShelf
	case n.fail["save"] != nil:
		return n.fail["save"]
	case !there:
		return doze.Errorf(doze.NotFound, "no such snapshot")
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	n.Shelf.snapshots[id] = memory
	return nil
}

// SaveBuilt implements [fleet.Mover].
func (n *Node) SaveBuilt(_ context.Context, ref string) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	raw, there := n.Image(ref)
	switch {
	case n.Shelf == nil:
		return errNoShelf
	case n.fail["save"] != nil:
		return n.fail["save"]
	case !there:
		return doze.Errorf(doze.NotFound, "no such image")
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	n.Shelf.images[ref] = raw
	return nil
}

// brought is an error unless a node that may have an image can have it: it made the image, or the
// bucket has that. Preconditions: Mu is held.
func (n *Node) brought(ref string) error {
	if _, here := n.Image(ref); here || n.Shelf == nil || !strings.HasPrefix(ref, doze.BuiltPrefix) {
		return nil
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	if n.Shelf.images[ref] == nil {
		return doze.Errorf(doze.Unavailable, "the bucket has no such image")
	}
	return nil
}

// LeaveVolume implements [fleet.Mover].
func (n *Node) LeaveVolume(_ context.Context, id string, epoch uint64) error {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if max(firstEpoch, n.Disks[id].Epoch) < epoch {
		delete(n.Disks, id)
	}
	return nil
}

// arrive has the disks of an order that came from other nodes. Preconditions: Mu is held.
func (n *Node) arrive(o *fleet.Order) {
	if n.Shelf == nil {
		return
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	for _, v := range o.Volumes {
		if d, there := n.Shelf.volumes[v.ID]; there && n.Disks[v.ID].Epoch < v.Epoch && v.Epoch > firstEpoch {
			d.Epoch = v.Epoch
			n.Disks[v.ID] = d
		}
	}
}

// arriveTemplate has a disk that never changes and that another node had. Preconditions: Mu is held.
func (n *Node) arriveTemplate(id string) {
	if n.Shelf == nil {
		return
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	_, here := n.Disks[id]
	if d, there := n.Shelf.volumes[id]; there && !here {
		n.Disks[id] = d
	}
}

// arriveSnapshot has the snapshot of an order that another node made. Preconditions: Mu is held.
func (n *Node) arriveSnapshot(o *fleet.Order) {
	if n.Shelf == nil {
		return
	}
	n.Shelf.mu.Lock()
	defer n.Shelf.mu.Unlock()
	if memory, there := n.Shelf.snapshots[o.From]; there {
		n.Saved[o.From] = memory
	}
}

// firstEpoch is that of a disk which was never on another node.
const firstEpoch = 2

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
