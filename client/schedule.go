package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/dozehq/doze"
)

// Schedules returns those of a sandbox, newest first, page by page; those of
// all sandboxes for the empty name. It ends after the first error.
func (c *Client) Schedules(ctx context.Context, sandbox string) iter.Seq2[doze.Schedule, error] {
	return all[doze.Schedule](ctx, c, "/schedules", ofSandbox(sandbox))
}

// CreateSchedule makes a schedule of a sandbox. Without an id the server makes
// one up.
func (c *Client) CreateSchedule(ctx context.Context, sandbox string, s doze.Schedule) (doze.Schedule, error) {
	return resource[doze.Schedule](ctx, c, http.MethodPost, s, "sandboxes", sandbox, "schedules")
}

// DeleteSchedule removes a schedule; its executions stay.
func (c *Client) DeleteSchedule(ctx context.Context, sandbox, id string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "sandboxes", sandbox, "schedules", id)
	return err
}

// Executions returns what schedules started, or could not start, in a sandbox,
// newest first, page by page; in all sandboxes for the empty name. It ends after
// the first error.
func (c *Client) Executions(ctx context.Context, sandbox string) iter.Seq2[doze.Execution, error] {
	return all[doze.Execution](ctx, c, "/schedule-executions", ofSandbox(sandbox))
}

func ofSandbox(name string) url.Values {
	q := url.Values{}
	if name != "" {
		q.Set("sandbox", name)
	}
	return q
}
