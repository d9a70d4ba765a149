package control

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// reportBatch is how many reports share a transaction, which costs a sync.
	reportBatch = 256
	// retryAfter is the pause after the database or a node refused something.
	retryAfter = time.Second
)

// Report takes note of a transition. It never waits for the database.
func (s *Server) Report(r fleet.Report) { s.reports.Put(r) }

// record writes reports to the store until ctx ends.
func (s *Server) record(ctx context.Context) {
	for {
		batch := s.reports.Next(ctx, reportBatch)
		if len(batch) == 0 {
			return
		}
		for s.accept(ctx, batch) != nil {
			if !bell.New().Wait(ctx, retryAfter) {
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
			s.Audit.Acted(sb.Metadata.Workspace, "sandboxes.fail", "sandboxes", sb.Metadata.Name, doze.AuditFailed, "its events say why")
		}
		if sb.Phase == doze.Terminated {
			s.expiry.rang.Ring() // its retention began
		}
	}
	return nil
}
