package crew

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/placement"
)

// Volumes belong to one node at a time. One goes to another node with its sandbox, or when it
// is attached there. It goes by way of the bucket, so the bucket must have its last state.

// movedEpoch is the least epoch of a volume that was on another node. A disk without an epoch
// on its node never was elsewhere.
const movedEpoch = 3

// copied is what is known of the copy of a volume. A new process of control knows nothing.
type copied struct {
	uses  uint64 // how often it was given to a sandbox
	saved bool   // the bucket has it as it is, and no sandbox got it since
}

// copied returns what is known of a volume. Preconditions: c.mu is held.
func (c *Crew) copied(id string) *copied {
	v := c.volumes[id]
	if v == nil {
		v = &copied{}
		c.volumes[id] = v
	}
	return v
}

// Saved reports whether the bucket has a volume as it is.
func (c *Crew) Saved(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.volumes[id] != nil && c.volumes[id].saved
}

// SaveVolume implements [fleet.Mover].
func (c *Crew) SaveVolume(ctx context.Context, id string) error {
	c.mu.Lock()
	uses := c.copied(id).uses
	c.mu.Unlock()
	if err := c.tell(Volume, id, func(n fleet.Node) error { return n.SaveVolume(ctx, id) }); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.copied(id); v.uses == uses { // else it may be older
		v.saved = true
	}
	return nil
}

// LeaveVolume implements [fleet.Mover]: all nodes but the one that has a volume leave it.
func (c *Crew) LeaveVolume(ctx context.Context, id string, epoch uint64) error {
	return c.all(func(node string, n fleet.Node) error {
		if c.Of(Volume, id) == node {
			return nil
		}
		return n.LeaveVolume(ctx, id, epoch)
	})
}

// using returns volumes with their epochs. Their copies count as old from now on.
func (c *Crew) using(all []fleet.Volume) []fleet.Volume {
	all = slices.Clone(all)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range all {
		if id := all[i].ID; id != "" {
			v := c.copied(id)
			v.uses, v.saved = v.uses+1, false
			all[i].Epoch = max(1, c.places[thing{Volume, id}].Epoch)
		}
	}
	return all
}

// near has a sandbox begin where its snapshot, its image or its volumes are, if it can begin there. Otherwise they move.
func (c *Crew) near(w placement.Want, o *fleet.Order) placement.Want {
	switch {
	case o.From != "":
		w = c.nearest(w, Snapshot, o.From)
	case c.stays(o.Image):
		w = c.nearest(w, Image, o.Image)
	}
	if w.On != "" {
		return w
	}
	for _, v := range o.Volumes {
		if v.ID == "" {
			continue
		}
		there := w
		there.On = c.Of(Volume, v.ID)
		if _, _, ok := placement.Choose(there, c.nodes()); ok {
			return there
		}
	}
	for _, v := range o.Volumes {
		if v.ID != "" {
			w.Disk += v.Size
		}
	}
	return w
}

// gather brings the volumes of an order to its node.
func (c *Crew) gather(ctx context.Context, o *fleet.Order) error {
	to := c.Of(Machine, o.UID)
	for _, v := range o.Volumes {
		if v.ID == "" {
			continue
		}
		if err := c.bring(ctx, v.ID, to); err != nil {
			return err
		}
	}
	o.Volumes = c.using(o.Volumes)
	return nil
}

// bring moves a volume that no sandbox has had until now. Its node saves it first. If that is
// away, the bucket must have it as it is.
func (c *Crew) bring(ctx context.Context, id, to string) error {
	from := c.Of(Volume, id)
	if from == to {
		return nil
	}
	err := c.SaveVolume(ctx, id)
	switch {
	case err == nil:
	case doze.Public(err).Kind == doze.Unsupported:
		return doze.Wrap(err, doze.Conflict, "a volume of the sandbox is on the node %s, and cannot move without a bucket: begin the sandbox there", from)
	case !errors.Is(err, fleet.ErrUnreachable):
		return err
	case !c.Saved(id):
		return doze.Wrap(err, doze.Unavailable, "a volume is on the node %s, which is away, and the bucket has not its last state: wait for the node", from)
	}
	if err := c.Carry(ctx, id, to); err != nil {
		return err
	}
	c.left(ctx, id, from)
	return nil
}

// nearTemplate has a volume begin where its template is, if it can begin there. Otherwise the
// template goes to another node, if the bucket has it. Templates never change, so any number of nodes
// may keep one.
func (c *Crew) nearTemplate(ctx context.Context, w placement.Want, from string) (placement.Want, error) {
	there := w
	there.On = c.Of(Volume, from)
	if _, _, ok := placement.Choose(there, c.nodes()); ok || !c.Stored(Volume, from) {
		return there, nil
	}
	to, _, err := c.choose(w)
	if err != nil {
		return w, err
	}
	w.On = to
	return w, c.Carry(ctx, from, to)
}

// Carry records another place of a volume that the bucket has as it is.
func (c *Crew) Carry(ctx context.Context, id, to string) error {
	return c.put(ctx, Place{Volume, id, to, max(movedEpoch, c.next(Volume, id))})
}

// Follow records that the volumes of an order are where its machine is: the bucket has them
// with the machine. Call it before each Revive.
func (c *Crew) Follow(ctx context.Context, o *fleet.Order) error {
	to := c.Of(Machine, o.UID)
	for _, v := range o.Volumes {
		if v.ID == "" || c.Of(Volume, v.ID) == to {
			continue
		}
		if err := c.Carry(ctx, v.ID, to); err != nil {
			return err
		}
	}
	return nil
}

// Left has a node remove volumes of an order that another node has.
func (c *Crew) Left(ctx context.Context, o *fleet.Order, from string) {
	for _, v := range o.Volumes {
		if v.ID != "" && c.Of(Volume, v.ID) != from {
			c.left(ctx, v.ID, from)
		}
	}
}

// left has a node remove a volume that another node has. What it cannot hear of now goes when
// control looks at its volumes.
func (c *Crew) left(ctx context.Context, id, from string) {
	c.mu.Lock()
	m := c.members[from]
	c.mu.Unlock()
	if m == nil {
		return
	}
	if err := m.Node.LeaveVolume(ctx, id, c.Epoch(Volume, id)); err != nil {
		slog.WarnContext(ctx, "a node still has a volume that moved", "node", from, "volume", id, "err", err)
	}
}

// Tidy has a member remove disks that other nodes have, or that nobody knows. known are those on
// record. They were read after the list of the member, since a record comes before its disk.
func (c *Crew) Tidy(ctx context.Context, m Member, there []string, known map[string]bool) error {
	var errs []error
	for _, id := range there {
		switch {
		case !known[id]:
			errs = append(errs, m.Node.DropVolume(ctx, id))
		case c.Of(Volume, id) != m.Info.ID:
			errs = append(errs, m.Node.LeaveVolume(ctx, id, c.Epoch(Volume, id)))
		}
	}
	return errors.Join(errs...)
}
