package node

import (
	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// Load is what the sandboxes of a node are and may use.
type Load struct {
	Sandboxes, Awake int
	// Reserved is what those that are awake may use.
	Reserved doze.Megabytes
	// Limit is what all can have together, or 0.
	Limit doze.Megabytes
}

// Load returns what the sandboxes are and may use now.
func (n *Node) Load() (l Load) {
	l.Limit = doze.Megabytes(n.reservations.most >> 20)
	for _, b := range n.all() {
		if b.hidden() {
			continue
		}
		l.Sandboxes++
		b.mu.Lock()
		m := b.machine
		soon := b.absent != nil && b.absent.Ran
		b.mu.Unlock()
		if soon {
			l.Reserved += b.order.Memory
		}
		if m != nil && m.Tier() == machine.Awake {
			l.Awake++
			l.Reserved += b.order.Memory
		}
	}
	return l
}

// UIDs returns those of all sandboxes that are there.
func (n *Node) UIDs() (uids []string) {
	for _, b := range n.all() {
		if !b.hidden() {
			uids = append(uids, b.order.UID)
		}
	}
	return uids
}
