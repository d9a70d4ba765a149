package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/certificate"
	"github.com/dozehq/doze/internal/clock"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/handover"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ingress"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/oauth"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/trace/otlp"
)

const (
	// drainTime is what requests get to end in when dozed stops.
	drainTime = 10 * time.Second

	keyFile  = "admin.key"
	sealFile = "seal.key" // belongs to the database: a backup of one needs the other
	apiPath  = "/v0"

	// doorFile, in the run directory, is the socket of who keeps the address,
	// and keepCommand is what it is started with.
	doorFile    = "door.sock"
	keepCommand = "keep"
)

// all serves everything in one process.
func all(ctx context.Context, args []string) error {
	replaced := make(chan os.Signal, 1)
	signal.Notify(replaced, replace) // one that comes too early is heard when all runs
	c, rest, err := load("all", args)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("dozed all takes no argument %q; see dozed all --help", rest[0])
	}
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		return err
	}
	level, err := logLevel(c.Log)
	if err != nil {
		return err
	}
	openLog(os.Stderr, level)
	if !doctor.Print(os.Stderr, notable(doctor.Examine(examined(ctx, c)))) {
		return errors.New("this host cannot run sandboxes: see MISSING above")
	}
	if err := undumpable(); err != nil {
		return err
	}
	if err := boundMemory(); err != nil {
		return err
	}
	in, release, err := claim(ctx, c)
	if err != nil {
		return err
	}
	defer release()
	p, err := open(ctx, c, in)
	if err != nil {
		return errors.Join(err, in.shut())
	}
	return p.run(ctx, replaced)
}

// claim takes the address and the directories of a configuration for this
// process alone. It leaves nothing if it fails.
func claim(ctx context.Context, c config) (_ entrances, release func(), err error) {
	var undo []func()
	back := func() {
		for _, do := range slices.Backward(undo) {
			do()
		}
	}
	defer func() {
		if err != nil {
			back()
		}
	}()
	// The address first: if it is taken, no directory should be made.
	inherited, err := daemon.Inherited()
	if err != nil {
		return entrances{}, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return entrances{}, nil, err
	}
	entrance, err := handover.Open(ctx, handover.Options{
		Address: c.Listen, Path: filepath.Join(c.Run, doorFile), Command: []string{self, keepCommand}, Inherited: inherited,
	})
	if err != nil {
		return entrances{}, nil, fmt.Errorf("choose another address with --listen: %w", err)
	}
	in := entrances{api: entrance}
	undo = append(undo, func() { _ = in.close() }) // if nobody else has
	if in.previews, err = openPreviews(ctx, c); err != nil {
		return entrances{}, nil, err
	}
	// Whoever serves one of them with another one of the other would take what
	// it does not know for left over.
	for _, dir := range []string{c.Data, c.Run} {
		unlock, err := lock(dir)
		if err != nil {
			return entrances{}, nil, err
		}
		undo = append(undo, unlock)
	}
	if err := cmp.Or(in.hold(ctx), announce(c, entrance.Addr().String())); err != nil {
		return entrances{}, nil, errors.Join(err, in.shut())
	}
	return in, back, nil
}

// openLog has everybody log to w from a level on, but for who knows only the
// logger of package log: the client of HTTP writes there what a destination sent
// that it did not expect, which may be a secret of a routing rule.
func openLog(w io.Writer, level slog.Level) {
	slog.SetDefault(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: plain})))
	slog.SetLogLoggerLevel(math.MinInt)
}

// plain writes durations as people read them.
func plain(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}

// notable leaves out what needs nobody's attention.
func notable(found []doctor.Finding) (worth []doctor.Finding) {
	for _, f := range found {
		if f.Verdict == doctor.Missing {
			worth = append(worth, f)
		}
	}
	return worth
}

// platform is all roles of one process.
type platform struct {
	config      config
	store       *store.Store
	host        *host.Host
	control     *control.Server
	edge        *edge.Edge
	metrics     *metric.Metrics
	traces      *otlp.Exporter // nil without a collector
	credentials *access.Credentials
	quotas      *quota.Book
	door        *handover.Listener
	ingress     *ingress.Ingress
	server      *http.Server
	issuer      *certificate.Issuer // nil without ACME
	plain       net.Listener        // of plain HTTP next to TLS; nil without
	flights     *flights

	// Of previews by path; nil where previews have hosts of their own.
	previews      *handover.Listener
	previewServer *http.Server

	key string // the admin key, if this start made it
}

// open builds the platform from the ground up: images, network, engine, node,
// records, API, edge. What was opened is closed again if a later step fails.
func open(ctx context.Context, c config, in entrances) (_ *platform, err error) {
	p := &platform{config: c, door: in.api, previews: in.previews, metrics: metric.New(), flights: newFlights()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	noteLocalNames(c.Domain)
	if p.ingress, err = ingress.New(c.limits(new(doze.Problems))); err != nil { // which were reported
		return nil, fmt.Errorf("count descriptors: %w", err)
	}
	addresses, err := edge.NewAddresses(c.Region, c.Domain, c.PublicURL)
	if err == nil && c.byPath() {
		addresses, err = addresses.WithPreviews(c.PreviewURL)
	}
	if err != nil {
		return nil, err
	}
	box, err := seal.Open(filepath.Join(c.Data, sealFile))
	if err != nil {
		return nil, err
	}
	records, err := c.records()
	if err != nil {
		return nil, err
	}
	if p.store, err = store.Open(ctx, records, box); err != nil {
		return nil, err
	}
	limits, err := doze.ParseLimits(c.Quotas)
	if err != nil {
		return nil, err
	}
	p.store.SetDefaultLimits(limits)
	p.quotas = quota.New(quota.Options{Defaults: limits, PerKey: c.KeyRequests, Refused: p.metrics.Refused})
	if c.OTLPEndpoint != "" {
		if p.traces, err = otlp.Open(ctx, c.OTLPEndpoint, version); err != nil {
			return nil, err
		}
	}
	if p.host, err = host.Open(ctx, p.hostOptions()); err != nil {
		return nil, err
	}
	node := p.host.Node()
	credentials, err := control.LoadCredentials(ctx, p.store, c.PublicURL+apiPath)
	if err != nil {
		return nil, fmt.Errorf("load the credentials: %w", err)
	}
	p.credentials = credentials
	directory, previews := fleet.NewDirectory(), fleet.NewPreviews()
	p.edge = edge.New(edge.Config{
		Addresses: addresses, Directory: directory, Previews: previews, Gate: node, Authenticate: credentials.Authenticate, Tickets: credentials.Tickets,
		Enter: p.quotas.Enter, StateAge: node.StateAge,
		Mounts: func(w http.ResponseWriter, r *http.Request, route fleet.Route, path string) {
			p.control.ServeMounts(w, r, route, path)
		},
		Denied: func(r *http.Request, id string, c access.Caller, route fleet.Route, err error) {
			p.control.Turned(r, id, c, route, err)
		},
	})
	credentials.OnLess(p.edge.Recheck)
	pool, err := doze.ParseAddressPool(c.EgressPool)
	if err != nil {
		return nil, err
	}
	settings := control.Config{
		Enforce: p.host.Enforce, Info: p.host.Info(), Quotas: p.quotas, Operator: c.Workspace,
		Audit: audit.New(p.store, c.AuditKeep.Duration),
		Store: p.store, Node: node, Gate: node, Directory: directory, Credentials: credentials,
		OAuth:  oauth.New(oauth.Config{Store: p.store, Credentials: credentials, Base: c.PublicURL + apiPath}),
		Region: c.Region, URL: addresses.URL, Hub: hub(),
		Resolver: resolver(c.Resolver), DomainTarget: addresses.Target(),
		Base: c.PublicURL + apiPath, Previews: previews, PreviewURL: addresses.PreviewURL, Recheck: p.edge.Recheck,
		Pool: pool,
	}
	if b := p.host.Bucket(); b != nil { // a nil of its type would be a bucket
		settings.Bucket = b
	}
	p.control = control.New(settings)
	if err := p.bootstrap(ctx); err != nil {
		return nil, err
	}
	if err := p.control.Recover(ctx); err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	p.host.SweepAddresses()

	secure, err := p.openTLS()
	if err != nil {
		return nil, err
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP2(secure != nil)
	p.server = &http.Server{ //nolint:gosec // G112: Configure bounds the time for a header
		TLSConfig: secure,
		Handler:   p.flights.over(p.handler()), Protocols: &protocols,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	p.ingress.Configure(p.server)
	if p.previews != nil {
		p.previewServer = p.openPreviewServer(p.server)
	}
	return p, nil
}

// hostOptions are the settings of the node's host.
func (p *platform) hostOptions() host.Options {
	c := p.config
	return host.Options{
		Data: c.Data, Run: c.Run, ImagesDir: c.ImagesDir, Cgroup: c.Cgroup, Driver: c.Driver, Sentry: beside("doze-sentry"), Agent: beside("doze-agent"),
		Images: c.Images, PrivateRegistries: c.PrivateRegistries, ImageMax: c.ImageMaxMB << 20, ImageKeep: c.ImageKeep.Duration,
		Disk: c.diskOptions(), Memory: c.memory(), Spares: c.Spares, SparesMax: c.SparesMax,
		GoBack: c.OnCrash == crashResume, CheckpointEvery: c.Checkpoint.Duration,
		PauseAfter: c.PauseAfter.Duration, SaveAfter: c.SaveAfter.Duration, SwapAfter: c.SwapAfter.Duration, DiskAfter: c.DiskAfter.Duration,
		Egress: c.Egress, EgressLink: c.EgressLink, Resolver: resolver(c.Resolver),
		Drives: drive.Options{URL: c.Drives, Credentials: c.DrivesKeys, Region: c.DrivesRegion},
		Report: func(r fleet.Report) { p.control.Report(r) }, Traced: p.traced,
		Metrics: p.metrics, Quotas: p.quotas, Named: p.store.ImageRefs, Output: os.Stderr,
	}
}

// memory is what of the host's memory sandboxes get.
func (c config) memory() host.Memory {
	return host.Memory{
		Swap: c.Swap, ReserveMB: c.ReserveMB, BudgetMB: c.BudgetMB, SandboxMB: c.SandboxMB, Overcommit: c.Overcommit, Ready: c.Ready,
	}
}

// diskOptions are the settings of a disk with data or images.
func (c config) diskOptions() space.Options {
	o := space.Options{Reserve: c.DiskReserveMB, Overcommit: c.VolumeOvercommit}
	if o.Reserve > 0 {
		o.Reserve <<= 20
	}
	return o
}

// resolver asks one server of the DNS, or those of the host.
func resolver(server string) *net.Resolver {
	if server == "" {
		return net.DefaultResolver
	}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server)
	}}
}

// bootstrap makes a fresh platform usable and keeps the admin key where root
// finds it again.
func (p *platform) bootstrap(ctx context.Context) error {
	// The file comes first, and outlasts a loss of power: a key that is recorded
	// and in no file would lock everybody out.
	keep := func(secret access.Secret) error {
		return durable.Replace(filepath.Join(p.config.Data, keyFile), []byte(secret.Reveal()+"\n"), 0o600)
	}
	secret, created, err := p.control.Bootstrap(ctx, p.config.Workspace, keep)
	if err != nil {
		return fmt.Errorf("create the workspace: %w", err)
	}
	if created {
		p.key = secret.Reveal()
	}
	return nil
}

// handler shares one listener between the edge and the control API.
func (p *platform) handler() http.Handler {
	api := p.control.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case p.edge.Matches(r):
			p.edge.ServeHTTP(w, r)
		case r.URL.Path == apiPath || strings.HasPrefix(r.URL.Path, apiPath+"/"):
			api.ServeHTTP(w, r)
		case r.URL.Path == "/openapi.json": // where tools look for it
			r = r.Clone(r.Context())
			r.URL.Path, r.URL.RawPath = apiPath+r.URL.Path, ""
			api.ServeHTTP(w, r)
		case r.URL.Path == "/metrics":
			p.showMetrics(w, r)
		case r.URL.Path == "/health":
			httpx.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok", "version": version})
		default:
			httpx.WriteError(w, r, doze.Errorf(doze.NotFound, "nothing is here: the API is below %s, sandboxes below /run/", apiPath))
		}
	})
}

// run serves until ctx ends. Sandboxes stay: they run or sleep on, and the next
// start adopts them.
func (p *platform) run(ctx context.Context, signals <-chan os.Signal) error {
	p.greet(os.Stdout, term.IsTerminal(int(os.Stdout.Fd())))
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	replaced := func() bool { return errors.Is(context.Cause(ctx), errReplaced) }
	var services []daemon.Service
	if p.traces != nil { // before all that is traced
		services = append(services, daemon.Service{Name: "traces", Run: p.traces.Run})
	}
	services = append(services, []daemon.Service{
		{Name: "control", Run: p.control.Run},
		{Name: "clock", Run: func(ctx context.Context) error { return clock.Watch(ctx, p.control.ClockStepped) }},
	}...)
	services = append(services, p.host.Services()...)
	if p.issuer != nil {
		services = append(services, daemon.Service{Name: "certificates", Run: p.issuer.Run})
	}
	if p.plain != nil {
		services = append(services, daemon.Service{Name: "plain http", Run: p.servePlain})
	}
	if p.previews != nil {
		services = append(services, daemon.Service{Name: "previews", Run: p.servePreviews})
	}
	services = append(services,
		daemon.Service{Name: "http", Run: p.serve},
		daemon.Service{Name: "edge", Run: p.edge.Run}, // ends open requests, before http waits for them
		daemon.Service{Name: "door", Run: func(ctx context.Context) error { return p.attend(ctx, replaced) }},
	)
	if p.previews != nil {
		services = append(services, daemon.Service{Name: "door of previews", Run: func(ctx context.Context) error { return p.attendPreviews(ctx, replaced) }})
	}
	services = append(services,
		daemon.Service{Name: "successor", Run: func(ctx context.Context) error { return p.yield(ctx, signals, end) }},
	)
	return errors.Join(daemon.Run(ctx, services...), p.close())
}

// greet tells a newcomer what to do next. The text of a new key goes to a terminal
// alone: any other output is kept, by a journal or a file that more people read
// than the file of the key.
func (p *platform) greet(w io.Writer, terminal bool) {
	file := filepath.Join(p.config.Data, keyFile)
	key := "$(cat " + file + ")"
	_, _ = fmt.Fprintf(w, "\nDoze is ready at %s\n", p.config.PublicURL)
	if p.config.byPath() {
		_, _ = fmt.Fprintf(w, "Previews are at %s\n", p.config.PreviewURL)
	}
	switch {
	case p.key == "":
	case terminal:
		key = p.key
		_, _ = fmt.Fprintf(w, "The admin key, shown this once and kept in %s:\n  %s\n", file, key)
	default:
		_, _ = fmt.Fprintf(w, "The admin key is in %s\n", file)
	}
	_, _ = fmt.Fprintf(w, `A first call:
  curl -s -H "Authorization: Bearer %s" \
    -d '{"metadata":{"name":"hello"}}' %s%s/sandboxes
`, key, p.config.PublicURL, apiPath)
}

// attend keeps the door open until ctx ends. Then nobody is let in any more:
// they are refused, or wait for who replaces us.
func (p *platform) attend(ctx context.Context, replaced func() bool) error {
	return attendTo(ctx, p.door, p.server, replaced)
}

// serve answers requests until ctx ends, and then waits for those that are
// under way.
func (p *platform) serve(ctx context.Context) error {
	return serveOver(ctx, p.server, p.ingress.Listen(p.door, p.server.TLSConfig))
}

// close closes what is open, in reverse.
func (p *platform) close() error {
	var errs []error
	if p.plain != nil {
		if err := p.plain.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if p.host != nil {
		errs = append(errs, p.host.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	return errors.Join(append(errs, entrances{p.door, p.previews}.close())...)
}

// hub is the list of images that the platform makes itself.
func hub() (list []control.HubImage) {
	for _, o := range disk.Hub() {
		list = append(list, control.HubImage{
			Name: o.Name, DisplayName: o.DisplayName, Image: o.Image, Memory: o.Memory, Ports: o.Ports, Description: o.Description,
			Categories: []string{},
		})
	}
	return list
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}
