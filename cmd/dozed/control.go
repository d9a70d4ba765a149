package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/dozehq/doze/internal/checkup"
	"github.com/dozehq/doze/internal/clock"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/plane"
)

// serveControl is the control role in a process of its own.
func serveControl(ctx context.Context, args []string) (err error) {
	r, err := startRole(ctx, mtls.Control, args)
	if err != nil {
		return err
	}
	defer r.release()
	m := r.meters
	p, err := plane.OpenWhenFree(ctx, r.settings, m.quotas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	p.Doctor = checkup.Here(doctor.Host{}, false)
	addresses, err := addressesOf(r.settings)
	if err != nil {
		return err
	}
	remote, key, err := p.BeginRemote(ctx, r.identity.Nodes(), addresses)
	if err != nil {
		return err
	}
	l, err := listenFleet(ctx, r.settings.ControlListen, "control-listen")
	if err != nil {
		return err
	}
	page := metric.Page{
		Metrics: m.metrics, Authenticate: p.Credentials.Authenticate, Operator: r.settings.Workspace, Others: remote.NodeMetrics,
		Now: func(ctx context.Context) metric.Now {
			return metric.Now{Drops: m.traces.Drops(), Nodes: remote.Census(ctx), Front: metric.Front{Certificates: r.identity.Ends("")}}
		},
	}
	fmt.Println("The control role is ready at", r.settings.Control)
	if key != "" {
		fmt.Println("The admin key is in", instance.KeyFile(r.settings.Data))
	}
	return daemon.Run(ctx,
		daemon.Service{Name: "control", Run: p.Run}, daemon.Service{Name: "leases", Run: remote.Run},
		daemon.Service{Name: "clock", Run: func(ctx context.Context) error { return clock.Watch(ctx, p.ClockStepped) }},
		daemon.Service{Name: "history", Run: func(ctx context.Context) error { return p.History.Run(ctx, remote.Recorded(page.Families)) }},
		daemon.Service{Name: "certificate", Run: r.identity.Renewing(nil)}, serveFleet(r.identity.ServeStrangers, l, remote.Handler(page), remote.End),
	)
}
