package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/certificate"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/ingress"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/trace/otlp"
)

// config is every setting of dozed. A new field must have a useful zero value
// or a default: an old file still starts a new binary.
type config struct {
	Data     string `json:"data"`     // directory of everything that must survive
	Database string `json:"database"` // postgres://…, of the records; empty is a file in Data
	// DatabaseFile holds Database, which may have a password.
	DatabaseFile string `json:"databaseFile"`
	Run          string `json:"run"`           // directory of run state; a tmpfs
	ImagesDir    string `json:"imagesDir"`     // directory of images; several data directories may share it
	Cgroup       string `json:"cgroup"`        // parent of all cgroups
	Driver       string `json:"driver"`        // what sandboxes run in: one of host.Drivers
	Listen       string `json:"listen"`        // address of the API and of the edge
	TLSCert      string `json:"tlsCert"`       // PEM file of the certificate; with it the listener speaks TLS
	TLSKey       string `json:"tlsKey"`        // PEM file of its key
	ACME         bool   `json:"acme"`          // certificates are got from an authority for what has none
	ACMEURL      string `json:"acmeDirectory"` // URL of its directory
	ACMERoots    string `json:"acmeCa"`        // PEM file of whom to believe that it is the authority; empty are those of the host
	ACMEEmail    string `json:"acmeEmail"`     // where it writes when something is wrong
	ListenHTTP   string `json:"httpListen"`    // plain HTTP: challenges, and the way to https; empty is none
	PublicURL    string `json:"publicUrl"`     // how the world reaches it; by default http://<listen>, or https

	// PreviewListen is the address of previews by path, which a platform without
	// a domain has: another origin than the API. By default it is the next port.
	PreviewListen string `json:"previewListen"`
	PreviewURL    string `json:"previewUrl"` // how the world reaches that

	Workspace    string          `json:"workspace"`         // name of the first workspace
	Region       string          `json:"region"`            // name of the one region
	Resolver     string          `json:"resolver"`          // server of the DNS that knows about custom domains, and what sandboxes with rules may reach; empty is that of the host
	Domain       string          `json:"domain"`            // platform domain of sandboxes' host names; may be empty
	PauseAfter   daemon.Duration `json:"pauseAfter"`        // unused for this long, a sandbox is paused
	SaveAfter    daemon.Duration `json:"saveAfter"`         // paused for this long, it is safe on disk as well; 0: at once
	Checkpoint   daemon.Duration `json:"checkpointEvery"`   // older than this, the checkpoint of a sandbox in use is renewed in a gap; 0: never
	OnCrash      string          `json:"onCrash"`           // resume or fail: what becomes of one whose processes end by themselves
	SwapAfter    daemon.Duration `json:"swapAfter"`         // paused for this long, its memory is moved to swap, if there is some
	DiskAfter    daemon.Duration `json:"diskAfter"`         // paused for this long, its memory is given back
	Swap         string          `json:"swap"`              // auto, off, host, zram, encrypted or plain: see swap.Parse
	ReserveMB    int64           `json:"reserveMb"`         // with less free memory, sleeping sandboxes move to disk early
	BudgetMB     int64           `json:"memoryBudgetMb"`    // with more memory than this in sandboxes, those that sleep move down early; 0: no limit
	SandboxMB    int64           `json:"sandboxMemoryMb"`   // what all sandboxes can take together; 0: the host's memory but for ReserveMB
	Overcommit   float64         `json:"memoryOvercommit"`  // how many times that may be promised to sandboxes in memory
	Ready        int             `json:"ready"`             // how many sandboxes on disk keep a process (11 MB) for a faster wake; -1: 1% of the memory
	Spares       int             `json:"spares"`            // how many machines (about 20 MB) are started ahead of their sandboxes
	SparesMax    int             `json:"sparesMax"`         // the same, when as many sandboxes were created within a minute
	Egress       string          `json:"egress"`            // closed, open or direct: what sandboxes may reach, and how
	EgressPool   []string        `json:"egressPool"`        // addresses and networks of this host that egress IPs get
	EgressLink   string          `json:"egressInterface"`   // network interface that they belong to
	Images       []string        `json:"images"`            // made before the first request
	Log          string          `json:"log"`               // debug, info, warn or error
	Drives       string          `json:"drives"`            // URL of the bucket of drives: <endpoint>/<bucket>; empty: there are no drives
	DrivesKeys   string          `json:"drivesCredentials"` // file with its credentials
	DrivesRegion string          `json:"drivesRegion"`      // of the bucket
	Quotas       string          `json:"quotas"`            // of workspaces without their own: name=limit, with commas
	KeyRequests  int             `json:"keyRequests"`       // a second, of one credential; 0: no limit
	AuditKeep    daemon.Duration `json:"auditKeep"`         // lines of the audit log are kept for this long
	OTLPEndpoint string          `json:"otlpEndpoint"`      // URL of a collector of OpenTelemetry that gets traces; empty: none does

	// What strangers may take.
	MaxConnections  int             `json:"maxConnections"`          // open at a time; 0: as many as descriptors allow, at most 8192
	MaxPerSource    int             `json:"maxConnectionsPerSource"` // of these, from one source; 0: 512, or half of all from a loopback address
	SourceRate      string          `json:"sourceRate"`              // requests per second of one source: see ingress.ParseRate
	SourceFailures  string          `json:"sourceFailureRate"`       // the same, of answers 401
	HeaderTimeout   daemon.Duration `json:"headerTimeout"`           // for a header, and for a new connection to send one
	BodyIdleTimeout daemon.Duration `json:"bodyIdleTimeout"`         // without a byte of a body
	WriteTimeout    daemon.Duration `json:"writeStallTimeout"`       // without a byte taken of an answer
	TrustedProxies  []string        `json:"trustedProxies"`          // networks of proxies whose X-Forwarded-For counts

	// PrivateRegistries lets images come from registries on private addresses.
	PrivateRegistries bool  `json:"privateRegistries"`
	ImageMaxMB        int64 `json:"imageMaxMb"` // what the files of an image of a registry may take
	// ImageKeep is for how long an image stays that nothing needs; 0: for ever.
	ImageKeep daemon.Duration `json:"imageKeep"`
	// DiskReserveMB stays free of the disk; -1: a part of it, see space.Auto.
	DiskReserveMB int64 `json:"diskReserveMb"`
	// VolumeOvercommit is how many bytes volumes may promise for each that is free.
	VolumeOvercommit float64 `json:"volumeOvercommit"`
}

// defaults works on any host.
func defaults() config {
	return config{
		Data: "/var/lib/doze", Driver: host.DriverDefault, Listen: "127.0.0.1:7080", Workspace: "main", Region: "local",
		PauseAfter: daemon.Duration{Duration: 15 * time.Second},
		SaveAfter:  daemon.Duration{Duration: 5 * time.Second},
		SwapAfter:  daemon.Duration{Duration: time.Minute},
		DiskAfter:  daemon.Duration{Duration: 5 * time.Minute},
		OnCrash:    crashResume,
		AuditKeep:  daemon.Duration{Duration: 90 * 24 * time.Hour},

		HeaderTimeout:   daemon.Duration{Duration: ingress.DefaultHeader},
		BodyIdleTimeout: daemon.Duration{Duration: ingress.DefaultBodyIdle},
		WriteTimeout:    daemon.Duration{Duration: ingress.DefaultWriteStall},

		Swap: swap.Auto, ACMEURL: certificate.LetsEncrypt,
		DrivesRegion: "us-east-1", KeyRequests: 2000, ReserveMB: 512, Overcommit: memoryOvercommitDefault, Ready: host.ReadyAuto, Spares: 2, SparesMax: 16, Egress: host.EgressClosed, Images: []string{doze.ImageDefault}, Log: "info",
		ImageMaxMB: disk.BytesDefault >> 20, ImageKeep: daemon.Duration{Duration: 7 * 24 * time.Hour}, DiskReserveMB: space.Auto, VolumeOvercommit: 1,
	}
}

const (
	// memoryOvercommitDefault: a sandbox that works takes a quarter of its size or less,
	// and one that idles a fiftieth. Each is guaranteed its size divided by this:
	// below that it is never ended for the sake of others.
	memoryOvercommitDefault = 4
	// memoryOvercommitMax is beyond every use: the smallest process of a sandbox takes
	// more than a hundredth of the default size.
	memoryOvercommitMax = 100
	// sandboxMBMin is what one sandbox of the smallest size takes with its engine.
	sandboxMBMin = int64(doze.MemoryMin) + machine.EngineMemory>>20
)

// What becomes of a sandbox whose processes end by themselves, or with the host.
const (
	crashResume = "resume" // it goes on from its last checkpoint, which stays on disk
	crashFail   = "fail"   // it is failed, unless it slept in a checkpoint
)

// checkpointsApart is how often checkpoints may be renewed: far above what most take
// to be written.
const checkpointsApart = 5 * time.Second

// overcommitMax is far above what any disk survives whose volumes are used.
const overcommitMax = 100

// bind makes flags of the settings that people change.
func (c *config) bind(flags *flag.FlagSet) {
	flags.StringVar(&c.Data, "data", c.Data, "`directory` of everything that must survive")
	flags.StringVar(&c.Database, "database", c.Database, "`URL` of the PostgreSQL database for the records, such as postgres://doze@db.example.com/doze, without a password: that belongs into --database-file, DOZED_DATABASE or ~/.pgpass (default: SQLite, in the data directory)")
	flags.StringVar(&c.DatabaseFile, "database-file", c.DatabaseFile, "`file` with that URL, password included")
	flags.StringVar(&c.Run, "run", c.Run, "`directory` of run state (default: below /run/doze, one for each data directory)")
	flags.StringVar(&c.ImagesDir, "images-dir", c.ImagesDir, "`directory` of images (default: in the data directory)")
	flags.StringVar(&c.Cgroup, "cgroup", c.Cgroup, "`name` of the parent of all cgroups (default: one for each data directory)")
	flags.StringVar(&c.Driver, "driver", c.Driver, "`"+strings.Join(host.Drivers(), "|")+"`: what sandboxes run in; one that was made by a driver stays with it")
	flags.StringVar(&c.Listen, "listen", c.Listen, "`address` of the API and of the edge")
	flags.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "PEM `file` of a certificate for the public names; it is read again when it changes")
	flags.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "PEM `file` of its key")
	flags.BoolVar(&c.ACME, "acme", c.ACME, "get certificates by ACME, and agree to the terms of the authority: for names of sandboxes, previews and verified custom domains that --tls-cert does not cover; port 443 of these names must lead to --listen")
	flags.StringVar(&c.ACMEURL, "acme-directory", c.ACMEURL, "`URL` of the authority's directory")
	flags.StringVar(&c.ACMERoots, "acme-ca", c.ACMERoots, "PEM `file` of the certificate authorities to believe that it is the authority (default: those of this host)")
	flags.StringVar(&c.ACMEEmail, "acme-email", c.ACMEEmail, "`address` that the authority writes to when something is wrong")
	flags.StringVar(&c.ListenHTTP, "http-listen", c.ListenHTTP, "`address` on the same host for plain HTTP next to TLS, such as :80: answers the authority, and sends browsers on to https (default: none)")
	flags.StringVar(&c.PublicURL, "public-url", c.PublicURL, "`URL` by which the world reaches it (default: http://<listen>, or https with --tls-cert or --acme)")
	flags.StringVar(&c.PreviewListen, "preview-listen", c.PreviewListen, "`address` of previews by path, which are there without --domain: pages of sandboxes may not have the origin of the API (default: the port after that of --listen)")
	flags.StringVar(&c.PreviewURL, "preview-url", c.PreviewURL, "`URL` by which the world reaches --preview-listen (default: the host of --public-url, with that port)")
	flags.StringVar(&c.Workspace, "workspace", c.Workspace, "`name` of the workspace that the first start creates")
	flags.StringVar(&c.Region, "region", c.Region, "`name` of the region")
	flags.StringVar(&c.Resolver, "resolver", c.Resolver, "`host:port` of the DNS server to ask about custom domains, and about names that sandboxes reach through the proxy (default: those of this host)")
	flags.StringVar(&c.Domain, "domain", c.Domain, "platform `domain`: sandboxes are found at sbx-<sandbox>-<workspace>.<region>.<domain>")
	flags.Var(&c.PauseAfter, "pause-after", "pause a sandbox that was unused for this `time`, such as 15s")
	flags.Var(&c.SaveAfter, "save-after", "write the checkpoint of one that was paused for this `time`; 0: at once")
	flags.Var(&c.Checkpoint, "checkpoint-every", "renew the last checkpoint of a sandbox in use that is older than this `time`, such as 5m, so that a crash loses no more: a sandbox without requests for a second falls asleep for it; one that is in use all the time, or that a process keeps awake, is left alone, and the metric doze_checkpoint_age_seconds tells; 0: never")
	flags.StringVar(&c.OnCrash, "on-crash", c.OnCrash, "`resume|fail`: when the host or a sandbox's own processes crash, the sandbox goes on from its last checkpoint, however old, which takes disk while it is awake; or it fails")
	flags.Var(&c.SwapAfter, "swap-after", "move the memory of one that was paused for this `time` to swap, if there is some")
	flags.Var(&c.DiskAfter, "disk-after", "give back the memory of one that was paused for this `time`")
	flags.StringVar(&c.Swap, "swap", c.Swap, "`auto|off|host|zram|encrypted|plain`: where the memory of sandboxes that sleep is moved: the first of the next three that this host can do; nowhere; the host's own swap; compressed memory, which never reaches a disk; an encrypted file in the data directory; or a file there that everyone with access to the disk can read. The last three take a size, such as zram:1G, which is memory that sandboxes do not get, or encrypted:8G")
	flags.Int64Var(&c.BudgetMB, "memory-budget-mb", c.BudgetMB, "move sleeping sandboxes to swap or to disk early when sandboxes take more memory than this many `MB`; 0: no limit but --reserve-mb")
	flags.Int64Var(&c.ReserveMB, "reserve-mb", c.ReserveMB, "keep this many `MB` of memory for the host, and move sleeping sandboxes to disk early when less is free")
	flags.Int64Var(&c.SandboxMB, "sandbox-memory-mb", c.SandboxMB, "let all sandboxes together take this many `MB` of memory (default: that of the host without --reserve-mb)")
	flags.Float64Var(&c.Overcommit, "memory-overcommit", c.Overcommit, "let sandboxes in memory be promised this `multiple` of what they can take together; what is over it is refused, after those that sleep went to disk; 1 guarantees each all of its memory")
	flags.IntVar(&c.Ready, "ready", c.Ready, "keep a process (11 MB) for this `number` of sandboxes on disk: they wake faster; -1: for as many as 1 % of the memory of all sandboxes holds")
	flags.IntVar(&c.Spares, "spares", c.Spares, "keep this `number` of started machines (about 20 MB each) for the image and the size that was used last: sandboxes are created faster")
	flags.IntVar(&c.SparesMax, "spares-max", c.SparesMax, "keep up to this `number` of them when as many sandboxes were created within a minute; each is promised the memory of a sandbox, and goes when that is needed")
	flags.StringVar(&c.Egress, "egress", c.Egress, "`closed|open|direct`: sandboxes reach nothing; or public addresses by TCP, as far as their network rules allow, through the proxy; or so, but without it where there are no rules: then UDP passes as well, names are asked of public servers, and what passes is not written to the log")
	flags.Func("egress-pool", "comma separated `addresses` of this host, or networks such as 203.0.113.0/28, that egress IPs get, for sandboxes to leave from (default: there are none)", listed(&c.EgressPool))
	flags.StringVar(&c.EgressLink, "egress-interface", c.EgressLink, "`name` of the network interface that these addresses belong to: those in use are added to it, and for UDP from them the host forwards packets (net.ipv4.ip_forward)")
	flags.IntVar(&c.MaxConnections, "max-connections", c.MaxConnections, "the `number` of connections open at a time; 0: as many as descriptors allow (ulimit -n), at most 8192")
	flags.IntVar(&c.MaxPerSource, "max-connections-per-source", c.MaxPerSource, "the `number` of these from one source, which is an IPv4 address or an IPv6 /64; 0: 512, or half of --max-connections from a loopback address")
	flags.StringVar(&c.SourceRate, "source-rate", c.SourceRate, "`rate` of requests from one source: 100 per second, 100:500 with a burst of 500, or off (default: 1000:5000, and 20 times that from a loopback address)")
	flags.StringVar(&c.SourceFailures, "source-failure-rate", c.SourceFailures, "`rate` of requests with a wrong credential, or without one, from one source (default: 10:100, and 20 times that from a loopback address)")
	flags.Var(&c.HeaderTimeout, "header-timeout", "close a connection whose header takes longer than this `time`")
	flags.Var(&c.BodyIdleTimeout, "body-idle-timeout", "end a request whose body pauses for longer than this `time`")
	flags.Var(&c.WriteTimeout, "write-stall-timeout", "close a connection whose client takes nothing of an answer for this `time`")
	flags.Func("trusted-proxies", "comma separated `networks` of the proxies in front, such as 10.0.0.0/8: the address of a client is what they say in X-Forwarded-For (default: there are none)", listed(&c.TrustedProxies))
	flags.BoolVar(&c.PrivateRegistries, "private-registries", c.PrivateRegistries, "pull images from registries on private addresses too")
	flags.Int64Var(&c.ImageMaxMB, "image-max-mb", c.ImageMaxMB, "refuse images of registries whose files take more than this many `MB`; while one is made, it takes twice that of the disk")
	flags.Var(&c.ImageKeep, "image-keep", "remove an image of a registry that no sandbox, snapshot or image of a workspace has needed for this `time`; 0: never")
	flags.Int64Var(&c.DiskReserveMB, "disk-reserve-mb", c.DiskReserveMB, "keep this many `MB` of the disk free: images, volumes, snapshots and archives that would take them are refused, and checkpoints leave a quarter of them; -1: 2 % of the disk, at least 1024 and at most 20480")
	flags.Float64Var(&c.VolumeOvercommit, "volume-overcommit", c.VolumeOvercommit, "promise this `factor` of the free disk to volumes: with 1 each volume can be filled, with more some may find the disk full")
	flags.StringVar(&c.Drives, "drives", c.Drives, "`URL` of the S3 bucket that drives are in, such as https://s3.example.com/bucket (default: there are no drives)")
	flags.StringVar(&c.DrivesKeys, "drives-credentials", c.DrivesKeys, "`file` with the credentials of that bucket, in the form of ~/.aws/credentials: its profile default; it never reaches a sandbox")
	flags.StringVar(&c.DrivesRegion, "drives-region", c.DrivesRegion, "`name` of the region that the bucket is in, as S3 knows it")
	flags.StringVar(&c.Quotas, "quotas", c.Quotas, "comma separated `limits` of each workspace that has none of its own, such as sandboxes=100,diskMb=100000 (default: those that doze quota ls shows)")
	flags.IntVar(&c.KeyRequests, "key-requests", c.KeyRequests, "the `number` of requests that one credential may send in a second; twice as many may come at once; 0: any number")
	flags.Var(&c.AuditKeep, "audit-keep", "keep lines of the audit log for this `time`, such as 2160h")
	flags.StringVar(&c.OTLPEndpoint, "otlp-endpoint", c.OTLPEndpoint, "`URL` of an OpenTelemetry collector that gets a trace of every wake and create by OTLP over HTTP, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_HEADERS has its credentials (default: traces stay here)")
	flags.StringVar(&c.Log, "log", c.Log, "`level`: debug, info, warn or error")
	flags.Func("images", "comma separated `names` of the images to make before the first request (default: "+strings.Join(c.Images, ",")+")", listed(&c.Images))
}

// listed reads a comma separated list.
func listed(to *[]string) func(string) error {
	return func(s string) error {
		*to = nil
		for name := range strings.SplitSeq(s, ",") {
			if name = strings.TrimSpace(name); name != "" {
				*to = append(*to, name)
			}
		}
		return nil
	}
}

// load reads file, then the environment, then flags; the last one wins. Extra
// adds the flags that only this command has.
func load(name string, args []string, extra ...func(*flag.FlagSet)) (config, []string, error) {
	c := defaults()
	// The file must be known before the flags are read over it.
	var file string
	first := quiet(name)
	ignored := defaults()
	ignored.bind(first)
	first.StringVar(&file, "config", "", "JSON `file` with settings (dozed config print shows all)")
	for _, add := range extra {
		add(first)
	}
	switch err := first.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		help(os.Stdout, name, first)
		return c, nil, err
	case err != nil:
		return c, nil, fmt.Errorf("%w; see dozed %s --help", err, name)
	case store.HasPassword(ignored.Database):
		return c, nil, errors.New("every user of the host sees the password in --database: put the URL into a file for --database-file, or into DOZED_DATABASE")
	}
	if err := daemon.ReadEnvironment("DOZED", first); err != nil {
		return c, nil, err
	}
	if file != "" {
		if err := daemon.ReadConfig(file, &c); err != nil {
			return c, nil, err
		}
	}
	flags := quiet(name)
	c.bind(flags)
	flags.String("config", "", "")
	for _, add := range extra {
		add(flags)
	}
	if err := errors.Join(flags.Parse(args), daemon.ReadEnvironment("DOZED", flags)); err != nil {
		return c, nil, err
	}
	if err := c.readDatabase(); err != nil {
		return c, nil, err
	}
	return c.resolve(), flags.Args(), nil
}

// loadFor is load for a command that does several things: the first argument
// says which. Help is there for each, and for the command without one.
func loadFor(name string, args []string, things ...string) (c config, do string, rest []string, err error) {
	if len(args) > 0 && slices.Contains(things, args[0]) {
		c, rest, err = load(name+" "+args[0], args[1:])
		return c, args[0], rest, err
	}
	if _, _, err := load(name, args); errors.Is(err, flag.ErrHelp) {
		return c, "", nil, err
	}
	return c, "", nil, fmt.Errorf("dozed %s does one of: %s; see dozed %s --help", name, strings.Join(things, ", "), name)
}

// quiet returns flags whose mistakes are printed once, by main.
func quiet(name string) *flag.FlagSet {
	flags := flag.NewFlagSet("dozed "+name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

// resolve fills in what depends on other settings.
func (c config) resolve() config {
	absolute(&c.Data)
	// One for each data directory of the host.
	instance := shortHash(c.Data)
	if c.Run == "" {
		c.Run = filepath.Join("/run/doze", instance)
	}
	if c.Cgroup == "" {
		c.Cgroup = "doze-" + instance
	}
	if c.ImagesDir == "" {
		c.ImagesDir = filepath.Join(c.Data, "images")
	}
	absolute(&c.Run)
	absolute(&c.ImagesDir)
	if c.PublicURL == "" {
		scheme := "http://"
		if c.secure() {
			scheme = "https://"
		}
		c.PublicURL = scheme + reachable(c.Listen)
	}
	c.resolvePreviews()
	return c
}

// secure reports whether the listener speaks TLS.
func (c config) secure() bool { return c.TLSCert != "" || c.ACME }

// absolute makes a path hold in every directory: other processes get it too.
func absolute(path *string) {
	if abs, err := filepath.Abs(*path); err == nil {
		*path = abs
	}
}

// reachable turns an address to listen on into one to connect to.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

var (
	domainForm = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	cgroupForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
)

// validate reports every mistake at once.
func (c config) validate() error {
	var p doze.Problems
	doze.CheckName(&p, "workspace", c.Workspace)
	doze.CheckName(&p, "region", c.Region)
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		p.Add("listen", "must be host:port: %v", err)
	}
	if c.Resolver != "" {
		if _, _, err := net.SplitHostPort(c.Resolver); err != nil {
			p.Add("resolver", "must be host:port: %v", err)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		p.Add("tlsCert", "and tlsKey go together")
	}
	if !slices.Contains(host.Drivers(), c.Driver) {
		p.Add("driver", "must be %s", strings.Join(host.Drivers(), " or "))
	}
	c.checkPreviews(&p)
	c.checkACME(&p)
	c.checkDatabase(&p)
	c.limits(&p)
	for name, d := range map[string]daemon.Duration{"saveAfter": c.SaveAfter, "swapAfter": c.SwapAfter, "imageKeep": c.ImageKeep} {
		if d.Duration < 0 {
			p.Add(name, "must not be negative")
		}
	}
	for name, d := range map[string]daemon.Duration{"pauseAfter": c.PauseAfter, "diskAfter": c.DiskAfter} {
		if d.Duration <= 0 {
			p.Add(name, "must be positive")
		}
	}
	if c.Domain != "" && !domainForm.MatchString(c.Domain) {
		p.Add("domain", "must be a domain name such as sandboxes.example.com")
	}
	if !cgroupForm.MatchString(c.Cgroup) {
		p.Add("cgroup", "must be one name of letters, digits, dots, dashes and underscores")
	}
	if (c.Drives == "") != (c.DrivesKeys == "") {
		p.Add("drives", "and drivesCredentials go together")
	}
	if _, _, err := drive.Parse(c.Drives); c.Drives != "" && err != nil {
		p.Add("drives", "are wrong: %v", err)
	}
	if every := c.Checkpoint.Duration; every != 0 && every < checkpointsApart {
		p.Add("checkpointEvery", "must be at least %v, or 0", checkpointsApart)
	} else if every != 0 && c.OnCrash != crashResume {
		p.Add("checkpointEvery", "needs onCrash %s: without it nobody goes back to a checkpoint", crashResume)
	}
	if c.OnCrash != crashResume && c.OnCrash != crashFail {
		p.Add("onCrash", "must be %s or %s", crashResume, crashFail)
	}
	if c.Egress != host.EgressClosed && c.Egress != host.EgressOpen && c.Egress != host.EgressDirect {
		p.Add("egress", "must be %s, %s or %s", host.EgressClosed, host.EgressOpen, host.EgressDirect)
	}
	if _, err := doze.ParseAddressPool(c.EgressPool); err != nil {
		p.Add("egressPool", "is wrong: %v", err)
	}
	if (len(c.EgressPool) == 0) != (c.EgressLink == "") {
		p.Add("egressPool", "and egressInterface go together")
	}
	limits, err := doze.ParseLimits(c.Quotas)
	if err != nil {
		p.Add("quotas", "are wrong: %v", err)
	}
	if _, ok := limits[doze.QuotaEgress]; ok && c.Egress == host.EgressDirect {
		p.Add("quotas", "has %s, which cannot hold with egress %s: choose %s", doze.QuotaEgress, host.EgressDirect, host.EgressOpen)
	}
	if c.OTLPEndpoint != "" {
		if err := otlp.Check(c.OTLPEndpoint); err != nil {
			p.Add("otlpEndpoint", "%v", err)
		}
	}
	if c.KeyRequests < 0 {
		p.Add("keyRequests", "must not be negative")
	}
	if c.Ready < host.ReadyAuto {
		p.Add("ready", "must not be negative, but for %d", host.ReadyAuto)
	}
	if c.Spares < 0 {
		p.Add("spares", "must not be negative")
	}
	if c.SparesMax < 0 {
		p.Add("sparesMax", "must not be negative; 0 has the number stay as it is")
	}
	if !(c.Overcommit >= 1 && c.Overcommit <= memoryOvercommitMax) { // also false for what is no number
		p.Add("memoryOvercommit", "must be 1 to %d", memoryOvercommitMax)
	}
	if c.SandboxMB != 0 && c.SandboxMB < sandboxMBMin {
		p.Add("sandboxMemoryMb", "must be at least %d, which is what one small sandbox takes, or 0", sandboxMBMin)
	}
	for name, mb := range map[string]int64{"reserveMb": c.ReserveMB, "memoryBudgetMb": c.BudgetMB} {
		if mb < 0 {
			p.Add(name, "must not be negative")
		}
	}
	if c.ImageMaxMB <= 0 {
		p.Add("imageMaxMb", "must be positive")
	}
	if c.DiskReserveMB < space.Auto {
		p.Add("diskReserveMb", "must be -1 or more")
	}
	if c.VolumeOvercommit < 1 || c.VolumeOvercommit > overcommitMax {
		p.Add("volumeOvercommit", "must be 1 to %d", overcommitMax)
	}
	if _, err := swap.Parse(c.Swap); err != nil {
		p.Add("swap", "%v", err)
	}
	if _, err := logLevel(c.Log); err != nil {
		p.Add("log", "must be debug, info, warn or error")
	}
	return p.Err()
}

// checkACME adds what is wrong with the settings around certificates.
func (c config) checkACME(p *doze.Problems) {
	host, _, _ := net.SplitHostPort(c.Listen)
	switch other, _, err := net.SplitHostPort(c.ListenHTTP); {
	case c.ListenHTTP == "":
	case err != nil:
		p.Add("httpListen", "must be host:port: %v", err)
	case !c.secure():
		p.Add("httpListen", "is for plain HTTP next to TLS: it needs tlsCert or acme")
	case other != host:
		p.Add("httpListen", "must have the host of listen")
	}
	if !c.ACME {
		return
	}
	if u, err := url.Parse(c.ACMEURL); err != nil || u.Scheme != "https" || u.Host == "" {
		p.Add("acmeDirectory", "must be a URL that begins with https://")
	}
	if _, err := mail.ParseAddress(c.ACMEEmail); c.ACMEEmail != "" && err != nil {
		p.Add("acmeEmail", "must be an address such as ops@example.com")
	}
	public, err := url.Parse(c.PublicURL)
	if err != nil {
		return // it is wrong for a reason of its own
	}
	if _, err := netip.ParseAddr(public.Hostname()); c.TLSCert == "" && (err == nil || public.Hostname() == "localhost") {
		p.Add("publicUrl", "is %s: no authority gives certificates for that; use the name that the world knows, or tlsCert", c.PublicURL)
	}
}

// configure checks or prints the configuration.
func configure(_ context.Context, args []string) error {
	c, do, _, err := loadFor("config", args, "check", "print")
	if err != nil {
		return err
	}
	if do == "print" {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(c.shown()); err != nil {
			return err
		}
	}
	if err := c.validate(); err != nil {
		return err
	}
	if do == "check" {
		fmt.Println("the configuration is good")
	}
	return nil
}
