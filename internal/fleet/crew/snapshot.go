package crew

import (
	"context"
	"errors"
	"log/slog"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/placement"
)

// A snapshot is on the node that made it, and soon in the bucket. Sandboxes begin from it on its
// node, if they can. Other nodes take it from the bucket.

// A loan says that a node may have a snapshot that another one made.
type loan struct{ snapshot, node string }

// SaveSnapshot implements [fleet.Mover].
func (c *Crew) SaveSnapshot(ctx context.Context, id string) error {
	if err := c.tell(Snapshot, id, func(n fleet.Node) error { return n.SaveSnapshot(ctx, id) }); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved[id] = true
	return nil
}

// SnapshotSaved reports whether the bucket has a snapshot, as far as this process knows.
func (c *Crew) SnapshotSaved(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saved[id]
}

// MayHave reports whether a node may have a snapshot: it made it, or begins a sandbox from it now.
func (c *Crew) MayHave(node, snapshot string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(Snapshot, snapshot) == node || c.lent[loan{snapshot, node}] > 0
}

// lend lets a node have a snapshot until it is given back.
func (c *Crew) lend(snapshot, node string) (back func()) {
	if snapshot == "" {
		return func() {}
	}
	l := loan{snapshot, node}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lent[l]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.lent[l]--; c.lent[l] <= 0 {
			delete(c.lent, l)
		}
	}
}

// nearSnapshot has a sandbox begin where its snapshot is, if it can begin there, or if the bucket
// may not have the snapshot.
func (c *Crew) nearSnapshot(w placement.Want, from string) placement.Want {
	w.Driver = c.Driver(c.Of(Snapshot, from))
	there := w
	there.On = c.Of(Snapshot, from)
	if _, _, ok := placement.Choose(there, c.nodes()); ok || !c.SnapshotSaved(from) {
		return there
	}
	return w
}

// TidySnapshots has a member remove snapshots that nobody knows. known are those on record, which
// were read after the list of the member.
func (c *Crew) TidySnapshots(ctx context.Context, m Member, there map[string]int64, known map[string]bool) error {
	var errs []error
	for id := range there {
		if !known[id] {
			slog.InfoContext(ctx, "a node removes a snapshot that is not on record", "node", m.Info.ID, "snapshot", id)
			errs = append(errs, m.Node.DropSnapshot(ctx, id))
		}
	}
	return errors.Join(errs...)
}
