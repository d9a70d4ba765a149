package plane

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/checkup"
	"github.com/dozehq/doze/internal/console"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/feed"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/history"
	"github.com/dozehq/doze/internal/image"
	"github.com/dozehq/doze/internal/network"
	"github.com/dozehq/doze/internal/oauth"
	"github.com/dozehq/doze/internal/preview"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/reference"
	"github.com/dozehq/doze/internal/registry"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/schedule"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/tenancy"
)

// Parts are what the rooms of control are made with. Every field but Hub, Bucket, Pool,
// Enforce, Info, Parallel, History and Checkup is required.
type Parts struct {
	Store        *store.Store
	Node         fleet.Node
	Gate         fleet.Gate // through which schedules start processes
	Directory    *fleet.Directory
	Previews     *fleet.Previews
	Credentials  *access.Credentials
	Audit        *audit.Journal
	Quotas       *quota.Book
	Regions      []string                            // the names of this place; the first is the default
	Operator     string                              // the first workspace, whose admins operate the platform
	Base         string                              // the address of the control API
	URL          func(workspace, name string) string // the address of a sandbox
	PreviewURL   func(label string) string           // the address of a preview
	StreamURL    func(label string) string           // the same of a port without HTTP; empty where none is served
	Resolver     preview.Resolver                    // asks the DNS about custom domains
	DomainTarget string                              // the host that custom domains lead to
	Recheck      func()                              // has the edge look again at who may do less; it does not wait
	Hub          []control.HubImage
	Bucket       control.Bucket   // nil: there are no drives
	Pool         doze.AddressPool // of egress IPs; none: they wait for one
	Enforce      func()           // has egress ask again which workspaces may send; nil: none sends
	Info         fleet.NodeInfo   // of the node; the zero one while no node has joined
	Spool        string           // the directory of archives and logs of builds
	History      *history.History // nil: none is stored
	Checkup      *checkup.Checkup // nil: nobody looks at the host
	Parallel     int              // builds at a time; 0 is the default
}

// Rooms are what serves the control API, each its part.
type Rooms struct {
	Control  *control.Server
	Preview  *preview.Server
	Schedule *schedule.Server
	Images   *image.Server
	Builds   *build.Server
	Network  *network.Server
	Tenancy  *tenancy.Server
	Logins   *oauth.Server
	History  *history.Server
	Checkup  *checkup.Server
	Feed     *feed.Server
	Registry *registry.Server
	Nodes    *roster.Server
	API      *api.Server
	audit    *audit.Journal
}

// NewRooms makes the rooms, and the API that they serve.
func NewRooms(p Parts) *Rooms {
	r := &Rooms{
		Logins: oauth.New(oauth.Config{Store: p.Store, Credentials: p.Credentials, Base: p.Base}),
		Preview: preview.New(preview.Config{
			Store: p.Store, Previews: p.Previews, Regions: p.Regions, URL: p.PreviewURL, StreamURL: p.StreamURL, Resolver: p.Resolver,
			DomainTarget: p.DomainTarget, Recheck: p.Recheck,
		}),
		audit: p.Audit,
	}
	r.Builds = build.New(build.Config{
		Store: p.Store, Node: p.Node, Audit: p.Audit, Dir: p.Spool, Base: p.Base, Parallel: p.Parallel,
		Images: func() build.Images { return r.Images }, Sandboxes: func() build.Sandboxes { return control.Builds{Server: r.Control} },
	})
	r.Images = image.New(image.Config{Store: p.Store, Node: p.Node, Builds: r.Builds})
	r.Control = control.New(control.Config{
		Store: p.Store, Node: p.Node, Directory: p.Directory, Credentials: p.Credentials, Audit: p.Audit, Quotas: p.Quotas,
		Regions: p.Regions, URL: p.URL, Base: p.Base, Images: r.Images, Builds: r.Builds, Unpublish: r.Preview.Unpublish,
		Hub: p.Hub, Bucket: p.Bucket, Pool: p.Pool, Info: p.Info,
	})
	r.Schedule = schedule.New(schedule.Config{Store: p.Store, Gate: p.Gate, Audit: p.Audit, Settled: r.Control.Settled})
	r.Network = network.New(network.Config{Store: p.Store, Regions: p.Regions, Pool: p.Pool, Reroute: r.Control.Reroute})
	r.Tenancy = tenancy.New(tenancy.Config{
		Store: p.Store, Credentials: p.Credentials, OAuth: r.Logins, Audit: p.Audit, Quotas: p.Quotas, Runtime: r.Control,
		Regions: p.Regions, Operator: p.Operator, Enforce: p.Enforce, DropBuilds: r.Builds.Drop,
	})
	r.History = &history.Server{History: p.History, Operator: p.Operator}
	r.Checkup = &checkup.Server{Checkup: p.Checkup, Operator: p.Operator}
	r.Feed = feed.New(feed.Config{Credentials: p.Credentials, Survey: func(ctx context.Context, workspace string, each func([]doze.FeedSandbox) error) error {
		return control.Survey(ctx, r.Control, workspace, each)
	}})
	r.Nodes = &roster.Server{Operator: p.Operator} // [Plane.BeginRemote] puts the nodes in
	r.Registry = registry.New(registry.Config{Images: r.Images, Credentials: p.Credentials, Quotas: p.Quotas})
	r.API = r.compose(api.Config{
		Credentials: p.Credentials, Quotas: p.Quotas, Audit: p.Audit, Counted: store.Counted, Settle: r.Control.Settle,
	})
	return r
}

// Handler serves the control API, the page that describes it, that of the platform, and the
// registry.
func (r *Rooms) Handler() http.Handler {
	served, page, platform := r.API.Handler(), reference.New(r.API.Description, api.Prefix), console.New()
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == registry.Path || strings.HasPrefix(q.URL.Path, registry.Path+"/") {
			r.Registry.ServeHTTP(w, q)
			return
		}
		if q.URL.Path == reference.Path || strings.HasPrefix(q.URL.Path, reference.Path+"/") {
			page.ServeHTTP(w, q)
			return
		}
		if q.URL.Path == console.Root || q.URL.Path == console.Path || strings.HasPrefix(q.URL.Path, console.Path+"/") {
			platform.ServeHTTP(w, q)
			return
		}
		served.ServeHTTP(w, q)
	})
}

// Describe returns the control API for those who look at its routes, and send nothing.
func Describe() *api.Server { return (&Rooms{}).compose(api.Config{}) }

func (r *Rooms) compose(c api.Config) *api.Server {
	return api.New(
		c, r.Control.Section(), r.Preview.Section(), r.Schedule.Section(), r.Images.Section(), r.Builds.Section(), r.Network.Section(),
		r.Tenancy.Section(), r.History.Section(), r.Checkup.Section(), r.Nodes.Section(), r.Feed.Section(), logins(r.Logins),
	)
}

// logins are the ways to a credential: they need none.
func logins(s *oauth.Server) api.Section {
	var rows []api.Row[*oauth.Server]
	for _, rt := range oauth.Routes() {
		e := api.Plain(rt.Serve, rt.Out, rt.Query, rt.Body)
		rows = append(rows, api.Row[*oauth.Server]{Method: rt.Method, Pattern: rt.Path, Summary: rt.Summary, Endpoint: e})
	}
	return api.Section{Routes: api.Bind(s, rows)}
}

// Load takes over the records from a process that ended at any moment. Call it once, before
// requests come in.
func (r *Rooms) Load(ctx context.Context) error {
	if err := r.Tenancy.Load(ctx); err != nil { // before anything wakes
		return err
	}
	if err := r.Builds.Load(ctx); err != nil { // before sandboxes that await an image
		return err
	}
	return errors.Join(r.Control.Load(ctx), r.Preview.Load(ctx), r.Schedule.Load(ctx), r.Network.Load(ctx))
}

// Recover is Load, and takes over the only node besides.
func (r *Rooms) Recover(ctx context.Context) error {
	everything := func(string) bool { return true }
	return errors.Join(r.Load(ctx), control.Link{Server: r.Control}.TellNode(ctx, r.Control.Node, everything, nil), r.Control.Adopt(ctx))
}

// Run runs the loops of all rooms until ctx ends.
func (r *Rooms) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	for _, run := range []func(context.Context) error{r.audit.Run, r.Tenancy.Run, r.Control.Run, r.Builds.Run, r.Preview.Run, r.Schedule.Run, r.Feed.Run} {
		loops.Go(func() { _ = run(ctx) }) // each logs what does not work, and ends with ctx
	}
	loops.Wait()
	return context.Cause(ctx)
}

// ClockStepped tells that somebody set the clock of the host.
func (r *Rooms) ClockStepped() {
	r.Control.ClockStepped()
	r.Schedule.ClockStepped()
}

// Turned records that the edge denied a request to a sandbox.
func (r *Rooms) Turned(q *http.Request, id string, c access.Caller, upstream fleet.Upstream, err error) {
	r.API.Turned(q, id, c, upstream.Name, err)
}
