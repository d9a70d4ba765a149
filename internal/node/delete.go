package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// Delete implements [fleet.Node]. If its caller goes away in between, the next
// Delete goes on, and so does the next start of the node.
func (n *Node) Delete(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		n.ledger.forget(uid) // its place may be reserved
		return nil
	}
	return n.remove(ctx, b)
}

// Discard ends the machines of sandboxes that another node has now, and removes them here.
// Nothing of them runs any more, and their processes get no time to end. kill ends the
// processes of machines, by their ids, without one more instruction. It is called when
// nobody would bring them back.
func (n *Node) Discard(ctx context.Context, uids []string, kill func(machines []string) error) error {
	var boxes []*Box
	var machines []string
	for _, uid := range uids {
		b := n.box(uid)
		if b == nil {
			continue
		}
		if err := b.doom(errMoved); err != nil {
			return err
		}
		boxes, machines = append(boxes, b), append(machines, b.made.config.ID)
	}
	errs := []error{kill(machines)}
	for _, b := range boxes {
		errs = append(errs, n.undo(ctx, b))
	}
	return errors.Join(errs...)
}

// remove is Delete of a box.
func (n *Node) remove(ctx context.Context, b *Box) error {
	b.part(ctx)
	b.logs.fresh(ctx) // its last lines
	if err := b.doom(errDeleted); err != nil {
		return err
	}
	return n.undo(ctx, b)
}

// doom says that a box is about to be removed: what is under way in it ends early.
func (b *Box) doom(why error) error {
	b.mu.Lock()
	if !b.state.Phase().Ended() {
		if err := b.move(doze.Delete, ""); err != nil {
			b.mu.Unlock()
			return err
		}
	}
	b.life.end(why) // its callers are told
	b.mu.Unlock()
	b.hangUp()
	return nil
}

// undo removes a box that is doomed.
func (n *Node) undo(ctx context.Context, b *Box) error {
	if err := b.turn.take(ctx); err != nil {
		return err
	}
	defer b.unlock()
	if n.lookup(b.order.UID) == b { // or another Delete was first, or Create took it back
		if err := n.clear(ctx, b); err != nil {
			return err
		}
		n.drop(b)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine = nil
	_ = b.move(doze.Gone, "") // the other Delete may have reported it
	return nil
}

// clear removes everything of a sandbox from the host. Preconditions: the turn
// is held, or nobody else has the box.
func (n *Node) clear(ctx context.Context, b *Box) error {
	uid := b.order.UID
	// Without its record the next start of the node removes what is left.
	if err := n.forget(uid); err != nil {
		return fmt.Errorf("remove the record: %w", err)
	}
	if err := n.destroy(ctx, b); err != nil {
		return fmt.Errorf("end the machine: %w", err)
	}
	n.dropDrives(ctx, b)
	if err := n.Release(b.made.config.ID); err != nil {
		return fmt.Errorf("release the address: %w", err)
	}
	if err := n.detach(uid); err != nil {
		return fmt.Errorf("detach its volumes: %w", err)
	}
	if err := errors.Join(os.RemoveAll(b.made.config.Dir), os.RemoveAll(n.dir(uid))); err != nil {
		return fmt.Errorf("remove the sandbox's directory: %w", err)
	}
	return nil
}

// destroy ends the machine of a box, also one that we hold no handle of.
func (n *Node) destroy(ctx context.Context, b *Box) error {
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if m == nil {
		var err error
		if m, err = n.Driver.Adopt(ctx, b.made.config); errors.Is(err, machine.ErrGone) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return m.Close(ctx)
}
