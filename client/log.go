package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

// LogFilter selects lines of the log of a sandbox. The zero LogFilter selects the
// newest of all.
type LogFilter struct {
	Since, Until time.Time // from one moment on and before the other; zero is any
	Severities   []string  // such as doze.LogError; empty is all
	Type         string    // doze.LogProcess or doze.LogEvent; empty is both
	Process      string    // lines of the processes of this name
	Search       string    // lines with this text, in any case
	OldestFirst  bool
	Limit        int    // at most doze.LogLinesMax; 0 is that
	Cursor       string // doze.Log.Next of the answer before
}

// Log returns what the processes of a sandbox wrote, and what the platform says about
// it, also of a sandbox that has ended. If there is more, Next is the cursor of it. With
// the oldest first there is always a cursor, after which later lines come.
func (c *Client) Log(ctx context.Context, name string, f LogFilter) (doze.Log, error) {
	q := url.Values{"workloadIds": {name}, "resourceType": {"sandbox"}}
	for key, value := range map[string]string{
		"severity": strings.Join(f.Severities, ","), "type": f.Type, "process": f.Process, "search": f.Search, "cursor": f.Cursor,
	} {
		if value != "" {
			q.Set(key, value)
		}
	}
	for key, at := range map[string]time.Time{"start": f.Since, "end": f.Until} {
		if !at.IsZero() {
			q.Set(key, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.OldestFirst {
		q.Set("order", "asc")
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	all, err := exchange[map[string]doze.Log](ctx, c, http.MethodGet, c.base+"/observability/logs?"+q.Encode(), nil)
	return all[name], err
}
