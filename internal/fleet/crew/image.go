package crew

import (
	"context"

	"github.com/dozehq/doze/internal/fleet"
)

// An image that was built or loaded is on the node that made it, and soon in the bucket. Sandboxes
// of it begin on its node, if they can. Other nodes take it from the bucket.

// SaveBuilt implements [fleet.Mover].
func (c *Crew) SaveBuilt(ctx context.Context, ref string) error {
	if err := c.tell(Image, ref, func(n fleet.Node) error { return n.SaveBuilt(ctx, ref) }); err != nil {
		return err
	}
	c.SetStored(Image, ref)
	return nil
}

// built returns the reference of an image that was built or loaded, or nothing: all other images
// are lent to nobody.
func (c *Crew) built(ref string) string {
	if !c.stays(ref) {
		return ""
	}
	return ref
}

// waits reports whether an image waits in the bucket for the first node that needs it: the node
// that made it is away.
func (c *Crew) waits(ref string) bool {
	if !c.stays(ref) || !c.Stored(Image, ref) {
		return false
	}
	_, here := c.Member(c.Of(Image, ref))
	return !here
}

// having returns a node that has an image, or can get it, and the id of the node.
func (c *Crew) having(ref string) (n fleet.Node, id string, err error) {
	if at := c.Of(Image, ref); at != "" && c.stays(ref) && !c.waits(ref) {
		n, err = c.node(Image, ref)
		return n, at, err
	}
	return c.any()
}
