// Package placement decides on which node something new begins. It is pure: it asks
// nobody, and has no clock and no lock.
package placement

import (
	"cmp"
	"slices"

	"github.com/dozehq/doze"
)

// A Want is what something new needs of a node.
type Want struct {
	Memory doze.Megabytes // that it may use while it is awake
	Disk   doze.Megabytes // that its files and volumes may fill; 0: nothing to speak of
	Image  string         // the reference of its image; empty: none
	Driver string         // of the checkpoint that it goes on from; empty: any
	On     string         // the id of the only node that has what it needs, such as a volume; empty: any
	From   string         // the id of the node that it leaves, and does not go back to; empty: none
	To     string         // the id of the node that the caller named; empty: any
	Not    []string       // ids of nodes that refused it
}

// A Node is what placement knows of one node.
type Node struct {
	ID     string
	Open   bool // it takes what is new: it is alive, and neither cordoned nor draining
	Driver string
	// Memory is what all its sandboxes can have together, and Reserved what those that
	// are awake may use of it.
	Memory, Reserved doze.Megabytes
	// Disk is what is free for sandboxes on its disk.
	Disk       doze.Megabytes
	Processors float64 // that it has
	Busy       float64 // processors that were in use lately
	Sandboxes  int     // that it has, awake or asleep
	Has        func(image string) bool
}

// Reason says why no node can have something.
type Reason struct {
	Closed, Driver, Memory, Disk int  // how many nodes failed for each
	Refused                      int  // how many were asked, and had no room
	Away                         bool // the only node that has what it needs is not open
	Left                         bool // the node that it leaves is there
	Named                        bool // the node that the caller named is not open
}

const (
	// imageWorth is how much emptier a node without the image must be: a pull takes
	// seconds, and the image takes disk.
	imageWorth = 0.25
	// crowd is by how many sandboxes a node counts as full as one processor in use does:
	// those that sleep cost little.
	crowd = 2000
)

// Choose returns the node on which something is to begin: the one that is least full when
// it is there. A node never gets more than its memory, if sandboxes that are awake use
// all that they may. If no node can have it, ok is false, and the reason says why.
func Choose(w Want, nodes []Node) (id string, why Reason, ok bool) {
	best, least := -1, 0.0
	for i := range nodes {
		n := &nodes[i]
		switch {
		case w.On != "" && n.ID != w.On, w.To != "" && n.ID != w.To:
			continue
		case w.From != "" && n.ID == w.From:
			why.Left = true
			continue
		case slices.Contains(w.Not, n.ID):
			why.Refused++
			continue
		case !n.Open:
			why.Closed++
			why.Away, why.Named = w.On != "", w.To != ""
			continue
		case w.Driver != "" && n.Driver != w.Driver:
			why.Driver++
			continue
		case n.Reserved+w.Memory > n.Memory && n.Memory > 0:
			why.Memory++
			continue
		case w.Disk > n.Disk && n.Disk > 0:
			why.Disk++
			continue
		}
		full := fullness(w, n)
		if best < 0 || cmp.Or(cmp.Compare(full, least), cmp.Compare(n.ID, nodes[best].ID)) < 0 {
			best, least = i, full
		}
	}
	if best < 0 {
		return "", why, false
	}
	return nodes[best].ID, why, true
}

// fullness is how full a node is with something new: 0 is empty. The scarcest of its
// goods counts most.
func fullness(w Want, n *Node) float64 {
	memory, processors := 0.0, 0.0
	if n.Memory > 0 {
		memory = float64(n.Reserved+w.Memory) / float64(n.Memory)
	}
	if n.Processors > 0 {
		processors = (n.Busy + float64(n.Sandboxes)/crowd) / n.Processors
	}
	full := max(memory, processors) + (memory+processors)/4
	if w.Image != "" && n.Has != nil && !n.Has(w.Image) {
		full += imageWorth
	}
	return full
}

// String is what the caller of a create hears.
func (r Reason) String() string {
	switch {
	case r.Named:
		return "the node that was named takes nothing new: uncordon it, or name another one"
	case r.Away:
		return "the node that has its volume or snapshot is away or takes nothing new: try again later"
	case r.Memory+r.Refused > 0:
		return "no node has the memory free: try again when sandboxes have fallen asleep, or add a node"
	case r.Disk > 0:
		return "no node has the disk free: remove what is not needed, or add a node"
	case r.Driver > 0:
		return "no open node runs sandboxes as the one with the checkpoint does"
	case r.Closed > 0 && r.Left:
		return "no other node takes sandboxes now, for all others are cordoned, drain or are lost: uncordon one, or add a node"
	case r.Closed > 0:
		return "no node takes new sandboxes now: uncordon one, or add a node"
	}
	if r.Left {
		return "no other node is here: start one that is away, or add one"
	}
	return "no node has joined: start a node, or try again in a moment"
}
