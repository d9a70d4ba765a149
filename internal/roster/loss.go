package roster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/placement"
)

const (
	// silence is how long a node without a lease must have said nothing to count as destroyed. It says
	// how it is every few seconds.
	silence = 30 * time.Second
	// namesMost is how many things of a kind a refusal names.
	namesMost = 5
)

// destroyed is what owners hear of what was lost with a node.
const destroyed = "the host that had it was destroyed, and there is no copy of it"

var errDestroyed = doze.Errorf(doze.NotFound, destroyed)

// A loss is something that a node alone has. give takes it off the records, or has it fail.
type loss struct {
	doze.NodeLoss

	give func(context.Context) error
}

// estate is what a node has that others could have, or nobody.
type estate struct {
	begin   []control.Lodger // sandboxes that the bucket has: they can begin elsewhere
	volumes []string         // that the bucket has as they are
	lost    []loss           // what the bucket does not have, as it is
}

// condemn has a node count as lost, on the word of an operator that it was destroyed. A node with a
// lease that ends is lost when that is over, and not before. Preconditions: the node cannot join meanwhile.
func (r *Roster) condemn(ctx context.Context, id string) error {
	n, err := r.Store.Node(ctx, id)
	if err != nil {
		return err
	}
	if !r.others(id) {
		return doze.Errorf(doze.Conflict, "it is the only node: add another one first")
	}
	m := r.member(id)
	switch {
	case n.State == doze.NodeLost && m == nil:
		r.setGone(id) // a rescue may have forgotten it
		return nil
	case r.Copies != nil && n.Leased:
		return doze.Errorf(doze.Conflict, "the node has a lease: stop it, and try again when it is lost, within %s", r.TTL)
	case m != nil && time.Since(r.renewedAt(m)) < silence:
		return doze.Errorf(doze.Conflict, "the node said how it is a moment ago: stop it, and try again in %s", silence)
	}
	_, release, err := r.taking.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if err := r.Store.LoseNode(ctx, id, n.Epoch); err != nil {
		return err
	}
	slog.WarnContext(ctx, "a node is lost: an operator says that it was destroyed", "node", id, "epoch", n.Epoch)
	r.dismiss(id, n.Epoch)
	return nil
}

// abandon has what a lost node had go on elsewhere, or fail, or go. It returns what was lost.
func (r *Roster) abandon(ctx context.Context, id string) ([]doze.NodeLoss, error) {
	before, err := r.estate(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := r.evacuate(ctx, before.begin); err != nil {
		return nil, err
	}
	// Volumes went with their sandboxes.
	e, err := r.estate(ctx, id)
	if err != nil {
		return nil, err
	}
	if n := len(e.begin); n > 0 {
		return nil, doze.Errorf(doze.Unavailable, "the bucket has %d sandboxes that could not begin on another node yet: the log of control says why; try again then", n)
	}
	if _, err := r.Crew.Choose(placement.Want{From: id}); err != nil { // or a part would be lost for nothing
		return nil, err
	}
	var lost []doze.NodeLoss
	for _, l := range before.lost { // a rescue may have been faster
		if l.Kind == doze.LostSandbox {
			lost = append(lost, l.NodeLoss)
		}
	}
	for _, l := range e.lost {
		if l.Kind != doze.LostSandbox {
			lost = append(lost, l.NodeLoss)
		}
		if err := l.give(ctx); err != nil {
			return nil, err
		}
		slog.WarnContext(ctx, "something was lost with its node", "node", id, "kind", l.Kind, "workspace", l.Workspace, "name", l.Name, "older", l.Older)
	}
	orphans, err := r.forgetOrphans(ctx, id)
	return append(lost, orphans...), err
}

// evacuate begins sandboxes elsewhere that the bucket has.
func (r *Roster) evacuate(ctx context.Context, all []control.Lodger) error {
	for _, l := range all {
		if err := r.Control.Relent(ctx, l); err != nil {
			return err
		}
	}
	each(ctx, make(chan struct{}, movesMost), all, func(l control.Lodger) error { return r.bring(ctx, l, false) }) // removals are refused while the records are restored ones
	return nil
}

// estate looks what a node has that is on record.
func (r *Roster) estate(ctx context.Context, id string) (e estate, err error) {
	if err := r.residents(ctx, id, &e); err != nil {
		return e, err
	}
	for _, look := range []func(context.Context, string, *estate) error{r.volumesOn, r.templatesOn, r.snapshotsOn, r.imagesOn} {
		if err := look(ctx, id, &e); err != nil {
			return e, err
		}
	}
	return e, nil
}

// has reports whether the bucket has something.
func (r *Roster) has(ctx context.Context, object string) (bool, error) {
	if r.Copies == nil {
		return false, nil
	}
	return r.Copies.Has(ctx, object)
}

// residents adds the sandboxes of a node. Of those that failed, or that have not begun, nothing is there.
func (r *Roster) residents(ctx context.Context, id string, e *estate) error {
	all, err := r.Control.Residents(ctx, func(machine string) bool { return r.Crew.Of(crew.Machine, machine) == id })
	if err != nil {
		return err
	}
	for _, l := range all {
		has := false
		switch l.Phase {
		case doze.Failed, doze.Uploading, doze.Building:
			continue
		case doze.Pending, doze.Starting:
			if r.Crew.Epoch(crew.Machine, l.Machine) < firstEpoch {
				continue
			}
		case doze.Archived, doze.Unarchiving:
			if r.Copies != nil {
				has, err = r.Copies.Archived(ctx, l.Machine)
			}
		default:
			has, err = r.has(ctx, l.Machine)
		}
		if err != nil {
			return err
		}
		if has {
			e.begin = append(e.begin, l)
			continue
		}
		e.lost = append(e.lost, loss{doze.NodeLoss{Kind: doze.LostSandbox, Workspace: l.Workspace, Name: l.Name}, func(ctx context.Context) error {
			return r.Control.Forsake(ctx, l, errDestroyed)
		}})
	}
	return nil
}

// volumesOn adds the volumes of a node, but not those that go with a sandbox.
func (r *Roster) volumesOn(ctx context.Context, id string, e *estate) error {
	goes := map[string]bool{}
	for _, l := range e.begin {
		goes[l.Workspace+"/sandbox:"+l.Name] = true
	}
	all, err := r.Store.AllVolumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		workspace, name := v.Metadata.Workspace, v.Metadata.Name
		if r.Crew.Of(crew.Volume, v.ID) != id || goes[workspace+"/"+v.State.AttachedTo] {
			continue
		}
		has, err := r.has(ctx, fleet.VolumeObject(v.ID))
		switch {
		case err != nil:
			return err
		case has && r.Crew.Saved(v.ID):
			e.volumes = append(e.volumes, v.ID)
		case has:
			e.lost = append(e.lost, loss{doze.NodeLoss{Kind: doze.LostVolume, Workspace: workspace, Name: name, Older: true}, func(ctx context.Context) error {
				if err := r.carry(ctx, v.ID, id); err != nil {
					return err
				}
				return r.Store.NoteVolume(ctx, v.ID, "the host that had it was destroyed: it is as it was copied last", time.Now())
			}})
		default:
			e.lost = append(e.lost, loss{doze.NodeLoss{Kind: doze.LostVolume, Workspace: workspace, Name: name}, func(ctx context.Context) error {
				if err := r.Store.LoseVolume(ctx, v.ID, "its volume "+name+" is gone: "+destroyed, time.Now()); err != nil {
					return err
				}
				r.Crew.Forget(ctx, crew.Volume, v.ID)
				return nil
			}})
		}
	}
	return nil
}

// carry gives a volume that the bucket has to another node than one.
func (r *Roster) carry(ctx context.Context, volume, from string) error {
	to, err := r.Crew.Choose(placement.Want{From: from})
	if err != nil {
		return err
	}
	return r.Crew.Carry(ctx, volume, to)
}

// templatesOn adds the versions of volume templates of a node.
func (r *Roster) templatesOn(ctx context.Context, id string, e *estate) error {
	all, err := r.Store.ReadyVersions(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		err := r.only(ctx, id, e, crew.Volume, v.ID, fleet.VolumeObject(v.ID),
			doze.NodeLoss{Kind: doze.LostTemplate, Workspace: v.Workspace, Name: v.TemplateName + ":" + v.Name},
			func(ctx context.Context) error { return r.Store.LoseVersion(ctx, v.ID) })
		if err != nil {
			return err
		}
	}
	return nil
}

// snapshotsOn adds the snapshots of a node.
func (r *Roster) snapshotsOn(ctx context.Context, id string, e *estate) error {
	all, err := r.Store.AllSnapshots(ctx)
	if err != nil {
		return err
	}
	for _, n := range all {
		if n.Status == doze.SnapshotFailed {
			continue
		}
		err := r.only(ctx, id, e, crew.Snapshot, n.ID, fleet.SnapshotObject(n.ID),
			doze.NodeLoss{Kind: doze.LostSnapshot, Workspace: n.Workspace, Name: n.Name},
			func(ctx context.Context) error {
				err := r.Store.FailSnapshot(ctx, n.ID, destroyed)
				if doze.Public(err).Kind == doze.NotFound { // it was deleted meanwhile
					return nil
				}
				return err
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// imagesOn adds the images of a node that were built or loaded.
func (r *Roster) imagesOn(ctx context.Context, id string, e *estate) error {
	all, err := r.Store.AllImages(ctx)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, i := range all {
		for _, t := range i.Spec.Tags {
			if !strings.HasPrefix(t.Image, doze.BuiltPrefix) || seen[t.Image] {
				continue
			}
			seen[t.Image] = true
			err := r.only(ctx, id, e, crew.Image, t.Image, fleet.ImageObject(t.Image),
				doze.NodeLoss{Kind: doze.LostImage, Workspace: i.Metadata.Workspace, Name: i.Metadata.Name + ":" + t.Name},
				func(ctx context.Context) error { return r.Store.LoseImage(ctx, t.Image) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// only adds a thing that never changes to an estate, if it is on the node and not in the bucket.
func (r *Roster) only(ctx context.Context, node string, e *estate, k crew.Kind, id, object string, l doze.NodeLoss, give func(context.Context) error) error {
	if r.Crew.Of(k, id) != node {
		return nil
	}
	has, err := r.has(ctx, object)
	if err != nil || has {
		return err
	}
	e.lost = append(e.lost, loss{l, func(ctx context.Context) error {
		if err := give(ctx); err != nil {
			return err
		}
		r.Crew.Forget(ctx, k, id)
		return nil
	}})
	return nil
}

// refuse is a Conflict that names what would be lost with a node.
func refuse(lost []loss) error {
	return doze.Errorf(doze.Conflict, "the bucket does not have, as it is, what the node has: %s; start the node and drain it, or delete these. If it was destroyed, doze node rm --force removes it, and they are lost", tell(lost))
}

// tell counts losses by their kinds, and names some of each.
func tell(lost []loss) string {
	var kinds []string
	names := map[string][]string{}
	for _, l := range lost {
		kind := string(l.Kind)
		if l.Older {
			kind = "older " + kind
		}
		if names[kind] == nil {
			kinds = append(kinds, kind)
		}
		name := l.Name
		if l.Workspace != "" {
			name = l.Workspace + "/" + name
		}
		names[kind] = append(names[kind], name)
	}
	var parts []string
	for _, kind := range kinds {
		some, more := names[kind], ""
		if n := len(some) - namesMost; n > 0 {
			some, more = some[:namesMost], fmt.Sprintf(" and %d more", n)
		}
		parts = append(parts, fmt.Sprintf("%s: %d (%s%s)", kind, len(names[kind]), strings.Join(some, ", "), more))
	}
	return strings.Join(parts, "; ")
}
