package roster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet/crew"
)

// An orphan is a disk or a snapshot that no record names. The records that a restore replaced may have
// named it.

// ownKinds are the kinds of things that nodes have besides machines, and that begin with a record.
var ownKinds = map[crew.Kind]doze.LossKind{crew.Volume: doze.LostVolume, crew.Snapshot: doze.LostSnapshot}

// orphan is one such thing, and the nodes that have it.
type orphan struct {
	kind crew.Kind
	id   string
	on   []crew.Member
}

// recorded returns what reports whether a record names a disk or a snapshot.
func (r *Roster) recorded(ctx context.Context) (func(crew.Kind, string) bool, error) {
	disks, err := r.Store.Disks(ctx)
	if err != nil {
		return nil, err
	}
	snapshots, err := r.snapshotIDs(ctx)
	if err != nil {
		return nil, err
	}
	return func(k crew.Kind, id string) bool {
		return k == crew.Volume && disks[id] || k == crew.Snapshot && snapshots[id]
	}, nil
}

// orphans are the disks and snapshots of all members that no record names. The lists of the nodes come
// before the records: each thing has a record before any node has it. A disk may be that of a volume
// or of a template: no node knows.
func (r *Roster) orphans(ctx context.Context) (all []loss, err error) {
	found := map[crew.Kind]map[string]*orphan{crew.Volume: {}, crew.Snapshot: {}}
	add := func(k crew.Kind, id string, m crew.Member) {
		if found[k][id] == nil {
			found[k][id] = &orphan{kind: k, id: id}
		}
		found[k][id].on = append(found[k][id].on, m)
	}
	for _, m := range r.Crew.Members() {
		disks, err := m.Node.Volumes(ctx)
		if err != nil {
			return nil, err
		}
		for _, id := range disks {
			add(crew.Volume, id, m)
		}
		snapshots, err := m.Node.Snapshots(ctx)
		if err != nil {
			return nil, err
		}
		for id := range snapshots {
			add(crew.Snapshot, id, m)
		}
	}
	named, err := r.recorded(ctx)
	if err != nil {
		return nil, err
	}
	for _, k := range []crew.Kind{crew.Volume, crew.Snapshot} {
		for _, id := range slices.Sorted(maps.Keys(found[k])) {
			if !named(k, id) {
				all = append(all, loss{doze.NodeLoss{Kind: ownKinds[k], Name: id}, func(ctx context.Context) error { return r.dispel(ctx, *found[k][id]) }})
			}
		}
	}
	return all, nil
}

// dispel has nodes remove an orphan.
func (r *Roster) dispel(ctx context.Context, s orphan) error {
	var errs []error
	for _, m := range s.on {
		if s.kind == crew.Volume {
			errs = append(errs, m.Node.DropVolume(ctx, s.id))
		} else {
			errs = append(errs, m.Node.DropSnapshot(ctx, s.id))
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		r.Crew.Forget(ctx, s.kind, s.id)
	}
	return err
}

// forgetOrphans forgets the places on a node of disks and snapshots that no record names. It returns what these
// were. When the node is back, it removes them.
func (r *Roster) forgetOrphans(ctx context.Context, node string) (lost []doze.NodeLoss, err error) {
	places := r.Crew.On(node) // before the records, as in orphans
	named, err := r.recorded(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range places {
		if kind, own := ownKinds[p.Kind]; own && !named(p.Kind, p.ID) {
			slog.WarnContext(ctx, "the place of something is forgotten that no record names", "node", node, "kind", kind, "id", p.ID)
			r.Crew.Forget(ctx, p.Kind, p.ID)
			lost = append(lost, doze.NodeLoss{Kind: kind, Name: p.ID})
		}
	}
	return lost, nil
}
