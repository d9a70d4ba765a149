package main

import (
	"context"
	"os"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/trace"
)

// upstream is what a node tells and asks control.
type upstream struct {
	report func(fleet.Report)
	named  func(context.Context) ([]string, error) // references of the images that records name
}

// openNode opens the node of this host, and adopts its sandboxes.
func openNode(ctx context.Context, s settings.Settings, m meters, up upstream) (*host.Host, error) {
	o := s.Host()
	o.Sentry, o.Agent = beside("doze-sentry"), beside("doze-agent")
	o.Report, o.Named = up.report, up.named
	o.Metrics, o.Quotas, o.Output = m.metrics, m.quotas, os.Stderr
	o.Traced = func(r trace.Record) {
		m.metrics.Traced(r)
		m.traces.Offer(r)
	}
	return host.Open(ctx, o)
}
