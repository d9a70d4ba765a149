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

// A loan says that a node may have a thing that another one made.
type loan struct {
	thing

	node string
}

// SaveSnapshot implements [fleet.Mover].
func (c *Crew) SaveSnapshot(ctx context.Context, id string) error {
	if err := c.tell(Snapshot, id, func(n fleet.Node) error { return n.SaveSnapshot(ctx, id) }); err != nil {
		return err
	}
	c.SetStored(Snapshot, id)
	return nil
}

// SetStored takes note that the bucket has something that never changes: a snapshot, an image or a
// volume template.
func (c *Crew) SetStored(k Kind, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved[thing{k, id}] = true
}

// Stored reports whether the bucket has such a thing, as far as this process knows.
func (c *Crew) Stored(k Kind, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saved[thing{k, id}]
}

// MayHave reports whether a node may have a snapshot or an image: it made it, or needs it now.
func (c *Crew) MayHave(node string, k Kind, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(k, id) == node || c.lent[loan{thing{k, id}, node}] > 0
}

// lend lets a node have a snapshot or an image until it is given back.
func (c *Crew) lend(k Kind, id, node string) (back func()) {
	if id == "" {
		return func() {}
	}
	l := loan{thing{k, id}, node}
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

// nearest has a sandbox begin where its snapshot or its image is, if it can begin there, or if the
// bucket may not have that.
func (c *Crew) nearest(w placement.Want, k Kind, id string) placement.Want {
	there := w
	there.On = c.Of(k, id)
	if _, _, ok := placement.Choose(there, c.nodes()); ok || !c.Stored(k, id) {
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
