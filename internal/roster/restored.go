package roster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
)

// Records that somebody restored are older than the nodes. Until an operator says that all nodes
// are here, control believes nodes. It ends and drops nothing, and begins nothing elsewhere. See
// docs/design/0149.

const (
	// believeTurn is the turn of changes of places that follow what nodes say.
	believeTurn = "believe"
	// yieldTime bounds how long a node that joins waits for another one to end what it got later.
	// If that takes longer, the other one hears of it when it joins again.
	yieldTime = 30 * time.Second
	// heldMost is the highest epoch that a node can say. None was ever given that is as high.
	heldMost = 1 << 62
)

var (
	// errRestored is for what needs records that count.
	errRestored = doze.Errorf(doze.Conflict, "the records were restored, and are older than the nodes: when all nodes are here, doze node settle has the records count again")
	// errNotRestored is for a settlement that nobody needs.
	errNotRestored = doze.Errorf(doze.Conflict, "nothing is to be settled: the records were not restored, or were settled already")
	// errNotHere is for a sandbox that is neither on its node nor in the bucket.
	errNotHere = doze.Errorf(doze.NotFound, "the records were restored from a backup. After that was made, the sandbox was deleted or went to a node that did not come back, and there is no copy of it")
)

// belongings are what a node said that it has, since the records were restored.
type belongings struct {
	unknown []string // machines that no record names
	held    map[string]fleet.Held
}

// claimOf is something that a node says it has.
type claimOf struct {
	kind   crew.Kind
	id     string
	object string // its name in the bucket
	newest uint64 // epoch that was claimed in the bucket
}

// needCounting is an error unless the records count: errRestored if they were restored.
func (r *Roster) needCounting(ctx context.Context) error {
	restored, err := r.Store.Restored(ctx)
	if err == nil && restored {
		err = errRestored
	}
	return err
}

// believe records what a node has since an epoch that the records do not know, if they were
// restored.
func (r *Roster) believe(ctx context.Context, node string, machines []string, held map[string]fleet.Held) error {
	restored, err := r.Store.Restored(ctx)
	if err == nil && restored {
		_, err = r.overtaken(ctx, node, machines, held)
	}
	return err
}

// overtaken records what a node has since an epoch that the records do not know. It returns those of
// its machines that another node got later: that node has said so, or has claimed the machine in the bucket.
// Of all other machines the node is believed, also if no record names them.
func (r *Roster) overtaken(ctx context.Context, node string, machines []string, held map[string]fleet.Held) (gone []string, err error) {
	_, release, err := r.joins.Take(ctx, believeTurn)
	if err != nil {
		return nil, err
	}
	defer release()
	if restored, err := r.Store.Restored(ctx); err != nil {
		return nil, err
	} else if !restored { // an operator was faster
		if r.member(node) == nil && !r.onRecord(ctx, node) {
			return nil, nil
		}
		return r.gone(ctx, node, machines)
	}
	var all []claimOf
	for _, id := range machines {
		all = append(all, claimOf{kind: crew.Machine, id: id, object: id})
	}
	for object, h := range held {
		if h.Epoch > heldMost {
			return nil, doze.Errorf(doze.Invalid, "the node says that it has %.80q since the epoch %d: no epoch is above %d", object, h.Epoch, uint64(heldMost))
		}
		if m := fleet.VolumeForm.FindStringSubmatch(object); m != nil {
			all = append(all, claimOf{kind: crew.Volume, id: m[1], object: object})
		}
	}
	if err := r.claimed(ctx, all); err != nil {
		return nil, err
	}
	named, err := r.Store.Machines(ctx, machines)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		at, epoch := r.Crew.Of(c.kind, c.id), r.Crew.Epoch(c.kind, c.id)
		own := since(held[c.object].Epoch, c.newest, at == node, epoch)
		switch later := c.newest > own || at != node && epoch > own; {
		case later && c.kind == crew.Machine:
			gone = append(gone, c.id)
		case later, at == node && epoch >= own && (c.kind != crew.Machine || named[c.id] || epoch >= firstEpoch):
		default:
			if err := r.Crew.Found(ctx, c.kind, c.id, node, own); err != nil {
				return nil, err
			}
			if at != node {
				r.yield(ctx, c, at, node, own)
			}
		}
	}
	return gone, nil
}

// since is the epoch in which a node got something. The node said one, or 0. The newest one was
// claimed in the bucket. The recorded one is that of its place, which is here or elsewhere.
func since(said, newest uint64, here bool, recorded uint64) uint64 {
	switch {
	case said > 0 && here: // a volume may be about to come
		return max(said, recorded)
	case said > 0:
		return said
	case here || newest > recorded || recorded <= firstEpoch: // nobody wrote it down, so nothing says that it is older
		return max(newest, firstEpoch, recorded)
	}
	return firstEpoch
}

// yield has a node end what another node got later.
func (r *Roster) yield(ctx context.Context, c claimOf, from, to string, epoch uint64) {
	slog.WarnContext(ctx, "the restored records had something on another node than the one that has it", "kind", c.kind, "id", c.id, "was", from, "node", to, "epoch", epoch)
	if c.kind != crew.Machine { // a sandbox may be about to leave it
		return
	}
	ctx, cancel := context.WithTimeout(ctx, yieldTime)
	defer cancel()
	err := r.while(ctx, from, func(ctx context.Context) error { return r.leave(ctx, from, c.id) })
	if err != nil {
		slog.WarnContext(ctx, "a node still has a sandbox that another one got later", "node", from, "sandbox", c.id, "err", err)
	}
}

// claimed asks the bucket which epochs were claimed of things.
func (r *Roster) claimed(ctx context.Context, all []claimOf) error {
	if r.Copies == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	slots := make(chan struct{}, movesMost)
	for i := range all {
		slots <- struct{}{}
		tasks.Go(func() {
			defer func() { <-slots }()
			newest, err := r.Copies.Claimed(ctx, all[i].object)
			if err != nil {
				cancel(err)
			}
			all[i].newest = newest
		})
	}
	tasks.Wait()
	return context.Cause(ctx)
}

func (r *Roster) onRecord(ctx context.Context, node string) bool {
	_, err := r.Store.Node(ctx, node)
	return err == nil
}

// remember takes note of the machines of a node that no record names.
func (r *Roster) remember(ctx context.Context, node string, machines, gone []string, held map[string]fleet.Held) error {
	named, err := r.Store.Machines(ctx, machines)
	if err != nil {
		return err
	}
	b := belongings{held: held}
	var names []string
	for _, machine := range machines {
		if !named[machine] && !slices.Contains(gone, machine) {
			b.unknown = append(b.unknown, machine)
			names = append(names, held[machine].Workspace+"/"+held[machine].Name)
		}
	}
	r.mu.Lock()
	r.belongings[node] = b
	r.mu.Unlock()
	if len(names) > 0 {
		slog.WarnContext(ctx, "a node has sandboxes that the restored records do not know: they stay until doze node settle", "node", node, "sandboxes", len(names), "names", names[:min(len(names), namesMost)])
	}
	return nil
}

// unknown are the machines of a node that no record names.
func (r *Roster) unknown(node string) belongings {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.belongings[node]
}

// conclude has restored records count again. What nodes have and no record names ends. What the
// records have on a node, and is not there, goes on from the bucket, or fails. It returns that.
// Without force, it is a Conflict if there is any, or if nodes on record are away.
func (r *Roster) conclude(ctx context.Context, force bool) ([]doze.NodeLoss, error) {
	_, release, err := r.joins.Take(ctx, believeTurn)
	if err != nil {
		return nil, err
	}
	defer release()
	restored, err := r.Store.Restored(ctx)
	if err != nil {
		return nil, err
	}
	if !restored {
		return nil, errNotRestored
	}
	away, err := r.away(ctx)
	if err != nil {
		return nil, err
	}
	var unnamed, missing []loss
	for _, m := range r.Crew.Members() {
		unnamed = append(unnamed, r.unnamed(m)...)
		for _, look := range []func(context.Context, crew.Member) ([]loss, error){r.vanished, r.outdated} {
			some, err := look(ctx, m)
			if err != nil {
				return nil, err
			}
			missing = append(missing, some...)
		}
	}
	orphans, err := r.orphans(ctx)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(unnamed, missing, orphans)
	if !force && len(all)+len(away) > 0 {
		return nil, refuseToSettle(slices.Concat(unnamed, orphans), missing, away)
	}
	for _, some := range [][]loss{unnamed, missing, orphans} { // a sandbox ends before its disks go
		if err := giveAll(ctx, some); err != nil {
			return nil, err
		}
	}
	var lost []doze.NodeLoss
	for _, l := range all {
		slog.WarnContext(ctx, "something was lost with restored records", "kind", l.Kind, "workspace", l.Workspace, "name", l.Name, "older", l.Older)
		lost = append(lost, l.NodeLoss)
	}
	if err := r.sweepPlaces(ctx); err != nil { // of what is on nodes that are away
		return nil, err
	}
	for _, id := range away {
		if _, err := r.forgetOrphans(ctx, id); err != nil {
			return nil, err
		}
	}
	if err := r.Store.EndRestored(ctx); err != nil {
		return nil, err
	}
	slog.WarnContext(ctx, "the records count again that were restored", "lost", len(lost), "away", away)
	r.mu.Lock()
	clear(r.belongings)
	r.mu.Unlock()
	r.lost.Ring()
	return lost, nil
}

// giveAll gives up some at a time: a sandbox may take its grace period to end.
func giveAll(ctx context.Context, all []loss) error {
	var tasks sync.WaitGroup
	errs, slots := make([]error, len(all)), make(chan struct{}, movesMost)
	for i, l := range all {
		slots <- struct{}{}
		tasks.Go(func() {
			defer func() { <-slots }()
			errs[i] = l.give(ctx)
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// away are the nodes on record that have not joined.
func (r *Roster) away(ctx context.Context) (ids []string, err error) {
	all, err := r.Store.Nodes(ctx)
	for _, n := range all {
		if r.member(n.ID) == nil {
			ids = append(ids, n.ID)
		}
	}
	return ids, err
}

// unnamed are the sandboxes of a node that no record names.
func (r *Roster) unnamed(m crew.Member) (all []loss) {
	b := r.unknown(m.Info.ID)
	for _, machine := range b.unknown {
		held := b.held[machine]
		all = append(all, loss{doze.NodeLoss{Kind: doze.LostSandbox, Workspace: held.Workspace, Name: held.Name}, func(ctx context.Context) error {
			if err := m.Node.Delete(ctx, machine); err != nil {
				return err
			}
			r.Crew.Forget(ctx, crew.Machine, machine)
			return nil
		}})
	}
	return all
}

// vanished are the sandboxes that the records have on a node, and that it does not know.
func (r *Roster) vanished(ctx context.Context, m crew.Member) (all []loss, err error) {
	node := m.Info.ID
	some, err := r.Control.Residents(ctx, func(machine string) bool { return r.Crew.Of(crew.Machine, machine) == node })
	if err != nil {
		return nil, err
	}
	some = slices.DeleteFunc(some, func(l control.Lodger) bool {
		switch l.Phase { //nolint:exhaustive // in all others, a node has it
		case doze.Failed, doze.Uploading, doze.Building, doze.Pending, doze.Starting, doze.Deleting:
			return true
		}
		return false
	})
	for batch := range slices.Chunk(some, reportBatch) {
		var machines []string
		for _, l := range batch {
			machines = append(machines, l.Machine)
		}
		there, err := m.Node.Statuses(ctx, machines)
		if err != nil {
			return nil, err
		}
		for _, l := range batch {
			if _, here := there[l.Machine]; here {
				continue
			}
			has, err := r.has(ctx, l.Machine)
			if err == nil && has && (l.Phase == doze.Archived || l.Phase == doze.Unarchiving) {
				has, err = r.Copies.Archived(ctx, l.Machine)
			}
			if err != nil {
				return nil, err
			}
			all = append(all, loss{doze.NodeLoss{Kind: doze.LostSandbox, Workspace: l.Workspace, Name: l.Name, Older: has}, r.restart(l, node, has)})
		}
	}
	return all, nil
}

// restart has a sandbox begin on a node from the bucket, or fail if there is no copy.
func (r *Roster) restart(l control.Lodger, node string, has bool) func(context.Context) error {
	return func(ctx context.Context) error {
		if !has {
			return r.Control.Forsake(ctx, l, errNotHere)
		}
		if err := r.Control.Relent(ctx, l); err != nil {
			return err
		}
		_, err := r.give(ctx, l.Machine, "", node)
		return err
	}
}

// outdated are the volumes of a node that another node claimed later, and does not have.
func (r *Roster) outdated(ctx context.Context, m crew.Member) (all []loss, err error) {
	if r.Copies == nil {
		return nil, nil
	}
	some, err := r.Store.AllVolumes(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range some {
		if r.Crew.Of(crew.Volume, v.ID) != m.Info.ID {
			continue
		}
		newest, err := r.Copies.Claimed(ctx, fleet.VolumeObject(v.ID))
		if err != nil {
			return nil, err
		}
		if newest <= r.Crew.Epoch(crew.Volume, v.ID) {
			continue
		}
		all = append(all, loss{doze.NodeLoss{Kind: doze.LostVolume, Workspace: v.Metadata.Workspace, Name: v.Metadata.Name, Older: true}, func(ctx context.Context) error {
			return r.Crew.Carry(ctx, v.ID, m.Info.ID)
		}})
	}
	return all, nil
}

// refuseToSettle is a Conflict that names what would be lost, by what becomes of it. No record names
// the first ones. The records have the second ones where they are not.
func refuseToSettle(unnamed, missing []loss, away []string) error {
	var parts []string
	add := func(what, names string) { parts = append(parts, what+": "+names) }
	if len(unnamed) > 0 {
		add("No record names these, and they end", tell(unnamed))
	}
	older, nowhere := split(missing)
	if len(older) > 0 {
		add("These are not on their node, and go on from the bucket", tell(older))
	}
	if len(nowhere) > 0 {
		add("These are neither on their node nor in the bucket, and fail", tell(nowhere))
	}
	wait := ""
	if n := len(away); n > 0 {
		names := strings.Join(away[:min(n, namesMost)], ", ")
		if n > namesMost {
			names += fmt.Sprintf(" and %d more", n-namesMost)
		}
		add("These nodes have not joined, and what they got after the backup is lost", names)
		wait = "Wait for these nodes. "
	}
	return doze.Errorf(doze.Conflict, "the records were restored, and are older than the nodes. %s. %sdoze node settle --force does all of that", strings.Join(parts, ". "), wait)
}

// split divides losses by whether the bucket has an older state.
func split(all []loss) (older, nowhere []loss) {
	for _, l := range all {
		if l.Older {
			older = append(older, l)
		} else {
			nowhere = append(nowhere, l)
		}
	}
	return older, nowhere
}
