package tenancy

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/listing"
)

const (
	// auditPage and auditPageMax are the sizes of a page of the audit log.
	auditPage    = 100
	auditPageMax = 1000
)

// auditLists are what callers may ask of the audit log.
var auditLists = api.Listing{Limit: auditPage, Most: auditPageMax, ByTime: true, More: auditFilter}

// auditWords are what callers may ask of the log, besides what they may of each
// list.
var auditWords = []string{"since", "until", "actor", "action", "object", "source", "outcome", api.OfPlatform.String()}

func auditFilter(v url.Values, q *listing.Query, p *doze.Problems) {
	for _, column := range []string{"actor", "action", "object", "source"} {
		q.Restrict(column, v.Get(column))
	}
	if outcome := v.Get("outcome"); outcome != "" {
		q.Phases = []string{outcome}
	}
	q.Since, q.Until = api.MomentOf(v, "since", p), api.MomentOf(v, "until", p)
}

// auditOf says whose log a request asks for: that of its workspace, or that of
// the platform, which is for operators.
func (s *Server) auditOf(ctx context.Context, v url.Values) (workspace string, err error) {
	if api.OfPlatform.In(v) {
		return "", s.operator(ctx)
	}
	return api.Caller(ctx).Workspace, nil
}

// listAudit answers the audit log, the newest line first.
func (s *Server) listAudit(ctx context.Context, r *http.Request) (api.List[doze.AuditLine], error) {
	list := func(ctx context.Context, q listing.Query, now time.Time) (page listing.Page[doze.AuditLine], err error) {
		if q.Workspace, err = s.auditOf(ctx, r.URL.Query()); err != nil {
			return page, err
		}
		if err := s.Audit.Flush(ctx); err != nil {
			return page, err
		}
		return s.Store.ListAudit(ctx, q, now)
	}
	return api.AnswerListing(ctx, r, auditLists, list, func(l doze.AuditLine) doze.AuditLine { return l })
}

// export streams the audit log as lines of JSON, the oldest first, up to the moment of the
// request. It returns an error as long as nothing is answered. Later ones end the
// connection: a log that is cut short must not look whole.
func (s *Server) export(w http.ResponseWriter, r *http.Request) error {
	ctx, now := r.Context(), time.Now()
	q := listing.Query{Sort: listing.OldestFirst, Until: now}
	p := api.Mistakes(ctx)
	auditFilter(r.URL.Query(), &q, &p)
	if err := p.Err(); err != nil {
		return err
	}
	if q.Until.IsZero() || q.Until.After(now) {
		q.Until = now
	}
	var err error
	if q.Workspace, err = s.auditOf(ctx, r.URL.Query()); err != nil {
		return err
	}
	if err := s.Audit.Flush(ctx); err != nil {
		return err
	}
	out, sent := json.NewEncoder(w), false
	w.Header().Set("Content-Type", api.NDJSONType) // an error sets its own
	err = s.Store.EachAudit(ctx, q, now, func(lines []doze.AuditLine) error {
		if !sent {
			sent = true
			w.WriteHeader(http.StatusOK)
		}
		for _, l := range lines {
			if err := out.Encode(l); err != nil {
				return err
			}
		}
		return http.NewResponseController(w).Flush()
	})
	if err != nil && sent {
		slog.DebugContext(ctx, "an export of the audit log was cut short", "err", err)
		panic(http.ErrAbortHandler)
	}
	return err
}
