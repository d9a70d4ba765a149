package control

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// reportsMax bounds what waits for the database. A full queue keeps the
	// newest report of each sandbox, from which its phase can be repaired.
	reportsMax = 16 << 10
	// reportBatch is how many reports share a transaction, which costs a sync.
	reportBatch = 256
	// reportLag is how long the report of a wake waits. It comes when the wake
	// begins: what the database does then would take the processor from it.
	reportLag = 20 * time.Millisecond
	// retryAfter is the pause after the database or a node refused something.
	retryAfter = time.Second
)

// queue holds reports in the order in which they came.
type queue struct {
	rang    bell
	mu      sync.Mutex
	reports []fleet.Report // guarded by mu
}

// Report takes note of a transition. It never waits for the database.
func (s *Server) Report(r fleet.Report) {
	q := &s.reports
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.rang.ring()
	if len(q.reports) < reportsMax {
		q.reports = append(q.reports, r)
		return
	}
	for i, old := range slices.Backward(q.reports) {
		if old.UID == r.UID && !r.Note {
			q.reports[i] = r
			return
		}
	}
	slog.Error("report dropped: the database does not keep up", "sandbox", r.UID, "phase", r.Phase)
}

// take removes up to n reports from the queue.
func (q *queue) take(n int) []fleet.Report {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.reports))
	batch := slices.Clone(q.reports[:n])
	q.reports = slices.Delete(q.reports, 0, n)
	return batch
}

// waking reports whether the next report is that of a wake.
func (q *queue) waking() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.reports) > 0 && q.reports[0].Phase == doze.Waking
}

// record writes reports to the store until ctx ends.
func (s *Server) record(ctx context.Context) {
	for {
		batch := s.reports.take(reportBatch)
		if len(batch) == 0 {
			select {
			case <-s.reports.rang:
				if s.reports.waking() && !newBell().wait(ctx, reportLag) {
					return
				}
				continue
			case <-ctx.Done():
				return
			}
		}
		for s.accept(ctx, batch) != nil {
			if !newBell().wait(ctx, retryAfter) {
				return
			}
		}
	}
}

func (s *Server) accept(ctx context.Context, batch []fleet.Report) error {
	reports := make([]store.Report, len(batch))
	for i, r := range batch {
		reports[i] = store.Report{
			Machine: r.UID, Seq: r.Seq, Phase: r.Phase, Message: r.Message, At: r.At, Note: r.Note,
		}
		if r.LastUsed.After(s.began) { // as in lastUsed
			reports[i].LastUsed = r.LastUsed
		}
	}
	moved, err := s.Store.Accept(ctx, reports)
	if err != nil {
		if ctx.Err() == nil {
			slog.ErrorContext(ctx, "reports are not recorded yet", "err", err)
		}
		return err
	}
	for _, sb := range moved {
		slog.DebugContext(ctx, "transition", "sandbox", sb.UID, "workspace", sb.Metadata.Workspace, "phase", sb.Phase)
		if sb.Phase == doze.Failed {
			s.acted(sb.Metadata.Workspace, "sandboxes.fail", "sandboxes", sb.Metadata.Name, doze.AuditFailed, "its events say why")
		}
		if sb.Phase == doze.Terminated {
			s.expiry.rang.ring() // its retention began
		}
	}
	return nil
}
