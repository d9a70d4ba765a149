package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/trace"
)

// Create implements [fleet.Node]: an image, an address, a machine, an agent that
// answers, in that order. If one step fails, those before it are taken back in
// reverse. If that does not work either, Delete tries again.
func (n *Node) Create(ctx context.Context, o fleet.Order) (err error) {
	if hidden(o.UID) {
		return doze.Errorf(doze.Invalid, "the UID %q is one of the platform's own machines", o.UID)
	}
	return n.create(ctx, o, n.plan)
}

// planner says what the machine of an order is made of.
type planner func(context.Context, fleet.Order) (made, error)

func (n *Node) create(ctx context.Context, o fleet.Order, plan planner) (err error) {
	b := n.newBox(o, machine.Config{ID: o.UID}, doze.Starting)
	ctx, traced := n.traceCreate(ctx, b)
	defer func() { traced(err) }()
	b.turn.try() // nobody else has it
	defer b.unlock()
	if err := n.put(b); err != nil {
		b.life.end(err)
		return err
	}
	var u undo
	defer func() {
		if err != nil {
			b.life.end(doze.Wrap(err, doze.Unavailable, "the sandbox could not be started"))
			b.hangUp()
		}
		u.unwind(&err)
	}()
	u.push(func() error { n.drop(b); return nil })
	if err := n.enter(&o, ""); err != nil {
		return err
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	return n.build(ctx, b, plan, &u)
}

// build makes the machine of a new box. Preconditions: the turn is held.
func (n *Node) build(ctx context.Context, b *Box, plan planner, u *undo) error {
	o := b.order
	n.tellMaking(b)
	m, err := plan(ctx, o)
	if err != nil {
		return err
	}
	n.become(b, m)
	b.mu.Lock()
	b.entry.of(&b.made.image, &b.order)
	b.mu.Unlock()
	u.push(func() error { return os.RemoveAll(n.dir(o.UID)) })
	leave, err := n.creates.enter(ctx, o.Workspace)
	if err != nil {
		return err
	}
	defer leave()
	like := b.made.config
	runs, err := n.obtain(ctx, b, u)
	if err != nil {
		return err
	}
	if err := n.inhabit(ctx, b, o, runs); err != nil {
		return err
	}
	if o.From == "" { // else its memory has the program
		n.beginProgram(ctx, b, false)
	}
	// A crash after this line leaves a sandbox that is adopted.
	if err := n.commit(ctx, b, doze.Running); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.life.Err() != nil { // ctx is about to end, too
		return context.Cause(b.life)
	}
	if len(o.Volumes) == 0 && !b.hidden() {
		n.ahead.want(like)
	}
	return b.move(doze.Booted, "")
}

// tellMaking tells the owner of a sandbox that its image has to be made first: that takes
// longer than anybody expects.
func (n *Node) tellMaking(b *Box) {
	if n.Making == nil || b.hidden() || b.order.From != "" {
		return
	}
	if what := n.Making(b.order.Image); what != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.note(what)
	}
}

// plan returns what the machine of an order is made of.
func (n *Node) plan(ctx context.Context, o fleet.Order) (m made, err error) {
	return n.planOf(ctx, o, &n.snapshots)
}

// planOf is plan with the snapshots in which that of the order is.
func (n *Node) planOf(ctx context.Context, o fleet.Order, k *snapshots) (m made, err error) {
	m.config = n.configOf(o)
	c := &m.config
	if t := n.Driver.Traits(); c.Disk > 0 && !t.Disks {
		return m, doze.Errorf(doze.Unsupported, "the driver %s keeps no files on disk: leave out spec.runtime.storage", t.Name)
	}
	defer trace.Next(ctx, trace.Image).End()
	if o.From == "" {
		if m.image, err = n.Image(ctx, o.Image, o.Login); err != nil {
			return m, fmt.Errorf("image %s: %w", o.Image, cause(ctx, err))
		}
	} else {
		s, err := k.read(o.From)
		if err != nil {
			return m, k.unusable(o.From, err)
		}
		if err := n.sameDriver("the snapshot", s.Driver); err != nil {
			return m, err
		}
		m.image = s.Image
		n.HoldImage(m.image.Path)
		s.fix(c)
		c.From = k.copyDir(o.From)
	}
	c.Root, c.Env = m.image.Path, bootEnvironment(m.image, n.Nameservers, *c)
	return m, nil
}

// configOf is what an order alone says of a machine.
func (n *Node) configOf(o fleet.Order) machine.Config {
	return machine.Config{
		Driver: n.Driver.Traits().Name, ID: o.UID, Dir: n.machineDir(o.UID), Agent: n.Agent, Hostname: o.Name, Memory: o.Memory.Bytes(), CPUs: o.Memory.CPUs(),
		Disk: o.Storage.Bytes(), IPTables: o.IPTables, Tun: o.Tun, Containers: o.Containers, GoBack: n.GoBack,
	}
}

// obtain starts the machine of a new box: a spare one, if there is one for it,
// or else one of its own. Preconditions: the turn is held.
func (n *Node) obtain(ctx context.Context, b *Box, u *undo) (machine.Machine, error) {
	own := b.made.config
	if s := n.spare(b); s != nil {
		taken := s.config
		taken.Hostname = own.Hostname
		n.assign(b, taken)
		trace.Of(ctx).Comes(trace.FromPool)
		err := n.commit(ctx, b, doze.Starting) // a crash finds whose it is
		if err == nil {
			networking := trace.Start(ctx, trace.Network)
			err = b.rules.admit(taken.ID)
			networking.End()
		}
		if err == nil {
			err = s.Resume(ctx)
		}
		end := func() error { return s.end(context.WithoutCancel(ctx)) }
		if err == nil {
			u.push(end)
			return s.Machine, nil
		}
		slog.Warn("a spare machine does not work", "sandbox", b.order.UID, "err", err)
		if err := errors.Join(context.Cause(ctx), end()); err != nil {
			return nil, err
		}
		n.assign(b, own)
	}
	if err := n.commit(ctx, b, doze.Starting); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	return n.boot(ctx, b, b.order, u)
}

// spare is a machine for a new box that was started ahead, or nil. None has
// volumes, and none is hidden.
func (n *Node) spare(b *Box) *spare {
	if len(b.order.Volumes) > 0 || b.hidden() {
		return nil
	}
	return n.ahead.take(b.made.config)
}

// boot leases the network of the machine that b.made.config says, attaches its volumes
// and starts it.
// Preconditions: the turn is held.
func (n *Node) boot(ctx context.Context, b *Box, o fleet.Order, u *undo) (_ machine.Machine, err error) {
	if err := n.reserveMemory(ctx, b.made.config); err != nil {
		return nil, err
	}
	owner := b.made.config.ID
	u.push(func() error { n.reservations.release(owner); return nil })
	u.push(func() error { return n.Release(o.UID) })
	networking := trace.Start(ctx, trace.Network)
	if b.made.config.Link, err = b.rules.lease(ctx, o.UID); err != nil {
		return nil, fmt.Errorf("lease an address: %w", cause(ctx, err))
	}
	networking.End()
	u.push(func() error { return n.detach(o.UID) })
	attaching := trace.Start(ctx, trace.Volumes)
	if b.made.config.Volumes, err = n.attach(ctx, o); err != nil {
		return nil, fmt.Errorf("attach its volumes: %w", cause(ctx, err))
	}
	attaching.End()
	if from := trace.Of(ctx); b.made.config.From == "" {
		from.Comes(trace.FromImage)
	} else {
		from.Comes(trace.FromSnapshot)
	}
	m, err := n.Driver.Boot(ctx, b.made.config)
	if err != nil {
		err = fmt.Errorf("boot: %w", cause(ctx, err))
		if errors.Is(err, machine.ErrNoVolumes) {
			err = doze.Wrap(err, doze.Unavailable, "the node's launcher is older than volumes: the operator must end the launcher that the node's log names")
		}
		if errors.Is(err, machine.ErrNoDisks) {
			err = doze.Wrap(err, doze.Unavailable, "the node's launcher is older than storage: the operator must end the launcher that the node's log names")
		}
		if o.From != "" {
			err = n.snapshots.unusable(o.From, err)
		}
		return nil, err
	}
	u.push(func() error { return m.Close(context.WithoutCancel(ctx)) })
	b.made.config.From = "" // it is a machine like any other now
	return m, nil
}

// inhabit gives a box a machine that has just started and tells its agent whose
// it is. Preconditions: the turn is held.
func (n *Node) inhabit(ctx context.Context, b *Box, o fleet.Order, m machine.Machine) error {
	defer trace.Start(ctx, trace.Agent).End()
	b.mu.Lock()
	b.machine = m
	b.mu.Unlock()
	in, err := n.identity(b, o)
	if err != nil {
		return err
	}
	if err := introduce(ctx, b.agent(), m, in); err != nil {
		return fmt.Errorf("wait for the agent: %w", err)
	}
	b.rules.told(n.networkEnvironment(o.Network))
	return b.inform(ctx, b.agent()) // the rules may have changed meanwhile
}

// identity is whose the agent of a box is. Preconditions: the turn is held.
func (n *Node) identity(b *Box, o fleet.Order) (in agentapi.Identity, err error) {
	trust, err := n.trust(o)
	env := n.environment(b.made.image, o)
	return agentapi.Identity{Hostname: b.order.Name, Env: env, Trust: trust, Platform: n.platformNames(env, o.Network)}, err
}

// cause returns why ctx ended, if it did, or else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// dir is where everything of a sandbox is.
func (n *Node) dir(uid string) string { return filepath.Join(n.Dir, uid) }

func (n *Node) machineDir(uid string) string { return filepath.Join(n.dir(uid), machineName) }
