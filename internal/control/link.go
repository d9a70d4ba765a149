package control

import (
	"context"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

// Link is what a server offers to those who keep its nodes.
type Link struct{ *Server }

// TellNode tells a node what its process before knew: limits, and for each sandbox that
// is there, its grace period and network. The node can have no other machines than those
// among which it is asked for them; nil is any.
func (l Link) TellNode(ctx context.Context, n fleet.Node, has func(machine string) bool, among []string) error {
	return l.tellNode(ctx, n, has, among)
}

// Accept records reports of a node. When it returns, they outlast a crash.
func (l Link) Accept(ctx context.Context, reports []fleet.Report) error {
	return l.accept(ctx, reports)
}

// Inform says what the nodes of the platform can do.
func (l Link) Inform(info fleet.NodeInfo) { l.node.Store(&info) }

// A Lodger is a living sandbox that has, or had, a machine on a node. Phase is that on record.
type Lodger struct {
	UID, Machine, Workspace, Name string
	Used                          time.Time // when it was used last, as far as that is known
	Phase                         doze.Phase
}

func lodgerOf(sb store.Sandbox) Lodger {
	return Lodger{sb.UID, sb.Machine, sb.Metadata.Workspace, sb.Metadata.Name, sb.LastUsed, sb.Phase}
}

// Lodgers returns the living sandboxes whose machines are at a place, those first that were
// used last. Only those are looked at whose machines are among some, or have no place on
// record if unplaced is true.
func (l Link) Lodgers(ctx context.Context, at func(machine string) bool, among []string, unplaced bool) (all []Lodger, err error) {
	look := func(sb store.Sandbox) error {
		if slices.Contains(movable, sb.Phase) && at(sb.Machine) {
			all = append(all, lodgerOf(sb))
		}
		return nil
	}
	err = l.Store.EachOf(ctx, among, look)
	if unplaced && err == nil {
		err = l.Store.EachUnplaced(ctx, look)
	}
	slices.SortStableFunc(all, func(a, b Lodger) int { return b.Used.Compare(a.Used) })
	return all, err
}

// movable are the phases of sandboxes that have a memory or an archive, and can go on elsewhere.
var movable = []doze.Phase{doze.Running, doze.Suspending, doze.Standby, doze.Waking, doze.Disabling, doze.Disabled, doze.Archived}

// awake are the phases of sandboxes that do something.
var awake = []doze.Phase{doze.Running, doze.Suspending, doze.Waking}

// LodgerNamed returns the sandbox of a name.
func (l Link) LodgerNamed(ctx context.Context, workspace, name string) (Lodger, error) {
	sb, err := l.Store.SandboxByName(ctx, workspace, name)
	if err != nil {
		return Lodger{}, err
	}
	if !slices.Contains(movable, sb.Phase) {
		return Lodger{}, doze.Errorf(doze.Conflict, "the sandbox is %s: only one that runs, sleeps or is archived has a node", sb.Phase.Status())
	}
	return lodgerOf(sb), nil
}

// A Use is the last use of a sandbox, as far as that is known.
type Use struct {
	At  time.Time
	Ran bool // its processes ran, and so it is in use until now
}

// InTurn has a sandbox begin somewhere else while nobody changes it. do gets the order for
// it, and what is known of its last use. A sandbox that has another machine meanwhile, or
// ends, is left alone. If do finds no copy, the sandbox fails for good.
func (l Link) InTurn(ctx context.Context, of Lodger, do func(ctx context.Context, o fleet.Order, last Use) error) error {
	life, release, err := l.take(ctx, of.UID, 0)
	if err != nil {
		return err
	}
	defer release()
	sb, err := l.Store.Sandbox(life, of.UID)
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	if err != nil || sb.Machine != of.Machine || !slices.Contains(movable, sb.Phase) {
		return err
	}
	o, err := l.order(life, sb)
	if err != nil {
		return err
	}
	o.Archived = sb.Phase == doze.Archived
	last := Use{At: sb.LastUsed, Ran: slices.Contains(awake, sb.Phase)}
	if last.Ran {
		last.At = time.Now() // until now, as far as anybody knows
	}
	err = do(life, o, last)
	if doze.Public(err).Kind == doze.NotFound {
		return l.giveUp(life, sb, err)
	}
	if err != nil {
		return err
	}
	if sb.Phase == doze.Disabled || sb.Phase == doze.Disabling {
		return l.Node.Disable(life, sb.Machine)
	}
	return nil
}

// Residents returns the living sandboxes of all phases whose machines are at a place.
func (l Link) Residents(ctx context.Context, at func(machine string) bool) (all []Lodger, err error) {
	err = l.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		if at(sb.Machine) {
			all = append(all, lodgerOf(sb))
		}
		return nil
	})
	return all, err
}

// Forsake has a sandbox fail whose machine is lost for good, and says why. A sandbox that has another
// machine meanwhile, failed or ends, is left alone.
func (l Link) Forsake(ctx context.Context, of Lodger, why error) error {
	return l.still(ctx, of, func(ctx context.Context, sb store.Sandbox) error {
		if sb.Phase.Ended() || sb.Phase == doze.Failed {
			return nil
		}
		return l.giveUp(ctx, sb, why)
	})
}

// Relent takes back an archive that was begun, or the way back from it: the node that was at it is
// lost for good. The sandbox can go on elsewhere then.
func (l Link) Relent(ctx context.Context, of Lodger) error {
	return l.still(ctx, of, func(ctx context.Context, sb store.Sandbox) error {
		if sb.Phase != doze.Archiving && sb.Phase != doze.Unarchiving {
			return nil
		}
		_, err := l.Store.Apply(ctx, sb.UID, store.Step{On: doze.Stayed, Message: "its node was removed meanwhile", At: time.Now()})
		return err
	})
}

// still does something in the turn of a sandbox that has the same machine as before.
func (l Link) still(ctx context.Context, of Lodger, do func(context.Context, store.Sandbox) error) error {
	life, release, err := l.take(ctx, of.UID, 0)
	if err != nil {
		return err
	}
	defer release()
	sb, err := l.Store.Sandbox(life, of.UID)
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	if err != nil || sb.Machine != of.Machine {
		return err
	}
	return do(life, sb)
}

// giveUp says of a sandbox that nothing is left of it.
func (l Link) giveUp(ctx context.Context, sb store.Sandbox, why error) error {
	sb, err := l.Store.Apply(ctx, sb.UID, store.Step{On: doze.Broke, Message: doze.Public(why).Message, At: time.Now(), Machine: store.NewID()})
	if err == nil {
		l.putUpstream(ctx, sb)
	}
	return err
}
