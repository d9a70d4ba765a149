package roster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/placement"
)

const (
	// movesMost is how many sandboxes get other nodes at a time: each waits for a few
	// answers of the bucket.
	movesMost = 16
	// rescueEvery is how soon a sandbox is tried again that could not begin elsewhere.
	rescueEvery = 5 * time.Second
	// partTime is more than a node waits for requests to a sandbox that moves to end.
	partTime = time.Minute
)

// rescue has sandboxes of lost nodes go on elsewhere, until ctx ends. One that takes long keeps
// no other one waiting: a node that does not answer, or its bucket, may.
func (r *Roster) rescue(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for busy := newBusy(); r.lost.Wait(ctx, rescueEvery); {
		lost, pending, parting := r.unsettled()
		if len(lost)+len(pending)+len(parting) == 0 {
			continue
		}
		restored, err := r.Store.Restored(ctx)
		if restored = restored || err != nil; restored { // the records may name the wrong node of a sandbox
			lost, pending = nil, nil
		}
		all, err := r.Control.Lodgers(ctx, func(machine string) bool {
			return pending[machine] || parting[machine] || lost[r.Crew.Of(crew.Machine, machine)]
		}, r.among(lost, pending, parting), lost[r.Crew.Home()])
		if err != nil {
			slog.ErrorContext(ctx, "nobody knows what lost nodes had", "err", err)
			continue
		}
		r.prune(all, pending, parting)
		some := busy.begin(all)
		if len(some) == 0 && len(all) > 0 {
			continue
		}
		tasks.Go(func() {
			failed := each(ctx, busy.slots, some, func(l control.Lodger) error {
				defer busy.end(l)
				return r.bring(ctx, l, restored)
			})
			if len(some) > 0 {
				rescued(ctx, slog.Default(), len(some), failed)
			}
			if failed == 0 && len(some) == len(all) {
				r.settled(lost)
			}
		})
	}
}

// rescued logs what became of sandboxes that were to go on elsewhere.
func rescued(ctx context.Context, log *slog.Logger, all, failed int) {
	switch failed {
	case 0:
		log.InfoContext(ctx, "brought sandboxes of lost nodes to others", "sandboxes", all)
	case all:
		log.WarnContext(ctx, "no sandbox of lost nodes could go on elsewhere yet: they are tried again", "sandboxes", all)
	default:
		log.WarnContext(ctx, "some sandboxes of lost nodes could not go on elsewhere yet: they are tried again", "sandboxes", all, "failed", failed)
	}
}

// busy are the sandboxes that a rescue is at.
type busy struct {
	slots chan struct{} // movesMost of them

	mu    sync.Mutex
	those map[string]bool // guarded by mu; by UID
}

func newBusy() *busy { return &busy{slots: make(chan struct{}, movesMost), those: map[string]bool{}} }

// begin returns the sandboxes that nobody is at. From now on somebody is, until end.
func (b *busy) begin(all []control.Lodger) (some []control.Lodger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range all {
		if !b.those[l.UID] {
			b.those[l.UID] = true
			some = append(some, l)
		}
	}
	return some
}

func (b *busy) end(l control.Lodger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.those, l.UID)
}

// among are the machines that nodes had, and some more. The home has those without a place, too.
func (r *Roster) among(nodes map[string]bool, more ...map[string]bool) []string {
	all := []string{}
	for node := range nodes {
		all = append(all, r.machines(node)...)
	}
	for _, some := range more {
		all = slices.AppendSeq(all, maps.Keys(some))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// prune forgets machines that are gone: pending ones without a place, and parting ones that
// are not among the living lodgers.
func (r *Roster) prune(living []control.Lodger, pending, parting map[string]bool) {
	there := map[string]bool{}
	for _, l := range living {
		there[l.Machine] = true
	}
	for machine := range pending {
		if !there[machine] && r.Crew.Epoch(crew.Machine, machine) < firstEpoch {
			r.pend(machine, false)
		}
	}
	for machine := range parting {
		if !there[machine] {
			r.part(machine, false)
		}
	}
}

// each does something for all, as many at a time as there are slots, and returns how often it failed.
func each(ctx context.Context, slots chan struct{}, all []control.Lodger, do func(control.Lodger) error) (failed int) {
	var tasks sync.WaitGroup
	var mu sync.Mutex
	for _, l := range all {
		slots <- struct{}{}
		tasks.Go(func() {
			defer func() { <-slots }()
			if err := do(l); err != nil {
				mu.Lock()
				failed++
				mu.Unlock()
				if ctx.Err() == nil {
					slog.WarnContext(ctx, "a sandbox could not go on elsewhere yet", "sandbox", l.UID, "name", l.Name, "err", err)
				}
			}
		})
	}
	tasks.Wait()
	return failed
}

// bring begins a sandbox elsewhere whose node is lost, or completes that. If the records were
// restored, it completes alone. Nobody restores records that a control has.
func (r *Roster) bring(ctx context.Context, l control.Lodger, restored bool) error {
	return r.Control.InTurn(ctx, l, func(ctx context.Context, o fleet.Order, last control.Use) error {
		from, put := r.Crew.Of(crew.Machine, o.UID), r.take
		switch lost, pending, parting := r.unsettledOf(from, o.UID); {
		case restored && !parting: // the records may name the wrong node
			return nil
		case lost:
			if stays, err := r.onlyThere(ctx, &o); stays || err != nil {
				return err
			}
		case pending:
			from, put = "", r.give // it has its place, at which nobody runs it
		case parting:
			return r.stay(ctx, o.UID)
		default:
			return nil // its node came back
		}
		err := r.settle(ctx, o, last, from, "", put)
		switch {
		case err == nil && r.Crew.Of(crew.Machine, o.UID) != from:
			r.tally.resumed.Add(1)
		case doze.Public(err).Kind == doze.NotFound:
			r.tally.failed.Add(1)
		}
		return err
	})
}

// onlyThere reports whether the archive of a sandbox is on its node alone. It waits for the node: what
// the bucket has is older, and must replace nothing.
func (r *Roster) onlyThere(ctx context.Context, o *fleet.Order) (bool, error) {
	if !o.Archived {
		return false, nil
	}
	has, err := r.Copies.Archived(ctx, o.UID)
	return !has, err
}

// A putter records that a machine goes from one node to another, and reports whether it
// does.
type putter func(ctx context.Context, machine, from, to string) (taken bool, err error)

// give records the place of a machine that nobody runs.
func (r *Roster) give(ctx context.Context, machine, _, to string) (taken bool, err error) {
	r.pend(machine, true)
	return true, r.Crew.Move(ctx, crew.Machine, machine, to)
}

// settle begins a sandbox at its place. If that is from, it gets another place first, which
// is to, if that is named. The first other place is recorded by put, which may find that the
// sandbox stays where it is. A node that does not answer may have begun it. The node is asked
// again, and no other one is until it is lost.
func (r *Roster) settle(ctx context.Context, o fleet.Order, last control.Use, from, to string, put putter) error {
	w := placement.Want{Memory: o.Memory, Disk: o.Storage, Image: o.Image, Driver: r.Crew.Driver(r.Crew.Of(crew.Machine, o.UID)), From: from, To: to}
	for _, v := range o.Volumes {
		w.Disk += v.Size
	}
	for at := r.Crew.Of(crew.Machine, o.UID); ; {
		if at == from {
			next, err := r.Crew.Allot(o.UID, o.Workspace, w)
			if err != nil {
				return err
			}
			// It may have been there before, and nobody could say then that it left.
			if err := r.while(ctx, next, func(ctx context.Context) error { return r.leave(ctx, next, o.UID) }); err != nil {
				return err
			}
			if taken, err := put(ctx, o.UID, from, next); err != nil || !taken {
				return err
			}
			at, put = next, r.give
		}
		if r.purges(at, o.UID) {
			return doze.Errorf(doze.Unavailable, "the node %s removes an older copy of the sandbox first", at)
		}
		err := r.follow(ctx, &o)
		if err == nil {
			err = r.while(ctx, at, func(ctx context.Context) error {
				_, err := r.Crew.Revive(ctx, o, last.At, last.Ran)
				return err
			})
		}
		if errors.Is(err, fleet.ErrFull) {
			w.Not, from = append(w.Not, at), at
			continue
		}
		if err == nil {
			r.Crew.Arrived(o.UID)
		}
		if err == nil || doze.Public(err).Kind == doze.NotFound { // of which nothing is left
			r.pend(o.UID, false)
		}
		return err
	}
}

// while asks a node something, until it is lost. One that stands still answers nothing, and nobody
// has to wait for it any more.
func (r *Roster) while(ctx context.Context, node string, ask func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if m := r.member(node); m != nil {
		defer context.AfterFunc(m.here, func() { cancel(errLost) })()
	}
	return ask(ctx)
}

// pend takes note whether a sandbox has a place at which it has not begun.
func (r *Roster) pend(machine string, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is {
		r.pending[machine] = true
	} else {
		delete(r.pending, machine)
	}
}

// Move moves a sandbox that runs or sleeps to another node, or to the one that is named.
// Requests to it wait meanwhile.
func (r *Roster) Move(ctx context.Context, l control.Lodger, to string) error {
	if to != "" && r.member(to) == nil { // not in turn, where what is not found is the sandbox
		return r.absent(ctx, to)
	}
	return r.Control.InTurn(ctx, l, func(ctx context.Context, o fleet.Order, last control.Use) error {
		from := r.Crew.Of(crew.Machine, o.UID)
		if from == to {
			return nil
		}
		if to != "" && r.member(to) == nil {
			return errAway(to)
		}
		r.part(o.UID, true)
		parting, cancel := context.WithTimeout(ctx, partTime+copyTime)
		defer cancel()
		if err := r.Crew.Depart(parting, o.UID); err != nil {
			r.tally.stayed.Add(1)
			slog.WarnContext(ctx, "a sandbox stays where it is", "sandbox", o.UID, "node", from, "err", err)
			return errors.Join(notHere(err), r.stay(context.WithoutCancel(ctx), o.UID))
		}
		// From here on the record of its place says which node has it, even if control ends.
		err := r.settle(ctx, o, control.Use{Ran: last.Ran}, from, to, r.give) // nothing is lost
		if r.Crew.Of(crew.Machine, o.UID) == from {
			r.tally.stayed.Add(1)
			return errors.Join(err, r.stay(context.WithoutCancel(ctx), o.UID))
		}
		r.part(o.UID, false)
		r.tally.moved.Add(1)
		if err := r.leave(ctx, from, o.UID); err != nil {
			slog.WarnContext(ctx, "a node still has a sandbox that moved", "node", from, "sandbox", o.UID, "err", err)
		}
		r.Crew.Left(ctx, &o, from)
		if err != nil { // the bucket has it: it begins there later
			r.lost.Ring()
		}
		return err
	})
}

// absent is what a caller hears who named a node that has not joined.
func (r *Roster) absent(ctx context.Context, node string) error {
	_, err := r.Store.Node(ctx, node)
	switch {
	case doze.Public(err).Kind == doze.NotFound:
		return doze.Wrap(err, doze.NotFound, "there is no node %.200s: doze node ls shows those that there are", node)
	case err != nil:
		return err
	}
	return errAway(node)
}

func errAway(node string) error {
	return doze.Errorf(doze.Conflict, "the node %s is away: start it, or name another one", node)
}

// notHere is what a caller hears of an error of a node that a sandbox is to leave. That the
// node does not have it says nothing of the sandbox: it begins there soon.
func notHere(err error) error {
	if errors.Is(err, fleet.ErrMoved) {
		return doze.Wrap(err, doze.Unavailable, "the sandbox is not on its node yet: try again in a moment")
	}
	return fleet.Tell(err, "the move of the sandbox")
}

// stay has a sandbox wake again that was to move, and does not. If its node cannot be
// asked now, it is asked again.
func (r *Roster) stay(ctx context.Context, machine string) error {
	err := r.Crew.Return(ctx, machine)
	if err == nil {
		r.part(machine, false)
	}
	return err
}

// part takes note whether the node of a sandbox may keep it from waking, since it is to move.
func (r *Roster) part(machine string, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if is {
		r.parting[machine] = true
	} else {
		delete(r.parting, machine)
	}
}

// copyTime is how long the copy of a sandbox that moves may take.
const copyTime = 10 * time.Minute

// leave has a node forget a sandbox that another node has. One that cannot hear of it now
// is told when it joins again.
func (r *Roster) leave(ctx context.Context, node, machine string) error {
	if m, there := r.Crew.Member(node); there {
		return m.Node.Leave(ctx, machine)
	}
	return nil
}

// Drain moves all sandboxes of a node to others, and returns how many stayed. The node
// takes no new ones.
func (r *Roster) Drain(ctx context.Context, id string) (moved, stayed int, err error) {
	if err := r.SetState(ctx, id, doze.NodeDraining); err != nil {
		return 0, 0, err
	}
	all, err := r.lodgers(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	stayed = each(ctx, make(chan struct{}, movesMost), all, func(l control.Lodger) error { return r.Move(ctx, l, "") })
	return len(all) - stayed, stayed, nil
}

// unsettled are the nodes that are lost and may have had something. Pending machines have a
// place at which they have not begun, and parting ones wait to depart.
func (r *Roster) unsettled() (lost, pending, parting map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.gones), maps.Clone(r.pending), maps.Clone(r.parting)
}

// unsettledOf reports whether a node is among those, and a machine.
func (r *Roster) unsettledOf(node, machine string) (lost, pending, parting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gones[node], r.pending[machine], r.parting[machine]
}

// settled takes note that nothing of lost nodes is left to do.
func (r *Roster) settled(lost map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range lost {
		delete(r.gones, id)
	}
}
