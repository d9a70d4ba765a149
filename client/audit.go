package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/dozehq/doze"
)

// AuditFilter says which lines of the audit log to read; empty members are any.
type AuditFilter struct {
	Since, Until                           time.Time // both inclusive
	Actor, Action, Object, Source, Outcome string
	Platform                               bool // those of no workspace, for operators
}

func (f AuditFilter) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"actor": f.Actor, "action": f.Action, "object": f.Object, "source": f.Source, "outcome": f.Outcome} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.Platform {
		q.Set("platform", "true")
	}
	return q
}

// Audit returns lines of the audit log, newest first, page by page. It ends after
// the first error.
func (c *Client) Audit(ctx context.Context, f AuditFilter) iter.Seq2[doze.AuditLine, error] {
	return all[doze.AuditLine](ctx, c, "/audit", f.query())
}

// ExportAudit writes lines of the audit log to w, as lines of JSON, oldest first.
// After an error, w has a part of them.
func (c *Client) ExportAudit(ctx context.Context, f AuditFilter, w io.Writer) error {
	resp, err := c.send(ctx, call{method: http.MethodGet, url: c.base + "/audit/export?" + f.query().Encode()})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(w, resp.Body); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return doze.Wrap(err, doze.Unavailable, "the audit log ended early")
	}
	return nil
}
