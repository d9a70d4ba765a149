package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

// HistoryFilter says what of the history of a platform to read; empty members are the
// defaults of the platform.
type HistoryFilter struct {
	Series   []string
	From, To time.Time
	Step     string // such as 10s, 5m or 1h
}

// History returns what the platform did and took. It is for operators.
func (c *Client) History(ctx context.Context, f HistoryFilter) (doze.History, error) {
	q := url.Values{}
	if len(f.Series) > 0 {
		q.Set("series", strings.Join(f.Series, ","))
	}
	for name, at := range map[string]time.Time{"from": f.From, "to": f.To} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.Step != "" {
		q.Set("step", f.Step)
	}
	return exchange[doze.History](ctx, c, http.MethodGet, c.base+"/platform/history?"+q.Encode(), nil)
}
