package roster

import (
	"context"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/placement"
)

// remove forgets a node that does not run, and has nothing that the bucket does not have. By force,
// what the bucket does not have is lost, and it returns that. The node may want to join at this
// moment. It joins before, and stays, or after, as a new one.
func (r *Roster) remove(ctx context.Context, id string, force bool) (lost []doze.NodeLoss, err error) {
	_, joined, err := r.joins.Take(ctx, turnOf(id)) // in the order of Join
	if err != nil {
		return nil, err
	}
	defer joined()
	if err := r.needCounting(ctx); err != nil {
		return nil, err
	}
	if force {
		if err := r.condemn(ctx, id); err != nil {
			return nil, err
		}
		if lost, err = r.abandon(ctx, id); err != nil {
			return nil, err
		}
	}
	if m := r.member(id); m != nil {
		return nil, r.refuseRunning(id, r.silent(m))
	}
	if _, err := r.Store.Node(ctx, id); err != nil {
		return nil, err
	}
	home, err := r.Store.Setting(ctx, HomeSetting)
	if err != nil {
		return nil, err
	}
	if err := r.bequeathAll(ctx, id, force); err != nil {
		return nil, err
	}
	if id == home {
		if err := r.moveHome(ctx, id); err != nil {
			return nil, err
		}
	}
	if err := r.Store.RemoveNode(ctx, id); err != nil {
		return nil, err
	}
	r.Crew.Discard(id)
	r.mu.Lock()
	delete(r.gones, id)
	delete(r.leased, id) // the next record of the node says nothing
	r.mu.Unlock()
	if r.Removed != nil {
		r.Removed(id)
	}
	return lost, nil
}

// refuseRunning is a Conflict for a node that has joined. One with a lease that was stopped just now
// counts as such until the lease is over. One without a lease may run although it is silent.
func (r *Roster) refuseRunning(id string, silent bool) error {
	const text = "the node runs: drain it, and stop it first"
	r.mu.Lock()
	leased := r.leased[id]
	r.mu.Unlock()
	switch {
	case !leased && silent:
		return doze.Errorf(doze.Conflict, "the node does not answer, and has no lease that ends: start it again, or remove it with --force if it was destroyed")
	case !leased:
		return doze.Errorf(doze.Conflict, text)
	}
	left := r.TTL - time.Since(r.book.RenewedAt(id))
	return doze.Errorf(doze.Conflict, text+". If it was stopped a moment ago, it can be removed when its lease is over, within %d seconds", int(max(0, left)/time.Second)+1)
}

// bequeathAll gives what the bucket has as it is to other nodes. It is a Conflict if there is more. By
// force, the node has nothing else then: places of what is about to go are forgotten.
func (r *Roster) bequeathAll(ctx context.Context, id string, force bool) error {
	e, err := r.estate(ctx, id)
	if err != nil {
		return err
	}
	if len(e.lost) > 0 {
		return refuse(e.lost)
	}
	if err := r.bequeath(ctx, id); err != nil {
		return err
	}
	if _, err := r.forgetOrphans(ctx, id); err != nil {
		return err
	}
	for _, volume := range e.volumes {
		if err := r.carry(ctx, volume, id); err != nil {
			return err
		}
	}
	if force && len(e.begin) == 0 {
		for _, p := range r.Crew.On(id) {
			r.Crew.Forget(ctx, p.Kind, p.ID)
		}
	}
	return nil
}

// An heirloom is something that a node has and that never changes.
type heirloom struct {
	kind   crew.Kind
	id     string
	object string // its name in the bucket
}

// heirlooms are all such things on record.
func (r *Roster) heirlooms(ctx context.Context) (all []heirloom, err error) {
	snapshots, err := r.snapshotIDs(ctx)
	if err != nil {
		return nil, err
	}
	for id := range snapshots {
		all = append(all, heirloom{crew.Snapshot, id, fleet.SnapshotObject(id)})
	}
	templates, err := r.Store.TemplateDisks(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range templates {
		all = append(all, heirloom{crew.Volume, id, fleet.VolumeObject(id)})
	}
	refs, err := r.Store.BuiltRefs(ctx)
	for _, ref := range refs {
		all = append(all, heirloom{crew.Image, ref, fleet.ImageObject(ref)})
	}
	return all, err
}

// bequeath gives what never changes, and what the bucket has, to another node. That one takes it
// from the bucket when somebody needs it. What no record names, and caches, are forgotten.
func (r *Roster) bequeath(ctx context.Context, from string) error {
	if r.Copies == nil {
		return nil
	}
	all, err := r.heirlooms(ctx)
	if err != nil {
		return err
	}
	named := map[crew.Kind]map[string]bool{crew.Snapshot: {}, crew.Image: {}, crew.Builder: {}}
	for _, h := range all {
		if of := named[h.kind]; of != nil {
			of[h.id] = true
		}
		if r.Crew.Of(h.kind, h.id) != from {
			continue
		}
		has, err := r.Copies.Has(ctx, h.object)
		if err != nil {
			return err
		}
		if !has {
			continue // the store says what the node still has
		}
		to, err := r.Crew.Choose(placement.Want{From: from})
		if err != nil {
			return err
		}
		give := r.Crew.Move
		if h.kind == crew.Volume { // nodes compare its epochs
			give = func(ctx context.Context, _ crew.Kind, id, to string) error { return r.Crew.Carry(ctx, id, to) }
		}
		if err := give(ctx, h.kind, h.id, to); err != nil {
			return err
		}
		r.Crew.SetStored(h.kind, h.id)
	}
	for _, p := range r.Crew.On(from) {
		if known, ends := named[p.Kind]; ends && !known[p.ID] {
			r.Crew.Forget(ctx, p.Kind, p.ID)
		}
	}
	return nil
}
