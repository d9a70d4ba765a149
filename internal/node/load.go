package node

import (
	"errors"
	"log/slog"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// Load is what the sandboxes of a node are and may use.
type Load struct {
	Sandboxes, Awake int
	// Reserved is what those that are awake may use.
	Reserved doze.Megabytes
	// Limit is what all can have together, or 0.
	Limit doze.Megabytes
	// Workspaces has each workspace with a sandbox here, and what of it is awake.
	Workspaces map[string]fleet.Awake
}

// Load returns what the sandboxes are and may use now.
func (n *Node) Load() (l Load) {
	l.Limit = doze.Megabytes(n.reservations.most >> 20)
	l.Workspaces = n.ledger.all()
	for _, b := range n.all() {
		if b.hidden() {
			continue
		}
		l.Sandboxes++
		if _, counts := l.Workspaces[b.order.Workspace]; !counts {
			l.Workspaces[b.order.Workspace] = fleet.Awake{}
		}
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

// Held returns what this node knows of its sandboxes, and of its volumes, by their names in the
// bucket. A volume whose epoch cannot be read is left out.
func (n *Node) Held() map[string]fleet.Held {
	all := map[string]fleet.Held{}
	for _, b := range n.all() {
		if !b.hidden() {
			all[b.order.UID] = fleet.Held{Epoch: b.order.Epoch, Workspace: b.order.Workspace, Name: b.order.Name}
		}
	}
	volumes, err := n.Options.Volumes.IDs()
	for _, id := range volumes {
		if strings.Contains(id, "-") { // it begins and ends with its machine
			continue
		}
		epoch, unread := n.Options.Volumes.Epoch(id)
		if err = errors.Join(err, unread); unread == nil && epoch > 0 {
			all[fleet.VolumeObject(id)] = fleet.Held{Epoch: epoch}
		}
	}
	if err != nil {
		slog.Warn("control does not hear of all volumes of this node", "err", err)
	}
	return all
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
