package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/trace"
)

const (
	// wakeTimeout bounds a wake. It is far above what we aim for, so that only
	// a machine that will never answer, or a very large one on a slow disk,
	// runs into it.
	wakeTimeout = 60 * time.Second

	// retrySink is the pause after a move to a lower tier that did not work,
	// such as one to a full disk.
	retrySink = time.Minute

	// silentMax is how often in a row an agent may be too busy to say whether
	// its sandbox must stay awake: it must, then. An agent that is dead must not
	// keep it awake for ever.
	silentMax = 10
)

// A Box is one sandbox on this node. It owns the machine: whoever changes it
// holds the turn until machine, phase and record agree again.
type Box struct {
	n      *Node
	order  fleet.Order
	config machine.Config  // written by the maker of a machine, which holds the turn
	image  Image           // likewise: what the machine is made of
	noted  string          // likewise: what its record says that a checkpoint would leave out
	life   context.Context //nolint:containedctx // ends when the box is deleted or the node stops; its cause is public
	end    context.CancelCauseFunc
	turn   chan struct{} // held by whatever changes the machine
	client *http.Transport
	traces trace.Ring

	rules   sync.Mutex    // held while a network is put in force; never with mu
	network *doze.Network // guarded by rules; nil before control says what it is

	mu          sync.Mutex
	machine     machine.Machine    // guarded by mu; nil until it booted and after it is gone
	phase       doze.Phase         // guarded by mu; written by move only
	message     string             // guarded by mu; why it is in its phase, if there is more to say
	seq         uint64             // guarded by mu; of the last report
	changed     chan struct{}      // guarded by mu; closed and replaced by each change
	attempt     *attempt           // guarded by mu; the wake under way
	asked       time.Time          // guarded by mu; since when somebody waits for a wake; zero if nobody does
	sinking     context.CancelFunc // guarded by mu; ends the move to a lower tier under way
	stuck       bool               // guarded by mu; the last such move did not work
	frozen      bool               // guarded by mu; a snapshot is being taken, and requests wait
	unswappable bool               // guarded by mu; in this sleep its memory could not be moved to swap
	blockers    string             // guarded by mu; what a checkpoint would leave out, when its agent was asked
	restless    bool               // guarded by mu; it could not be paused the last time
	silent      int                // guarded by mu; how often in a row its agent did not say whether it must stay awake
	retired     bool               // guarded by mu; it is about to be deleted, and lets nobody in
	grace       time.Duration      // guarded by mu; what its processes get to end by themselves
	parting     bool               // guarded by mu; its processes have time to end, and it does not fall asleep
	holds       int                // guarded by mu; requests in flight
	kept        bool               // guarded by mu; a process inside asked to stay awake
	lastUsed    time.Time          // guarded by mu
	woke        time.Time          // guarded by mu; when it came back from disk
	saved       time.Time          // guarded by mu; of its last checkpoint, or its boot; zero if an earlier process left it awake
	putOff      time.Time          // guarded by mu; when its checkpoint was last not renewed although it was due
	timer       *time.Timer        // guarded by mu; the next step down
	conns       map[*conn]struct{} // guarded by mu; connections into the machine
	line        line               // guarded by mu; what connections that are made now depend on
	drives      map[string]*drive  // guarded by mu; what is mounted, by its id
	early       *early             // guarded by mu; the connection made while it woke, until somebody takes it
	back        *setback           // guarded by mu; the last time it went back to a checkpoint; nil if it never did
	fell        machine.Machine    // guarded by mu; whose setback that is
}

// goneMessage says what happened to a machine that the engine does not know any
// more.
const goneMessage = "its machine is gone, and its memory with it"

// attempt is one wake, which any number of requests wait for.
type attempt struct {
	done  chan struct{}
	err   error // set before done is closed
	trace *trace.Trace
}

// newBox returns a box without a machine.
func (n *Node) newBox(o fleet.Order, c machine.Config, phase doze.Phase) *Box {
	b := &Box{
		n: n, order: o, config: c, phase: phase, network: o.Network, grace: o.Grace,
		turn: make(chan struct{}, 1), changed: make(chan struct{}), lastUsed: time.Now(), saved: time.Now(),
		conns: map[*conn]struct{}{}, drives: map[string]*drive{}, seq: uint64(n.era), //nolint:gosec // G115: a time in our days, or later
	}
	b.life, b.end = context.WithCancelCause(n.life)
	b.client = b.transport()
	b.line = newLine(b.life)
	b.timer = time.AfterFunc(time.Hour, b.step)
	b.timer.Stop()
	return b
}

// spawn runs do in a goroutine that the node waits for. At the end of the box's
// life nothing new begins, and it reports false. Preconditions: mu is held.
func (b *Box) spawn(do func()) bool {
	if b.life.Err() != nil {
		return false
	}
	b.n.tasks.Go(do)
	return true
}

// bound returns a context that ends with ctx and with the box.
func (b *Box) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return within(ctx, b.life)
}

// within returns a context that ends with ctx, and with life for its reason.
func within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// lock takes the turn to change the machine.
func (b *Box) lock(ctx context.Context) error {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // both were ready
		b.unlock()
		return context.Cause(ctx)
	}
	return nil
}

// unlock ends the turn. What the machine may take of the memory is known then.
func (b *Box) unlock() {
	b.account()
	<-b.turn
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
	// The address is the same as before; after a reboot its namespace is new.
	link, err := b.lease(ctx, b.config.ID)
	if err != nil {
		return nil, fmt.Errorf("lease an address: %w", err)
	}
	b.config.Link = link
	// After a restart of the host nothing is mounted any more.
	if b.config.Volumes, err = b.n.attach(ctx, b.order); err != nil {
		return nil, fmt.Errorf("attach its volumes: %w", err)
	}
	return b.n.Driver.Adopt(ctx, b.config)
}

// change runs do with the machine in a turn of its own, and then settle, with
// mu held and before the turn ends: nobody finds the machine changed and the
// phase not.
func (b *Box) change(ctx context.Context, do func(machine.Machine) error, settle func(error)) {
	turn := trace.Next(ctx, trace.Turn)
	err := b.lock(ctx)
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

// Hold keeps the box running until release is called. A sleeping box is woken;
// callers that come meanwhile wait for the same wake. The port is the one that
// the caller is about to connect to.
func (b *Box) Hold(ctx context.Context, port uint16) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	arrived := arrival{caller: trace.CallerOf(ctx), at: time.Now()}
	b.lastUsed = arrived.at
	for b.retired || b.phase != doze.Running || b.frozen {
		try, err := b.wakeable(port, arrived)
		if err != nil {
			return nil, err
		}
		arrived.waited = true
		if err := b.wait(ctx, try); err != nil {
			return nil, err
		}
	}
	b.holds++
	b.lastUsed = time.Now()
	b.timer.Stop()
	return sync.OnceFunc(b.release), nil
}

// wakeable starts a wake if the box sleeps and reports whether waiting can
// help: for the end of that wake, or for the next change if there is none.
// Preconditions: mu is held, and the box does not let requests in now.
func (b *Box) wakeable(port uint16, by arrival) (*attempt, error) {
	if b.retired {
		return nil, errDeleted
	}
	switch b.phase {
	case doze.Starting, doze.Suspending, doze.Unarchiving, doze.Running:
		return nil, nil //nolint:nilnil // it moves on by itself: wait for the next change
	case doze.Waking:
		return b.attempt, nil
	case doze.Standby:
		if b.asked.IsZero() {
			b.asked = time.Now()
		}
		if b.sinking != nil {
			b.sinking()     // its end is a change
			return nil, nil //nolint:nilnil // as above
		}
		if err := b.n.enter(&b.order, ""); err != nil {
			b.asked = time.Time{} // nobody waits: the next wake is measured from its own beginning
			return nil, err
		}
		try := &attempt{done: make(chan struct{}), trace: b.trace(by)}
		if !b.spawn(func() { b.wake(try, port) }) {
			try.trace.Fail(told(context.Cause(b.life)))
			try.trace.Leave()
			return nil, context.Cause(b.life)
		}
		b.attempt = try
		return try, b.move(doze.Called, "") // Standby has a row for Called
	case doze.Archiving, doze.Archived:
		return nil, &doze.Error{
			Kind: doze.Conflict, Name: doze.NameArchived,
			Message: fmt.Sprintf("the sandbox is %s and does not wake by itself: unarchive it to use it again", b.phase),
		}
	case doze.Failed:
		return nil, doze.Errorf(doze.Conflict, "the sandbox is failed: %s", b.message)
	case doze.Deleting, doze.Terminated: // the next call finds what has its name now, or nothing
		return nil, errDeleted
	default:
		return nil, doze.Errorf(doze.Conflict, "the sandbox is %s", b.phase)
	}
}

// wait blocks until the attempt has ended, or until the next change if there
// is none. Preconditions: mu is held.
func (b *Box) wait(ctx context.Context, try *attempt) error {
	until := b.changed
	if try != nil {
		until = try.done
	}
	b.mu.Unlock()
	defer b.mu.Lock()
	select {
	case <-until:
		if try != nil {
			return try.err
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.life.Done():
		return context.Cause(b.life)
	}
}

func (b *Box) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holds--
	b.lastUsed = time.Now()
	b.arm()
}

// wake resumes the machine and wakes everybody who waits for it.
func (b *Box) wake(try *attempt, port uint16) {
	ctx, cancel := context.WithTimeout(trace.With(b.life, try.trace), wakeTimeout)
	defer cancel()
	defer try.trace.Leave()
	var from machine.Tier
	b.change(ctx, func(m machine.Machine) error {
		from = m.Tier()
		try.trace.Comes(from.String())
		if from != machine.OnDisk {
			b.reach(m, port)
		}
		if err := failpoint.Reach(failpoint.Called, b.order.UID); err != nil {
			return err
		}
		if err := b.n.pledge(ctx, b.config); err != nil {
			return err
		}
		err := m.Resume(ctx)
		failpoint.Pass(failpoint.Woke, b.order.UID)
		return err
	}, func(err error) {
		b.attempt = nil
		since := b.asked // with the end of a move to a lower tier, which the caller waited for
		if began := try.trace.Began(); began.Before(since) {
			since = began // with the way to the node, and the end of a pause
		}
		took := time.Since(since)
		b.asked = time.Time{}
		b.n.Woke(from, took, err)
		try.err = b.woken(err, from, took)
		if err != nil {
			try.trace.Fail(told(try.err))
		}
		try.trace.Pass()
		close(try.done)
	})
}

// woken takes note of how a wake ended, and returns what to tell who waited. If
// that is nothing, they look at the phase. Preconditions: mu is held.
func (b *Box) woken(err error, from machine.Tier, took time.Duration) error {
	switch {
	case b.phase != doze.Waking: // deleted, or its machine ended meanwhile
		return nil
	case err == nil:
		slog.Info("woke", "sandbox", b.order.UID, "tier", from.String(), "took", took)
		if b.machine != nil { // its processes may have ended just before
			if lost := b.fallBack(b.machine); lost != "" {
				b.note("its machine ended by itself; " + lost)
				b.spawn(b.keepSetback)
			}
		}
		b.unswappable = false
		if from == machine.OnDisk {
			b.woke = time.Now()
			b.spawn(b.greet)
		}
		return b.move(doze.Woken, "")
	case errors.Is(err, machine.ErrGone):
		return b.move(doze.Broke, goneMessage)
	case b.life.Err() != nil:
		return errors.Join(b.move(doze.Stayed, ""), context.Cause(b.life))
	}
	if errors.Is(err, errNoMemory) { // it is as it was, and its owner has nothing to mend
		if moved := b.move(doze.Stayed, ""); moved != nil {
			return moved
		}
		return err
	}
	slog.Error("wake", "sandbox", b.order.UID, "tier", from.String(), "err", err)
	kind, reason := doze.Unavailable, failure(err)
	if errors.Is(err, machine.ErrDamaged) { // the next wake will find it so
		kind, reason = doze.Conflict, reason+": restore one of its snapshots, or delete it"
	}
	if err := b.move(doze.Stayed, "a wake did not work: "+reason); err != nil {
		return err
	}
	return doze.Errorf(kind, "the sandbox could not be woken and sleeps on: %s", reason)
}

// failure is the public reason of a wake or of a move to disk that did not work.
func failure(err error) string {
	switch {
	case errors.Is(err, machine.ErrDamaged):
		return public(err, machine.ErrDamaged)
	case errors.Is(err, machine.ErrNoEngine):
		return public(err, machine.ErrNoEngine)
	case errors.Is(err, context.DeadlineExceeded):
		return "it took too long"
	case strings.Contains(err.Error(), syscall.ENOSPC.Error()): // the engine has words for it only
		return "the disk of the node is full"
	case doze.Public(err).Kind == doze.Exhausted:
		return doze.Public(err).Message
	default:
		return "the engine reported an error; the node's log has it"
	}
}

// explained gives an error that is nobody's in particular its public reason.
func explained(err error) error {
	if doze.Public(err).Kind != doze.Internal {
		return err
	}
	return doze.Wrap(err, doze.Unavailable, "%s", failure(err))
}

// missing says, of an error that a missing engine is the cause of, which one
// that is. What did not work for it is a clause. Other errors stay as they are.
func missing(what string, err error) error {
	if !errors.Is(err, machine.ErrNoEngine) {
		return err
	}
	return doze.Wrap(err, doze.Unavailable, "%s: %s", what, public(err, machine.ErrNoEngine))
}

// public is what may be told of an error that wraps cause: that, and what follows
// it up to the first clause that names a path of the host.
func public(err, cause error) string {
	clause := cause.Error()
	_, text, _ := strings.Cut(err.Error(), clause)
	text, _, _ = strings.Cut(text, "\n")
	clauses := []string{clause}
	for _, more := range strings.Split(text, ": ")[1:] {
		if strings.ContainsRune(more, filepath.Separator) {
			break
		}
		clauses = append(clauses, more)
	}
	return strings.Join(clauses, ": ")
}

// step is what the timer runs: the next move down.
func (b *Box) step() {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch _, due := b.rest(); {
	case !due:
	case b.phase == doze.Running:
		b.spawn(b.suspend)
	default:
		b.sink(b.next(b.machine.Tier()))
	}
}

// suspend pauses a box that nobody uses, unless a process in it asked to stay
// awake.
func (b *Box) suspend() {
	asked := time.Now()
	in, err := b.intend(b.life)
	b.mu.Lock()
	if err != nil { // of all who ask, the timer alone leaves it time to come back
		b.silent++
	}
	if b.heed(asked, in, err) {
		b.mu.Unlock()
		return // a request won the race against the timer, and its end sets it again
	}
	b.learn(b.machine, in, err)
	_ = b.move(doze.Idled, "") // Running has a row for Idled
	b.mu.Unlock()
	b.hangUp() // nothing may write to a connection while it sleeps

	start := time.Now()
	b.change(b.life, b.pause, func(err error) {
		b.n.Sank(machine.Paused, time.Since(start), err)
		if b.restless = err != nil; err == nil {
			_ = b.move(doze.Suspended, "") // a delete may have come first
			return
		}
		slog.Error("suspend", "sandbox", b.order.UID, "err", err)
		if errors.Is(err, machine.ErrGone) && b.n.GoBack {
			_ = b.move(doze.Stayed, "") // as below
			b.spawn(func() { b.exited("its machine ended by itself") })
			return
		}
		if errors.Is(err, machine.ErrGone) {
			_ = b.move(doze.Broke, goneMessage) // a delete may have come first
			return
		}
		_ = b.move(doze.Stayed, "it could not be put to sleep and runs on") // a delete may have come first
	})
}

// pause makes the machine of a box stand still. Preconditions: the turn is held.
func (b *Box) pause(m machine.Machine) error {
	if err := failpoint.Reach(failpoint.Idle, b.order.UID); err != nil {
		return err
	}
	if err := b.keepBlockers(m); err != nil {
		return err
	}
	err := m.Suspend(b.life, machine.Paused)
	failpoint.Pass(failpoint.Slept, b.order.UID)
	return err
}

// arm sets the timer for the next step down. Preconditions: mu is held.
func (b *Box) arm() {
	b.timer.Stop()
	if d, due := b.rest(); due {
		b.timer.Reset(d)
	}
}

// move applies one transition, reports it and wakes everyone who waits for a
// change. Preconditions: mu is held.
func (b *Box) move(on doze.Trigger, message string) error {
	next, err := doze.Next(b.phase, on)
	if err != nil {
		return err
	}
	slog.Debug("transition", "sandbox", b.order.UID, "from", b.phase, "on", on, "phase", next)
	if b.arriving() {
		b.lastUsed = time.Now()
	}
	b.phase, b.message = next, message
	b.n.ledger.settle(b)
	b.kept = b.kept && next == doze.Running
	b.serveDrives()
	b.signal()
	b.arm()
	b.report(message, false)
	return nil
}

// lieDown lets a running box sleep whose machine turned out not to be awake, and
// reports whether it did. Preconditions: the turn and mu are held.
func (b *Box) lieDown(message string) bool {
	if b.phase != doze.Running || b.machine != nil && b.machine.Tier() == machine.Awake {
		return false
	}
	_ = b.move(doze.Idled, "")          // Running has a row for Idled
	_ = b.move(doze.Suspended, message) // as Suspending has for this
	return true
}

// signal wakes everyone who waits for a change. Preconditions: mu is held.
func (b *Box) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// note reports something that changes no phase. Preconditions: mu is held.
func (b *Box) note(message string) { b.report(message, true) }

// report queues a report. Preconditions: mu is held.
func (b *Box) report(message string, note bool) {
	b.seq++
	b.n.reports.put(fleet.Report{UID: b.order.UID, Seq: b.seq, Phase: b.phase, Message: message, At: time.Now(), LastUsed: b.used(), Note: note})
}

// status returns what is known now.
func (b *Box) status() fleet.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := fleet.Status{Phase: b.phase, LastUsed: b.used(), InUse: b.inUse()}
	if b.machine != nil {
		s.Tier = b.machine.Tier().String()
	}
	if b.back != nil {
		s.Setback = new(b.back.Setback)
	}
	return s
}

// event takes note of what the machine did by itself.
func (b *Box) event(e machine.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.phase.Ended() || b.phase == doze.Failed || b.phase == doze.Archived:
	case !e.Exited:
		b.note(e.Message)
	case b.phase == doze.Starting: // Create is waiting for it, and takes everything back
		b.end(doze.Errorf(doze.Unavailable, "the sandbox ended while it started: %s", e.Message))
	default:
		b.spawn(func() { b.exited(e.Message) })
	}
}

// exited finds out what is left of a machine that ended by itself.
func (b *Box) exited(message string) {
	if b.lock(b.life) != nil {
		return // it is being deleted
	}
	defer b.unlock()
	m, err := b.n.Driver.Adopt(b.life, b.config) // is a complete checkpoint left?
	if b.life.Err() != nil {
		return
	}
	if b.leave(m, err, message) {
		b.hangUp() // nobody is left to answer
	}
	b.mu.Lock()
	failed := b.phase == doze.Failed
	b.mu.Unlock()
	if !failed {
		return
	}
	if err := b.n.keep(b, doze.Failed, message); err != nil {
		slog.Error("write a record", "sandbox", b.order.UID, "err", err)
	}
}

// leave goes on with what Adopt found after the machine's end, and reports
// whether that has no processes. Preconditions: the turn is held.
func (b *Box) leave(m machine.Machine, err error, message string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.phase.Ended() || b.phase == doze.Failed || b.phase == doze.Archived:
		return true
	case err != nil:
		if !errors.Is(err, machine.ErrGone) {
			slog.Error("adopt", "sandbox", b.order.UID, "err", err)
		}
		b.machine = nil
		_ = b.move(doze.Broke, message) // every live phase has a row for Broke
		return true
	}
	b.machine = m
	lost := b.fallBack(m)
	if lost != "" {
		b.spawn(b.keepSetback)
	}
	switch {
	case m.Tier() == machine.Awake: // that was the end of an earlier incarnation
		return false
	case b.phase == doze.Running:
		// It ended while its memory was still being loaded: the checkpoint is
		// what it was when it woke.
		b.lieDown(message + "; " + cmp.Or(lost, "it sleeps on from its checkpoint"))
	default:
		b.note(message + "; " + cmp.Or(lost, "its checkpoint is complete"))
	}
	b.arm()
	return true
}

// dial connects to a port of the running machine. For a moment after a wake
// from disk its listeners are not back yet: a refused connection is tried again.
func (b *Box) dial(caller context.Context, port uint16) (net.Conn, error) {
	ctx, cancel := b.onLine(caller)
	defer cancel()
	for {
		b.mu.Lock()
		m, err := b.awake()
		again := time.Since(b.woke) < relisten
		b.mu.Unlock()
		if err != nil {
			return nil, err
		}
		c, ok := b.made(port)
		if !ok {
			c, err = m.Dial(ctx, port)
		}
		if err == nil {
			return b.connect(c)
		}
		if caller.Err() == nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !refused(err) || !again {
			return nil, fmt.Errorf("port %d: %w", port, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(redial):
		}
	}
}
