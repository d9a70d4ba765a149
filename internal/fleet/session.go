package fleet

import (
	"context"
	"log/slog"
	"sync"
	"time"
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
	// againAfter is the pause after control did not answer.
	againAfter = time.Second
)

// A Session keeps a node known to control, whichever of the two starts anew, and
// brings control the reports of the node, none of them lost.
type Session struct {
	control Control
	reports *Reports
	traffic func() map[string]uint64
	barred  func(map[string]string)
	joined  chan struct{}
	once    sync.Once
}

// NewSession returns a session that begins with Run. traffic returns what sandboxes
// have sent and received since the process began, in bytes by workspace, and barred
// hears why workspaces may send nothing more.
func NewSession(c Control, traffic func() map[string]uint64, barred func(map[string]string)) *Session {
	return &Session{control: c, reports: NewReports(), traffic: traffic, barred: barred, joined: make(chan struct{})}
}

// Report takes note of a transition, which is recorded as soon as control can be
// reached. It never waits.
func (s *Session) Report(r Report) { s.reports.Put(r) }

// Joined is closed when the node has joined for the first time.
func (s *Session) Joined() <-chan struct{} { return s.joined }

// Run joins as a node that serves, and joins again, until the context ends.
func (s *Session) Run(ctx context.Context, n NodeInfo) error {
	var tasks sync.WaitGroup
	tasks.Go(func() { s.record(ctx) })
	defer tasks.Wait()
	for s.join(ctx, n) && s.stay(ctx, n.Incarnation) {
		slog.InfoContext(ctx, "control is new, or forgot this node: joining again")
	}
	return nil
}

// join tries to join until it worked, and reports whether ctx is still alive.
func (s *Session) join(ctx context.Context, n NodeInfo) bool {
	for {
		bounded, cancel := context.WithTimeout(ctx, joinTimeout)
		err := s.control.Join(bounded, n)
		cancel()
		if err == nil {
			slog.InfoContext(ctx, "control knows this node", "node", n.ID)
			s.once.Do(func() { close(s.joined) })
			return true
		}
		if ctx.Err() == nil {
			slog.WarnContext(ctx, "this node could not join: sandboxes run on, and nothing new is ordered", "err", err, "again", againAfter)
		}
		if !pause(ctx, againAfter) {
			return false
		}
	}
}

// stay tells of traffic until control does not know the node any more, and reports
// whether ctx is still alive.
func (s *Session) stay(ctx context.Context, incarnation string) bool {
	for {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		barred, err := s.control.Traffic(bounded, incarnation, s.traffic())
		cancel()
		switch {
		case isNotJoined(err):
			return ctx.Err() == nil
		case err == nil:
			s.barred(barred)
		case ctx.Err() == nil:
			slog.DebugContext(ctx, "control does not answer", "err", err)
		}
		if !pause(ctx, trafficEvery) {
			return false
		}
	}
}

// record brings reports to control until ctx ends.
func (s *Session) record(ctx context.Context) {
	for {
		batch := s.reports.Next(ctx, reportBatch)
		if len(batch) == 0 {
			return
		}
		for {
			bounded, cancel := context.WithTimeout(ctx, callTimeout)
			err := s.control.Record(bounded, batch)
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
