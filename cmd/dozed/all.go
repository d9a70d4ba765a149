package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/signal"

	"golang.org/x/term"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/backup"
	"github.com/dozehq/doze/internal/checkup"
	"github.com/dozehq/doze/internal/clock"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/front"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/settings"
)

// all serves everything in one process.
func all(ctx context.Context, args []string) error {
	replaced := make(chan os.Signal, 1)
	signal.Notify(replaced, front.Replace) // one that comes too early is heard when all runs
	s, err := start(ctx, "all", args, true)
	if err != nil {
		return err
	}
	in, release, err := claim(ctx, s, func() (func(), error) { return instance.Lock(s.Data, s.Run) })
	if err != nil {
		return err
	}
	defer release()
	p, err := open(ctx, s, in)
	if err != nil {
		return err
	}
	return serve(ctx, p, replaced)
}

// platform is all roles of one process.
type platform struct {
	settings settings.Settings
	meters   meters
	plane    *plane.Plane
	host     *host.Host
	edge     *edge.Edge
	front    *front.Front
	metrics  metric.Page
	key      string // the first key, if this start made it
}

// open builds the platform from the ground up: records, node, edge, control, and
// what stands before them. What was opened is closed again if a later step fails,
// and then no other process keeps the addresses. The listeners stay the caller's.
func open(ctx context.Context, s settings.Settings, in *front.Listeners) (_ *platform, err error) {
	p := &platform{settings: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll(p), in.Shut())
		}
	}()
	addresses, err := addressesOf(s)
	if err != nil {
		return nil, err
	}
	if p.meters, err = openMeters(ctx, s); err != nil {
		return nil, err
	}
	if p.plane, err = plane.Open(ctx, s, p.meters.quotas); err != nil {
		return nil, err
	}
	// The node is there first: it looks for control only when it reports.
	up := host.Upstream{Report: func(r fleet.Report) { p.plane.Control.Report(r) }, Named: p.plane.Store.ImageRefs, Quotas: p.meters.quotas}
	if p.host, err = openNode(ctx, s, p.meters, up); err != nil {
		return nil, err
	}
	p.plane.Doctor = checkup.Here(checkup.Host(s, companion, p.host.Swap()), true)
	p.edge = newEdge(p, addresses)
	node := p.host.Node()
	n := plane.Node{Node: node, Gate: node, Info: p.host.Info(), Bucket: p.host.Bucket(), Enforce: p.host.Enforce}
	if p.key, err = p.plane.BeginHere(ctx, n, addresses, p.edge.Recheck); err != nil {
		return nil, err
	}
	p.host.SweepAddresses()
	p.front, err = front.Open(frontOptions(p, in))
	return p, err
}

// newEdge returns the edge over the other roles of this process. It ends open
// requests whose credential is worth less.
func newEdge(p *platform, a edge.Addresses) *edge.Edge {
	node, known := p.host.Node(), p.plane.Credentials
	e := edge.New(edge.Config{
		Addresses: a, Directory: p.plane.Directory, Previews: p.plane.Previews, Gate: node, StateAge: node.StateAge,
		Authenticate: known.Authenticate, Tickets: known.Tickets, Enter: p.meters.quotas.Enter,
		Mounts: func(w http.ResponseWriter, r *http.Request, upstream fleet.Upstream, path string) {
			p.plane.Control.ServeMounts(w, r, upstream, path)
		},
		Denied: func(r *http.Request, id string, c access.Caller, upstream fleet.Upstream, err error) {
			p.plane.Turned(r, id, c, upstream, err)
		},
	})
	known.OnLess(e.Recheck)
	return e
}

// frontOptions put the roles behind the listeners.
func frontOptions(p *platform, in *front.Listeners) front.Options {
	p.metrics = metric.Page{
		Metrics: p.meters.metrics, Authenticate: p.plane.Credentials.Authenticate, Operator: p.settings.Workspace,
		Now: func(ctx context.Context) metric.Now { return now(ctx, p) },
	}
	o := p.settings.Front()
	o.Listeners, o.Previews, o.Streams = in, p.edge.Previews(), p.edge
	o.Handler = front.Mux{Edge: p.edge, API: p.plane.Handler(), Version: version, Metrics: p.metrics}
	if o.Authority != nil {
		o.Authority.Files, o.Authority.Ours = p.plane.Store, p.edge.Host
	}
	return o
}

// now is what the parts of this process have to show besides what they count.
func now(ctx context.Context, p *platform) metric.Now {
	n := p.host.Now(ctx)
	n.Front, n.Drops = p.front.Metrics(), p.meters.traces.Drops()
	return n
}

// serve runs the platform until ctx ends, or until it is replaced. Sandboxes stay:
// they run or sleep on, and the next start adopts them.
func serve(ctx context.Context, p *platform, signals <-chan os.Signal) error {
	greet(p.settings, p.key)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	services := []daemon.Service{
		{Name: "traces", Run: p.meters.traces.Run}, // before all that is traced
		{Name: "control", Run: p.plane.Run},
		{Name: "clock", Run: func(ctx context.Context) error { return clock.Watch(ctx, p.plane.ClockStepped) }},
	}
	services = append(append(services, p.host.Services()...), daemon.Service{Name: "history", Run: func(ctx context.Context) error { return p.plane.History.Run(ctx, p.metrics.Families) }})
	services = append(services, daemon.Service{Name: "backup", Run: func(ctx context.Context) error { return backup.Serve(ctx, p.settings.Run, p.settings.Data, p.host) }})
	services = append(services, p.front.Servers()...)
	services = append(services, daemon.Service{Name: "edge", Run: p.edge.Run}) // ends open requests, before the servers wait for them
	services = append(services, p.front.Listeners(ctx, signals, end)...)
	return errors.Join(daemon.Run(ctx, services...), closeAll(p))
}

func greet(s settings.Settings, key string) {
	g := instance.Greeting{Data: s.Data, URL: s.PublicURL, API: front.APIPath, Key: key, Terminal: term.IsTerminal(int(os.Stdout.Fd())), Egress: s.Egress}
	if s.ByPath() {
		g.Previews = s.PreviewURL
	}
	g.Print(os.Stdout)
}

// closeAll closes what is open, in reverse. The listeners stay the caller's.
func closeAll(p *platform) error {
	var errs []error
	if p.front != nil {
		errs = append(errs, p.front.Close())
	}
	if p.host != nil {
		errs = append(errs, p.host.Close())
	}
	if p.plane != nil {
		errs = append(errs, p.plane.Close())
	}
	return errors.Join(errs...)
}
