package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/front"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/replica"
	"github.com/dozehq/doze/internal/settings"
)

// addressesOf says how sandboxes and previews are called.
func addressesOf(s settings.Settings) (edge.Addresses, error) {
	a, err := edge.NewAddresses(s.Regions, s.Domain, s.PublicURL)
	if err == nil && s.ByPath() {
		a, err = a.WithPreviews(s.PreviewURL)
	}
	return a.WithStreams(s.Secure()), err
}

// serveEdge is the edge role in a process of its own.
func serveEdge(ctx context.Context, args []string) (err error) {
	replaced := make(chan os.Signal, 1)
	signal.Notify(replaced, front.Replace)
	hurry := make(chan os.Signal, 2)
	signal.Notify(hurry, syscall.SIGTERM, syscall.SIGINT)
	r, err := startRole(ctx, mtls.Edge, args)
	if err != nil {
		return err
	}
	defer r.release()
	s := r.settings
	in, release, err := claim(ctx, s, func() (func(), error) { return func() {}, nil }) // startRole locks
	if err != nil {
		return err
	}
	defer release()
	m := r.meters
	var f *front.Front
	controls, err := r.identity.TransportTo(mtls.Control, s.Controls())
	if err != nil {
		return err
	}
	nodes := r.identity.Nodes()
	know, err := replica.New(replica.Options{
		Control: s.Controls()[0], Controls: controls, Nodes: nodes.To, Forget: nodes.Forget,
		Edge: rand.Text(), Quotas: m.quotas,
		Metrics: func(others []byte) ([]byte, error) {
			own, err := m.metrics.Text(metric.Now{Front: f.Metrics().With(r.identity.Ends(""))})
			if err != nil {
				return nil, err
			}
			return metric.Sum(others, own)
		},
	})
	if err != nil {
		return err
	}
	addresses, err := addressesOf(s)
	if err != nil {
		return err
	}
	e := edge.New(edge.Config{
		Addresses: addresses, Directory: know.Directory, Previews: know.Previews, Gate: know.Ports, StateAge: know.Ports.StateAge,
		Authenticate: know.Credentials.Authenticate, Tickets: know.Desk, Enter: m.quotas.Enter, Mounts: know.Desk.Mounts, Denied: know.Desk.Denied,
	})
	know.OnLess(e.Recheck)
	o := s.Front()
	o.Linger, o.Hurry, o.Listeners, o.Previews, o.Streams = front.EdgeLinger, hurry, in, e.Previews(), e
	o.Handler = front.Mux{Edge: e, API: know.Desk.API(), Metrics: know.Desk.Metrics(), Version: version}
	if o.Authority != nil {
		o.Authority.Files, o.Authority.Ours = know.Desk, e.Host
	}
	if f, err = front.Open(o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	stop, err := know.Follow(ctx) // callers wait until it knows all
	defer stop()
	if err != nil {
		return err
	}
	fmt.Println("The edge role is ready at", s.PublicURL)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	return daemon.Run(ctx, slices.Concat(
		[]daemon.Service{{Name: "desk", Run: know.Desk.Run}, {Name: "certificate", Run: r.identity.Renewing(nil)}}, f.Servers(),
		[]daemon.Service{{Name: "edge", Run: e.Run}}, // ends open requests, before the servers wait for them
		f.Listeners(ctx, replaced, end))...)
}
