package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/conn"
	"github.com/dozehq/doze/internal/node/entry"
	"github.com/dozehq/doze/internal/node/idle"
	"github.com/dozehq/doze/internal/node/lifecycle"
	"github.com/dozehq/doze/internal/node/mount"
	"github.com/dozehq/doze/internal/trace"
)

// A Box is one sandbox on this node. It owns the machine: a change holds the turn until
// machine, phase and record agree again.
//
// Its parts decide; the methods of the box act on what they say. Each part says
// which lock guards it. The order of locks is turn, mu, that of conns.
type Box struct {
	n     *Node
	order fleet.Order // as it was created
	life  life
	turn  turn
	made  made      // guarded by the turn
	rules *rules    // has a lock of its own, which is never held with mu
	logs  collector // its output, on the way to the logbook
	entry program   // the program of its image
	conns *conn.Set // has a lock of its own

	mu         sync.Mutex
	machine    machine.Machine // guarded by mu; nil until it booted and after it is gone
	state      lifecycle.State // guarded by mu; moved by move only
	asleep     time.Time       // guarded by mu; when it fell asleep last, or was adopted
	gate       entry.Gate      // guarded by mu; who may enter
	use        idle.Use        // guarded by mu; why it may not fall asleep
	sinking    *sinking        // guarded by mu; the way to lower tiers, and why it goes no further
	checkpoint checkpoint      // guarded by mu; how old it is, and what it leaves out
	wakes      wakes           // guarded by mu
	spent      consumption     // guarded by mu; what it did and took so far
	mounts     mount.Table     // guarded by mu; of drives
	absent     *absence        // written with turn and mu held; nil if its memory is here
	copied     time.Time       // guarded by mu; of when its newest copy in the bucket is; zero without one
	sending    time.Time       // guarded by mu; of when a copy is that the bucket may have, too; zero without one
	departed   bool            // guarded by mu; its record says that another node may have it
	received   bool            // guarded by mu; its checkpoint is that copy
	outdated   time.Time       // guarded by mu; since when what the bucket had is older than it, in this process
	stranger   bool            // guarded by the turn; its agent has not been told that it is on this node
	// copying ends the copy of its volumes that a wake would wait for; nil without one. Guarded
	// by mu.
	copying context.CancelCauseFunc
}

// made is what the machine of a box is made of.
type made struct {
	config machine.Config
	image  Image
}

// newBox returns a box without a machine.
func (n *Node) newBox(o fleet.Order, c machine.Config, phase doze.Phase) *Box {
	now := time.Now()
	b := &Box{
		n: n, order: o, life: newLife(n.life, &n.tasks), turn: newTurn(), made: made{config: c},
		rules: newRules(o, n.Lease, n.Admit),
		state: lifecycle.New(phase, "", uint64(n.era)), //nolint:gosec // G115: a time in our days, or later
		use:   idle.New(now, o.Grace), checkpoint: newCheckpoint(now, n.Driver.Traits()), mounts: mount.New(),
		spent: consumption{since: now}, asleep: now,
	}
	b.conns = conn.New(b.life.Context, reach{b})
	b.sinking = newSinking(b)
	b.logs.b = b
	b.entry.b, b.entry.since = b, now
	return b
}

// unlock ends the turn. What the machine may take of the memory is known then.
func (b *Box) unlock() {
	b.account()
	b.turn.leave()
}

// handle returns the machine, and looks for it if it could not be adopted when
// the node started. Preconditions: the turn is held.
func (b *Box) handle(ctx context.Context) (machine.Machine, error) {
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if m != nil {
		return m, nil
	}
	return b.find(ctx)
}

// find adopts the machine. Preconditions: the turn is held, or nobody else has
// the box yet.
func (b *Box) find(ctx context.Context) (machine.Machine, error) {
	defer trace.Start(ctx, trace.Find).End()
	if b.isAbsent() {
		return b.receive(ctx)
	}
	// The address is the same as before; after a reboot its namespace is new.
	link, err := b.rules.lease(ctx, b.made.config.ID)
	if err != nil {
		return nil, fmt.Errorf("lease an address: %w", err)
	}
	b.made.config.Link = link
	// After a restart of the host nothing is mounted any more.
	if b.made.config.Volumes, err = b.n.attach(ctx, b.order); err != nil {
		return nil, fmt.Errorf("attach its volumes: %w", err)
	}
	return b.n.Driver.Adopt(ctx, b.made.config)
}

// change runs do with the machine in a turn of its own, and then settle, with
// mu held and before the turn ends: nobody finds the machine changed and the
// phase not.
func (b *Box) change(ctx context.Context, do func(machine.Machine) error, settle func(error)) {
	turn := trace.Next(ctx, trace.Turn)
	err := b.turn.take(ctx)
	turn.End()
	if err == nil {
		defer b.unlock()
		var m machine.Machine
		if m, err = b.handle(ctx); err == nil {
			b.mu.Lock()
			b.machine = m
			b.mu.Unlock()
			err = do(m)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	settle(err)
}

// agent asks the agent of b, without waking b.
func (b *Box) agent() agentapi.Client { return agentapi.Client{Transport: b.conns.HTTP()} }

// move applies one transition, reports it and wakes everyone who waits for a
// change. Preconditions: mu is held.
func (b *Box) move(on doze.Trigger, message string) error {
	from, err := b.state.Move(on, message)
	if err != nil {
		return err
	}
	next := b.state.Phase()
	slog.Debug("transition", "sandbox", b.order.UID, "from", from, "on", on, "phase", next)
	b.use.Move(from, next, time.Now())
	if next == doze.Standby {
		b.asleep = time.Now()
	}
	b.spent.moved(from, next)
	b.n.ledger.settle(&b.order, next)
	b.serveDrives()
	b.logs.serve()
	b.entry.serve()
	b.sinking.arm()
	b.report(message, false)
	return nil
}

// lieDown lets a running box sleep whose machine turned out not to be awake, and
// reports whether it did. Preconditions: the turn and mu are held.
func (b *Box) lieDown(message string) bool {
	if b.state.Phase() != doze.Running || b.machine != nil && b.machine.Tier() == machine.Awake {
		return false
	}
	_ = b.move(doze.Idled, "")          // Running has a row for Idled
	_ = b.move(doze.Suspended, message) // as Suspending has for this
	return true
}

// note reports something that changes no phase. Preconditions: mu is held.
func (b *Box) note(message string) { b.report(message, true) }

// report queues a report. Preconditions: mu is held.
func (b *Box) report(message string, note bool) {
	now := time.Now()
	r := b.state.Report(message, note, now)
	if b.hidden() { // control has no record of it
		slog.Info("a machine of the platform", "machine", b.order.UID, "phase", r.Phase, "message", message)
		return
	}
	r.UID, r.LastUsed = b.order.UID, b.use.At(r.Phase, now)
	b.n.reports.put(r)
}

// phase is where the box is now.
func (b *Box) phase() doze.Phase {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.Phase()
}

// status returns what is known now.
func (b *Box) status() fleet.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	phase := b.state.Phase()
	s := fleet.Status{Phase: phase, LastUsed: b.use.At(phase, time.Now()), InUse: b.use.InUse(phase)}
	if b.machine != nil {
		s.Tier = b.machine.Tier().String()
	}
	if b.checkpoint.back != nil {
		s.Setback = new(b.checkpoint.back.Setback)
	}
	s.Entrypoint = b.entry.shown()
	return s
}
