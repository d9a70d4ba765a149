package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/trace"
)

// openNode opens the node of this host, and adopts its sandboxes.
func openNode(ctx context.Context, s settings.Settings, m meters, up host.Upstream) (*host.Host, error) {
	o := s.Host()
	o.Launcher, o.Agent, o.Builds.Program = companion(host.Launcher(s.Driver)), companion("doze-agent"), companion(host.BuilderProgram)
	o.Upstream, o.Metrics, o.Output = up, m.metrics, os.Stderr
	o.Traced = func(r trace.Record) {
		m.metrics.Traced(r)
		m.traces.Offer(r)
	}
	return host.Open(ctx, o)
}

// serveNode is the node role in a process of its own.
func serveNode(ctx context.Context, args []string) (err error) {
	r, err := startRole(ctx, mtls.Node, args)
	if err != nil {
		return err
	}
	defer r.release()
	s := r.settings
	l, err := listenFleet(ctx, s.NodeListen, "node-listen")
	if err != nil {
		return err
	}
	id, err := instance.NodeID(s.Data)
	if err != nil {
		return err
	}
	if err := instance.Announce(s.Data, instance.Instance{Address: s.LocalURL(s.Listen), Run: s.Run, Cgroup: s.Cgroup}); err != nil {
		return err
	}
	controls, err := r.identity.TransportTo(mtls.Control, s.Controls())
	if err != nil {
		return err
	}
	control := host.NewRemote(s.Controls()[0], controls, id, s.Host())
	if err := control.Resume(ctx); err != nil {
		return err
	}
	h, err := openNode(ctx, s, r.meters, control.Upstream())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	info := h.Info()
	info.ID, info.Incarnation, info.URL, info.Version = id, rand.Text(), s.Node, version
	fmt.Println("The node", id, "is ready at", s.Node)
	services := append([]daemon.Service{{Name: "traces", Run: r.meters.traces.Run}}, h.Services()...)
	services = append(services, serveFleet(r.identity.Serve, l, h.Handler(r.meters.traces.Drops, r.identity.Ends)), daemon.Service{Name: "certificate", Run: r.identity.Renewing(control.Certify)})
	return daemon.Run(ctx, append(services, control.Services(h, info)...)...)
}
