package fleet

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/lease"
)

const (
	// trafficEvery is how often a node says what its sandboxes sent, and hears who may
	// send nothing more. A connection that is open may exceed its quota by what passes
	// in that time. It is also how soon a control that is new is noticed.
	trafficEvery = time.Second
	// reportBatch is how many reports are recorded at a time.
	reportBatch = 256
	// joinTimeout bounds a try to join: control tells the node about all its sandboxes.
	joinTimeout = 5 * time.Minute
	// callTimeout bounds another call of a session.
	callTimeout = 30 * time.Second
	// renewIdle is how often a node without a lease says how it is.
	renewIdle = 5 * time.Second
	// againAfter is the pause after control did not answer.
	againAfter = time.Second
)

// Side is what a [Session] asks and tells its node.
type Side struct {
	// Traffic returns what sandboxes have sent and received since the process began, in
	// bytes by workspace.
	Traffic func() map[string]uint64
	// Barred hears why workspaces may send nothing more.
	Barred func(map[string]string)
	// Lease acts when the lease ends, and when it is good again.
	Lease *lease.Holder
	// Load is what the node says of itself with each renewal.
	Load func(context.Context) Load
	// Machines are those that the node has.
	Machines func() []string
	// Held is what the node knows of these, and of its volumes.
	Held func() map[string]Held
	// Leaving are those of them that depart; see [Mover].
	Leaving func() []string
	// Lost ends the node's own copies of machines that other nodes have now.
	Lost func(ctx context.Context, machines []string) error
}

// A Session keeps a node known to control, whichever of the two starts anew. It renews the
// lease of the node, and brings control its reports, none of them lost.
type Session struct {
	control Control
	node    Side
	reports *Reports
	joined  chan struct{}
	once    sync.Once
	epoch   atomic.Uint64
	seq     uint64 // of the last renewal; used by join and renew, which take turns
}

// NewSession returns a session that begins with Run.
func NewSession(c Control, node Side) *Session {
	return &Session{control: c, node: node, reports: NewReports(), joined: make(chan struct{})}
}

// Report takes note of a transition, which is recorded as soon as control can be
// reached. It never waits.
func (s *Session) Report(r Report) { s.reports.Put(r) }

// Joined is closed when the node has joined for the first time.
func (s *Session) Joined() <-chan struct{} { return s.joined }

// Epoch is that of the last lease, or 0 before Join.
func (s *Session) Epoch() uint64 { return s.epoch.Load() }

// Run joins as a node that serves, and joins again, until the context ends.
func (s *Session) Run(ctx context.Context, n NodeInfo) error {
	var tasks sync.WaitGroup
	tasks.Go(func() { s.record(ctx, n.ID) })
	tasks.Go(func() { _ = s.node.Lease.Run(ctx) })
	defer tasks.Wait()
	for s.join(ctx, n) && s.stay(ctx, n) {
		slog.InfoContext(ctx, "control is new, or forgot this node: joining again")
	}
	return nil
}

// join tries to join until it worked, and reports whether ctx is still alive.
func (s *Session) join(ctx context.Context, n NodeInfo) bool {
	for {
		asked := time.Now()
		n.Machines, n.Leaving, n.Leased = s.node.Machines(), s.node.Leaving(), s.node.Lease.TTL() > 0
		n.Held, n.Seq = s.node.Held(), s.seq
		bounded, cancel := context.WithTimeout(ctx, joinTimeout)
		l, err := s.control.Join(bounded, n)
		if err == nil && len(l.Gone) > 0 {
			slog.WarnContext(ctx, "other nodes have sandboxes of this one: its own copies end", "machines", len(l.Gone))
			err = s.node.Lost(bounded, l.Gone)
		}
		cancel()
		if err == nil {
			slog.InfoContext(ctx, "control knows this node", "node", n.ID, "epoch", l.Epoch)
			s.epoch.Store(l.Epoch)
			s.node.Lease.Extend(asked, l.TTL)
			s.once.Do(func() { close(s.joined) })
			return true
		}
		if ctx.Err() == nil {
			slog.WarnContext(ctx, "this node could not join: nothing new is ordered", "err", err, "again", againAfter)
		}
		if !pause(ctx, againAfter) {
			return false
		}
	}
}

// stay tells of traffic and renews the lease until control does not know the node any
// more, and reports whether ctx is still alive.
func (s *Session) stay(ctx context.Context, n NodeInfo) bool {
	ctx, forgotten := context.WithCancelCause(ctx)
	defer forgotten(nil)
	var tasks sync.WaitGroup
	tasks.Go(func() { forgotten(s.renew(ctx, n)) })
	tasks.Go(func() { forgotten(s.tell(ctx, n)) })
	tasks.Wait()
	return isNotJoined(context.Cause(ctx))
}

// tell tells of traffic until ctx ends, or the node is not known.
func (s *Session) tell(ctx context.Context, n NodeInfo) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		barred, err := s.control.Traffic(bounded, n.ID, n.Incarnation, s.node.Traffic())
		cancel()
		switch {
		case isNotJoined(err):
			return err
		case err == nil:
			s.node.Barred(barred)
		case ctx.Err() == nil:
			slog.DebugContext(ctx, "control does not answer", "err", err)
		}
		if !pause(ctx, trafficEvery) {
			return context.Cause(ctx)
		}
	}
}

// renew renews the lease until ctx ends, or the node is not known. The next try does not
// wait for one that is not answered: it may have been lost.
func (s *Session) renew(ctx context.Context, n NodeInfo) error {
	for {
		asked := time.Now()
		s.seq++
		bounded, cancel := context.WithTimeout(ctx, s.renewals())
		l, err := s.control.Renew(bounded, Renewal{
			Node: n.ID, Incarnation: n.Incarnation, Epoch: s.Epoch(), Seq: s.seq, Leased: s.node.Lease.TTL() > 0, Load: s.node.Load(bounded),
		})
		cancel()
		switch {
		case isNotJoined(err):
			return err
		case err == nil:
			s.node.Lease.Extend(asked, l.TTL)
		case ctx.Err() == nil:
			slog.WarnContext(ctx, "the lease of this node is not renewed", "err", err)
		}
		if !pause(ctx, time.Until(asked.Add(s.renewals()))) {
			return context.Cause(ctx)
		}
	}
}

// renewals is how often the lease is renewed.
func (s *Session) renewals() time.Duration {
	if ttl := s.node.Lease.TTL(); ttl > 0 {
		return lease.Every(ttl)
	}
	return renewIdle
}

// record brings reports to control until ctx ends.
func (s *Session) record(ctx context.Context, node string) {
	for {
		batch := s.reports.Next(ctx, reportBatch)
		if len(batch) == 0 {
			return
		}
		for {
			bounded, cancel := context.WithTimeout(ctx, callTimeout)
			err := s.control.Record(bounded, node, batch)
			cancel()
			if err == nil {
				break
			}
			slog.DebugContext(ctx, "reports are not recorded yet", "reports", len(batch), "err", err)
			if !pause(ctx, againAfter) {
				return
			}
		}
	}
}

// pause waits, and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
