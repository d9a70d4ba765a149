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
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"doze"
	"doze/internal/access"
	"doze/internal/audit"
	"doze/internal/certificate"
	"doze/internal/clock"
	"doze/internal/control"
	"doze/internal/daemon"
	"doze/internal/disk"
	"doze/internal/doctor"
	"doze/internal/door"
	"doze/internal/drive"
	"doze/internal/durable"
	"doze/internal/edge"
	"doze/internal/egress"
	"doze/internal/fleet"
	"doze/internal/hostnet"
	"doze/internal/httpx"
	"doze/internal/ingress"
	"doze/internal/machine"
	"doze/internal/machine/gvisor"
	"doze/internal/metric"
	"doze/internal/node"
	"doze/internal/oauth"
	"doze/internal/quota"
	"doze/internal/seal"
	"doze/internal/space"
	"doze/internal/store"
	"doze/internal/swap"
	"doze/internal/trace/otlp"
	"doze/internal/volume"
)

const (
	// drainTime is what requests get to end in when dozed stops.
	drainTime = 10 * time.Second

	// bucketTime is how long a start waits for the bucket of drives.
	bucketTime = 5 * time.Second

	keyFile    = "admin.key"
	sealFile   = "seal.key"   // belongs to the database: a backup of one needs the other
	egressFile = "egress.key" // likewise: it opens secrets of routing rules
	apiPath    = "/v0"

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
	if !doctor.Print(os.Stderr, notable(doctor.Examine(host(ctx, c)))) {
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
	entrance, err := door.Open(ctx, door.Options{
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
	net         *hostnet.Net
	egress      *egress.Egress
	refusals    *hostnet.Watch
	routing     *routing
	images      *disk.Library
	disk        *space.Disk   // of the data directory
	imageDisk   *space.Disk   // of the images; the same one, unless they are elsewhere
	agents      *disk.Library // of this data directory alone
	bucket      *drive.Bucket // nil without drives
	node        *node.Node
	control     *control.Server
	edge        *edge.Edge
	metrics     *metric.Metrics
	traces      *otlp.Exporter // nil without a collector
	credentials *access.Credentials
	quotas      *quota.Book
	traffic     *traffic
	door        *door.Door
	ingress     *ingress.Ingress
	server      *http.Server
	issuer      *certificate.Issuer // nil without ACME
	plain       net.Listener        // of plain HTTP next to TLS; nil without
	flights     *flights
	unnamed     chan struct{} // rings when the record of an image is gone

	// Of previews by path; nil where previews have hosts of their own.
	previews      *door.Door
	previewServer *http.Server

	volumes *volume.Pool
	swap    swap.Plan // that sandboxes get

	memory int64  // what all sandboxes can take together, in bytes
	key    string // the admin key, if this start made it
}

// open builds the platform from the ground up: images, network, engine, node,
// records, API, edge. What was opened is closed again if a later step fails.
func open(ctx context.Context, c config, in entrances) (_ *platform, err error) {
	p := &platform{config: c, door: in.api, previews: in.previews, metrics: metric.New(), flights: newFlights(), unnamed: make(chan struct{}, 1)}
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
	if err := p.openDisks(); err != nil {
		return nil, err
	}
	if p.images, err = disk.Open(c.ImagesDir, p.libraryOptions()); err != nil {
		return nil, err
	}
	for _, name := range c.Images {
		if _, err := p.images.Ensure(ctx, name, progress(os.Stderr, name)); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
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
	if p.bucket, err = openBucket(ctx, c); err != nil {
		return nil, err
	}
	if err := p.openVolumes(); err != nil {
		return nil, err
	}
	if err := p.openMemory(ctx); err != nil {
		return nil, err
	}
	limits, err := doze.ParseLimits(c.Quotas)
	if err != nil {
		return nil, err
	}
	p.store.SetDefaultLimits(limits)
	p.quotas = quota.New(quota.Options{Defaults: limits, PerKey: c.KeyRequests, Refused: p.metrics.Refused})
	p.traffic = &traffic{quotas: p.quotas, all: map[string]*egress.Traffic{}}
	if c.OTLPEndpoint != "" {
		if p.traces, err = otlp.Open(ctx, c.OTLPEndpoint, version); err != nil {
			return nil, err
		}
	}
	if err := p.openNode(ctx); err != nil {
		return nil, err
	}
	credentials, err := control.LoadCredentials(ctx, p.store, c.PublicURL+apiPath)
	if err != nil {
		return nil, fmt.Errorf("load the credentials: %w", err)
	}
	p.credentials = credentials
	directory, previews := fleet.NewDirectory(), fleet.NewPreviews()
	p.edge = edge.New(edge.Config{
		Addresses: addresses, Directory: directory, Previews: previews, Gate: p.node, Authenticate: credentials.Authenticate, Tickets: credentials.Tickets,
		Enter: p.quotas.Enter, StateAge: p.node.StateAge,
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
		Enforce: p.egress.Enforce, Unmetered: c.Egress == egressDirect,
		Memory: largest(p.memory), Quotas: p.quotas, Operator: c.Workspace,
		Audit: audit.New(p.store, c.AuditKeep.Duration),
		Store: p.store, Node: p.node, Gate: p.node, Directory: directory, Credentials: credentials,
		OAuth:  oauth.New(oauth.Config{Store: p.store, Credentials: credentials, Base: c.PublicURL + apiPath}),
		Region: c.Region, URL: addresses.URL, Hub: hub(),
		Resolver: resolver(c.Resolver), DomainTarget: addresses.Target(),
		Base: c.PublicURL + apiPath, Previews: previews, PreviewURL: addresses.PreviewURL, Recheck: p.edge.Recheck,
		Pool: pool, Proxy: c.Egress != egressClosed, Sealer: p.routing.opener.Sealer(),
	}
	if p.bucket != nil { // a nil of its type would be a bucket
		settings.Bucket = p.bucket
	}
	p.control = control.New(settings)
	if err := p.bootstrap(ctx); err != nil {
		return nil, err
	}
	if err := p.control.Recover(ctx); err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	if err := p.net.SweepAddresses(); err != nil {
		slog.Warn("addresses that nobody leaves from any more could not be removed", "err", err)
	}

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

// openBucket returns the bucket of drives, or nil. One that does not answer may
// do so later.
func openBucket(ctx context.Context, c config) (*drive.Bucket, error) {
	if c.Drives == "" {
		return nil, nil //nolint:nilnil // there are no drives
	}
	b, err := drive.Open(drive.Options{URL: c.Drives, Credentials: c.DrivesKeys, Region: c.DrivesRegion})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTime)
	defer cancel()
	if err := b.Check(ctx); err != nil {
		slog.Warn("the bucket of drives cannot be used", "bucket", b.URL(), "err", err)
	}
	return b, nil
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

// resolvers are the servers of the DNS that sandboxes ask. What a sandbox was told
// when it was made holds with every setting of ours: wherever it asks for names,
// in the lane it is led to us, and what it asks of the proxy has an answer in all
// cases, if only that nobody is there.
func (p *platform) resolvers() ([]netip.Addr, error) {
	if p.config.Egress == egressDirect {
		public, err := p.net.Resolvers()
		if err != nil || len(public) > 0 {
			return public, err
		}
		slog.Warn("sandboxes without network rules can resolve no names: /etc/resolv.conf has no public name server")
	}
	return []netip.Addr{hostnet.ProxyIP}, nil
}

// openNode starts the engine and adopts the sandboxes.
func (p *platform) openNode(ctx context.Context) (err error) {
	c := p.config
	if p.net, err = hostnet.Open(filepath.Join(c.Data, "net"), hostnet.Options{OpenEgress: c.Egress == egressDirect, OpenDatagrams: c.datagrams(), EgressLink: c.EgressLink}); err != nil {
		return fmt.Errorf("open the network: %w", err)
	}
	if err := p.openEgress(ctx); err != nil {
		return err
	}
	resolvers, err := p.resolvers()
	if err != nil {
		return err
	}
	if p.agents, err = disk.Open(filepath.Join(c.Data, "agents"), disk.Options{}); err != nil {
		return err
	}
	agent, err := p.agent(ctx)
	if err != nil {
		return fmt.Errorf("prepare the agent: %w", err)
	}
	driver, err := gvisor.Open(ctx, gvisor.Options{
		Sentry: beside("doze-sentry"), Engines: filepath.Join(c.Data, "engines"), Run: c.Run, Cgroup: c.Cgroup, Ready: c.readyProcesses(p.memory), Memory: p.memory,
		Dial: func(ctx context.Context, l machine.Link, port uint16) (net.Conn, error) {
			ip, err := netip.ParseAddr(l.IP)
			if err != nil {
				return nil, err
			}
			return p.net.Dial(ctx, hostnet.Slot{IP: ip}, port)
		},
	})
	if err != nil {
		return fmt.Errorf("open the engine: %w", err)
	}
	p.node, err = node.Open(ctx, node.Options{
		Drive: p.mountDrive,
		Dir:   filepath.Join(c.Data, "sandboxes"), Snapshots: filepath.Join(c.Data, "snapshots"), Ahead: filepath.Join(c.Data, "ahead"),
		Volumes: p.volumes, Agent: agent, Driver: driver,
		CheckImage: p.images.Check,
		Image: func(ctx context.Context, ref string, login *fleet.Login) (node.Image, error) {
			image, err := p.images.EnsureFor(ctx, ref, diskLogin(login), progress(os.Stderr, ref))
			return node.Image{Path: image.Path, Env: image.Env, User: image.User, WorkDir: image.WorkDir}, err
		},
		PinImage: func(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error) {
			pinned, image, err := p.images.Pin(ctx, ref, diskLogin(login), progress(os.Stderr, ref))
			return fleet.Pinned{Ref: pinned, Bytes: image.Bytes}, err
		},
		Images: p.storedImages, ReleaseImage: p.releaseImage, HoldImage: p.images.Hold,
		Lease: p.lease, Release: p.release, Admit: p.admit,
		Nameservers: texts(resolvers), Proxy: proxyAddress, Trust: p.routing.authorities.Certificate,
		Report: func(r fleet.Report) { p.control.Report(r) },
		Woke:   p.metrics.Woke, Sank: p.metrics.Sank, Refused: p.metrics.Refused, Traced: p.traced,

		Room: p.disk.Claim, SleepRoom: p.disk.ClaimSleep,
		Available: available(hostAvailable, driver.Free), Reserve: c.reserve(p.memory), Limit: p.memory, Overcommit: c.Overcommit, Budget: c.BudgetMB << 20, Spares: c.Spares, SparesMax: c.SparesMax,
		GoBack: c.OnCrash == crashResume, CheckpointEvery: c.Checkpoint.Duration,
		PauseAfter: c.PauseAfter.Duration, DiskAfter: c.DiskAfter.Duration,
		SaveAfter: min(c.SaveAfter.Duration, c.DiskAfter.Duration), SwapAfter: p.swapAfter(),
	})
	if err != nil {
		return err
	}
	if err := p.net.Sweep(p.node.Owns); err != nil {
		slog.Warn("addresses that nobody has could not be given back", "err", err)
	}
	if err := p.retire(agent); err != nil {
		slog.Warn("agents of earlier builds could not be removed", "err", err)
	}
	gone, err := driver.Retire(ctx, filepath.Join(c.Data, "sandboxes"), filepath.Join(c.Data, "snapshots"), filepath.Join(c.Data, "ahead"))
	if err != nil {
		slog.Warn("earlier engines could not be removed", "err", err)
	}
	if len(gone) > 0 {
		slog.Info("removed earlier engines", "engines", gone)
	}
	return nil
}

// mountDrive opens a part of a drive for a sandbox.
func (p *platform) mountDrive(m fleet.DriveMount, dir string) (node.Drive, error) {
	if p.bucket == nil {
		return nil, doze.Errorf(doze.Unsupported, "this platform has no bucket for drives: its operator names one with --drives and --drives-credentials")
	}
	return p.bucket.Mount(m.DriveID, m.DrivePath, m.ReadOnly, dir)
}

// libraryOptions are the settings of images.
func (p *platform) libraryOptions() disk.Options {
	return disk.Options{PrivateRegistries: p.config.PrivateRegistries, BytesMax: p.config.ImageMaxMB << 20, Room: p.imageDisk.Claim, Owner: p.config.Data}
}

// diskOptions are the settings of a disk with data or images.
func (c config) diskOptions() space.Options {
	o := space.Options{Reserve: c.DiskReserveMB, Overcommit: c.VolumeOvercommit}
	if o.Reserve > 0 {
		o.Reserve <<= 20
	}
	return o
}

// openDisks looks at the disks that have data and images. Both have a reserve.
func (p *platform) openDisks() (err error) {
	c := p.config
	o := c.diskOptions()
	if p.disk, err = space.Open(c.Data, o); err != nil {
		return err
	}
	if err := os.MkdirAll(c.ImagesDir, 0o755); err != nil { //nolint:gosec // G301: as the library makes it
		return fmt.Errorf("make the directory of images: %w", err)
	}
	p.imageDisk = p.disk
	if same, err := p.disk.Same(c.ImagesDir); same || err != nil {
		return err
	}
	p.imageDisk, err = space.Open(c.ImagesDir, o)
	return err
}

// openVolumes opens the volumes, which take the room that they promise.
func (p *platform) openVolumes() (err error) {
	if p.volumes, err = volume.Open(filepath.Join(p.config.Data, "volumes"), p.disk); err != nil {
		return err
	}
	p.disk.Written(p.volumes.Written)
	s, err := p.disk.State()
	if err == nil && s.Free-s.Reserve < s.Pending {
		slog.Warn("volumes are promised more than the disk has: nothing that takes disk can be made until some are deleted, the disk is larger, or --volume-overcommit is",
			"promised", s.Promised, "pending", s.Pending, "free", s.Free, "reserve", s.Reserve)
	}
	return err
}

// storedImages is what images take of the disk.
func (p *platform) storedImages() (uses []fleet.DiskUse, err error) {
	all, err := p.images.Stored()
	for _, i := range all {
		uses = append(uses, fleet.DiskUse{Kind: fleet.DiskImage, ID: filepath.Base(i.Path), Refs: i.Refs, Bytes: i.Allocated, Platform: i.Platform})
	}
	return uses, err
}

// diskLogin is a login as the library of images has it.
func diskLogin(l *fleet.Login) *disk.Login {
	if l == nil {
		return nil
	}
	return &disk.Login{Owner: l.Workspace, Username: l.Username, Password: l.Password}
}

// openMemory makes sure of the swap that the configuration allows, and finds out
// what sandboxes can take together. It comes after the volumes, whose promises a
// file of swap leaves alone.
func (p *platform) openMemory(ctx context.Context) error {
	c := p.config
	host, err := hostMemory()
	if err != nil {
		return err
	}
	choice, err := swap.Parse(c.Swap)
	if err != nil {
		return err
	}
	disk, err := p.disk.State()
	if err != nil {
		return err
	}
	p.swap, err = swap.Provide(ctx, choice, c.swapOptions(host, disk))
	if err != nil { // sandboxes sleep all the same
		slog.Warn("swap could not be had", "swap", c.Swap, "kind", p.swap.Kind, "cost", swap.Cost, "err", err)
		p.swap = swap.Plan{Kind: swap.Off}
	} else {
		logSwap(c.Swap, p.swap)
	}
	p.memory = c.sandboxMemory(host, p.swap.Held())
	return nil
}

// logSwap tells the operator what was chosen, and what it costs.
func logSwap(choice string, plan swap.Plan) {
	with := []any{"swap", choice, "kind", plan.Kind, "why", plan.Why}
	if plan.Bytes > 0 {
		with = append(with, "bytes", plan.Bytes)
	}
	if held := plan.Held(); held > 0 {
		with = append(with, "held", held) // memory that sandboxes do not get
	}
	switch {
	case plan.Some():
		slog.Info("memory of sleeping sandboxes is moved to swap", with...)
	case choice == swap.Off:
		slog.Info("memory of sleeping sandboxes is not moved to swap", append(with, "cost", swap.Cost)...)
	default:
		slog.Warn("memory of sleeping sandboxes is not moved to swap", append(with, "cost", swap.Cost)...)
	}
}

// swapAfter is after how long in a pause sandboxes are moved to swap: 0 is never.
func (p *platform) swapAfter() time.Duration {
	if !p.swap.Some() {
		return 0
	}
	return max(p.config.SwapAfter.Duration, p.config.SaveAfter.Duration, 1)
}

// swapOptions bound what swap of our own may take.
func (c *config) swapOptions(host doze.Megabytes, disk space.State) swap.Options {
	return swap.Options{Path: swapFile(c.Data), Room: disk.Free - disk.Reserve - disk.Pending, Spare: c.spareMemory(host)}
}

// swapFile is where swap of our own is.
func swapFile(data string) string { return filepath.Join(data, "swap") }

func texts(addresses []netip.Addr) (list []string) {
	for _, a := range addresses {
		list = append(list, a.String())
	}
	return list
}

func (p *platform) lease(ctx context.Context, id string) (machine.Link, error) {
	s, err := p.net.Lease(ctx, id)
	return machine.Link{
		NetNS: s.Path, Name: s.Link, MAC: s.MAC.String(), IP: s.IP.String(), PrefixLen: s.PrefixLen,
		Gateway: s.Gateway.String(), GatewayMAC: s.GatewayMAC.String(), MTU: s.MTU,
	}, err
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
		{Name: "node", Run: p.node.Run},
		{Name: "images", Run: p.collectImages},
		{Name: "interceptor", Run: p.routing.interceptor.Run},
		{Name: "egress", Run: p.egress.Run},
		{Name: "refusals", Run: p.watchRefusals},
	}...)
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
	if p.egress != nil {
		errs = append(errs, p.egress.Close())
	}
	if p.refusals != nil {
		errs = append(errs, p.refusals.Close())
	}
	if p.net != nil {
		errs = append(errs, p.net.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	for _, l := range []*disk.Library{p.agents, p.images} {
		if l != nil {
			errs = append(errs, l.Close())
		}
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

// hostAvailable is MemAvailable of /proc/meminfo, in bytes.
func hostAvailable() (int64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
