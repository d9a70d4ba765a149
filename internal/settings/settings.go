// Package settings has every setting of dozed: its name as a flag, in the
// environment and in a file, its default, its help text and its check. It makes
// of them the options of the packages that obey them.
//
// What must always hold: the file of an older dozed starts a newer one.
package settings

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/certificate"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/front"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/ingress"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/swap"
)

// Settings is every setting of dozed. A new field has a useful zero value or a
// default: an old file still starts a new binary.
type Settings struct {
	Data     string `json:"data"`     // directory of everything that must survive
	Database string `json:"database"` // postgres://…, of the records; empty is a file in Data
	// DatabaseFile holds Database, which may have a password.
	DatabaseFile string `json:"databaseFile"`
	Run          string `json:"run"`           // directory of run state; a tmpfs
	ImagesDir    string `json:"imagesDir"`     // directory of images; several data directories may share it
	Cgroup       string `json:"cgroup"`        // parent of all cgroups
	Driver       string `json:"driver"`        // what sandboxes run in: one of host.Drivers
	Platform     string `json:"platform"`      // how system calls are intercepted: one of host.Platforms
	Listen       string `json:"listen"`        // address of the API and of the edge
	TLSCert      string `json:"tlsCert"`       // PEM file of the certificate; with it the listener speaks TLS
	TLSKey       string `json:"tlsKey"`        // PEM file of its key
	ACME         bool   `json:"acme"`          // certificates are got from an authority for what has none
	ACMEURL      string `json:"acmeDirectory"` // URL of its directory
	ACMERoots    string `json:"acmeCa"`        // PEM file of the certificates that vouch for the authority; empty are those of the host
	ACMEEmail    string `json:"acmeEmail"`     // where it writes when something is wrong
	ListenHTTP   string `json:"httpListen"`    // plain HTTP: challenges, and the way to https; empty is none
	PublicURL    string `json:"publicUrl"`     // how the world reaches it; by default http://<listen>, or https

	// PreviewListen is the address of previews by path, which a platform without
	// a domain has: another origin than the API. By default it is the next port.
	PreviewListen string `json:"previewListen"`
	PreviewURL    string `json:"previewUrl"` // how the world reaches that

	// Where the roles of a platform find each other, if each is a process of its own.
	ControlListen string `json:"controlListen"` // address of control for the other two
	Control       string `json:"control"`       // URL by which they reach it; by default https://<controlListen>
	NodeListen    string `json:"nodeListen"`    // address of the node for the other two
	Node          string `json:"node"`          // URL by which they reach it; by default https://<nodeListen>
	FleetKeys     string `json:"fleetKeys"`     // directory of the certificates of the roles; by default fleet in Data
	Join          string `json:"join"`          // token with which a node without a certificate joins

	Workspace      string          `json:"workspace"`         // name of the first workspace
	Regions        []string        `json:"regions"`           // names of this place; the first is the default
	Resolver       string          `json:"resolver"`          // server of the DNS that knows about custom domains, and what sandboxes with rules may reach; empty is that of the host
	Domain         string          `json:"domain"`            // platform domain of sandboxes' host names; may be empty
	PauseAfter     daemon.Duration `json:"pauseAfter"`        // unused for this long, a sandbox is paused
	IdleCPU        float64         `json:"idleCpu"`           // with this share of a processor in use, a sandbox without requests is not paused; 0: none counts
	BusyMax        daemon.Duration `json:"busyMax"`           // for how long after the last request it stays awake so
	SaveAfter      daemon.Duration `json:"saveAfter"`         // paused for this long, it is safe on disk as well; 0: at once
	Checkpoint     daemon.Duration `json:"checkpointEvery"`   // older than this, the checkpoint of a sandbox in use is renewed; 0: never
	CheckPause     daemon.Duration `json:"checkpointPause"`   // for how long it stands still for that where there is no gap
	OnCrash        string          `json:"onCrash"`           // resume or fail: what a sandbox does when its processes end by themselves
	SwapAfter      daemon.Duration `json:"swapAfter"`         // paused for this long, its memory is moved to swap, if there is some
	DiskAfter      daemon.Duration `json:"diskAfter"`         // paused for this long, its memory is given back
	Swap           string          `json:"swap"`              // auto, off, host, zram, encrypted or plain: see swap.Parse
	ReserveMB      int64           `json:"reserveMb"`         // with less free memory, sleeping sandboxes move to disk early
	BudgetMB       int64           `json:"memoryBudgetMb"`    // with more memory than this in sandboxes, those that sleep move down early; 0: no limit
	SandboxMB      int64           `json:"sandboxMemoryMb"`   // what all sandboxes can take together; 0: the host's memory but for ReserveMB
	Overcommit     float64         `json:"memoryOvercommit"`  // how many times that may be reserved for sandboxes in memory
	Ready          int             `json:"ready"`             // how many sandboxes on disk keep a process (11 MB) for a faster wake; -1: 1% of the memory
	WarmPool       int             `json:"warmPool"`          // how many machines (about 20 MB) are started ahead of their sandboxes
	WarmPoolMax    int             `json:"warmPoolMax"`       // the same, when as many sandboxes were created within a minute
	Egress         string          `json:"egress"`            // closed, open or direct: what sandboxes may reach, and how
	EgressAllow    []string        `json:"egressAllow"`       // networks that are not public, and that all sandboxes may reach by the proxy
	UpstreamProxy  string          `json:"upstreamProxy"`     // URL of the HTTP proxy through which this host reaches public addresses; empty: there is none
	UpstreamFile   string          `json:"upstreamProxyFile"` // holds UpstreamProxy, which may have a password
	UpstreamExcept []string        `json:"upstreamNoProxy"`   // hosts and networks that are reached without it, as in NO_PROXY
	UpstreamNames  bool            `json:"upstreamResolves"`  // it gets names, and resolves them
	EgressPool     []string        `json:"egressPool"`        // addresses and networks of this host that egress IPs get
	EgressLink     string          `json:"egressInterface"`   // network interface that they belong to
	Images         []string        `json:"images"`            // made before the first request
	Log            string          `json:"log"`               // debug, info, warn or error
	Drives         string          `json:"drives"`            // URL of the bucket of drives: <endpoint>/<bucket>; empty: there are no drives
	DrivesKeys     string          `json:"drivesCredentials"` // file with its credentials
	DrivesRegion   string          `json:"drivesRegion"`      // of the bucket

	Remote          string          `json:"remote"`            // URL of the bucket of checkpoints: <endpoint>/<bucket>; empty: what a node has is on that node alone
	RemoteKeys      string          `json:"remoteCredentials"` // file with its credentials
	RemoteRegion    string          `json:"remoteRegion"`      // of the bucket
	RemoteAfter     daemon.Duration `json:"remoteAfter"`       // sandboxes that sleep for this long are copied to it
	RemoteEvery     daemon.Duration `json:"remoteEvery"`       // those that do not sleep are copied again after this long
	RemoteBandwidth int             `json:"remoteBandwidthMb"` // MB that a node sends to it in a second; 0: as many as it can
	LeaveIdle       daemon.Duration `json:"leaveIdle"`         // how long an edge that ends leaves idle connections to their clients
	Standby         bool            `json:"standby"`           // control waits while another one has the database
	Lease           daemon.Duration `json:"lease"`             // of a node
	LeaseGrace      daemon.Duration `json:"leaseGrace"`        // for how long control may renew leases without its database
	NodeCertificate daemon.Duration `json:"nodeCertificate"`   // how long a certificate is good that control gives a node
	Quotas          string          `json:"quotas"`            // of workspaces without their own: name=limit, with commas
	KeyRequests     int             `json:"keyRequests"`       // a second, of one credential; 0: no limit
	AuditRetention  daemon.Duration `json:"auditRetention"`    // lines of the audit log are kept for this long
	PerSandbox      int             `json:"metricsPerSandbox"` // sandboxes that have metrics of their own; 0: none
	OTLPEndpoint    string          `json:"otlpEndpoint"`      // URL of a collector of OpenTelemetry that gets traces; empty: none does

	// What routing rules do that do not say it.
	GuestReferences bool `json:"guestReferences"` // references that sandboxes write are resolved
	MaskResponses   bool `json:"maskResponses"`   // secrets are masked in answers

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
	PrivateRegistries bool `json:"privateRegistries"`
	// RegistryMirrors are pairs of a registry and what its images are pulled from instead.
	RegistryMirrors []string `json:"registryMirrors"`
	ImageMaxMB      int64    `json:"imageMaxMb"` // what the files of an image of a registry may take
	// ImageRetention is for how long an image stays that nothing needs; 0: for ever.
	ImageRetention daemon.Duration `json:"imageRetention"`
	// What builds of images take.
	Builds        int             `json:"builds"`        // at a time
	BuildMemoryMB int64           `json:"buildMemoryMb"` // of the builder of a workspace; 0: host.BuildMemoryDefault, or half of the memory for sandboxes
	BuildDiskMB   int64           `json:"buildDiskMb"`   // of its files, in that memory; 0: three quarters of it
	BuildCacheAge daemon.Duration `json:"buildCacheAge"` // a builder that nobody uses for this long is deleted; 0: never
	BuildTimeout  daemon.Duration `json:"buildTimeout"`  // of one build
	// LogsRetention is for how long output and events of sandboxes stay, also after these
	// ended; 0: no output is stored.
	LogsRetention daemon.Duration `json:"logsRetention"`
	// LogsWorkspaceMB is what they may take of the disk for each workspace.
	LogsWorkspaceMB int64 `json:"logsWorkspaceMb"`
	// DiskReserveMB stays free of the disk; -1: a part of it, see space.Auto.
	DiskReserveMB int64 `json:"diskReserveMb"`
	// VolumeOvercommit is how many bytes volumes may reserve for each that is free.
	VolumeOvercommit float64 `json:"volumeOvercommit"`
}

// Defaults works on any host.
func Defaults() Settings {
	return Settings{
		Data: "/var/lib/doze", Driver: host.DriverDefault, Platform: host.PlatformDefault, Listen: "127.0.0.1:7080", ControlListen: "127.0.0.1:7083", NodeListen: "127.0.0.1:7084", Workspace: "main", Regions: []string{"local"},
		PauseAfter:     daemon.Duration{Duration: 15 * time.Second},
		IdleCPU:        0.2,
		BusyMax:        daemon.Duration{Duration: time.Hour},
		CheckPause:     daemon.Duration{Duration: 150 * time.Millisecond},
		SaveAfter:      daemon.Duration{Duration: 5 * time.Second},
		SwapAfter:      daemon.Duration{Duration: time.Minute},
		DiskAfter:      daemon.Duration{Duration: 5 * time.Minute},
		OnCrash:        crashResume,
		AuditRetention: daemon.Duration{Duration: 90 * 24 * time.Hour},

		HeaderTimeout:   daemon.Duration{Duration: ingress.DefaultHeader},
		BodyIdleTimeout: daemon.Duration{Duration: ingress.DefaultBodyIdle},
		WriteTimeout:    daemon.Duration{Duration: ingress.DefaultWriteStall},
		LeaveIdle:       daemon.Duration{Duration: front.IdleDefault},

		Swap: swap.Auto, ACMEURL: certificate.LetsEncrypt,
		RemoteRegion: "us-east-1", RemoteAfter: daemon.Duration{Duration: time.Minute}, RemoteEvery: daemon.Duration{Duration: 5 * time.Minute},
		Lease: daemon.Duration{Duration: 30 * time.Second}, LeaseGrace: daemon.Duration{Duration: 30 * time.Second}, NodeCertificate: daemon.Duration{Duration: 365 * 24 * time.Hour},
		DrivesRegion: "us-east-1", KeyRequests: 2000, ReserveMB: 512, Overcommit: memoryOvercommitDefault, Ready: host.ReadyAuto, WarmPool: 2, WarmPoolMax: 16, Egress: host.EgressOpen, MaskResponses: true, Images: []string{doze.ImageDefault}, Log: "info",
		ImageMaxMB: disk.BytesDefault >> 20, ImageRetention: daemon.Duration{Duration: 7 * 24 * time.Hour}, LogsRetention: daemon.Duration{Duration: 7 * 24 * time.Hour}, LogsWorkspaceMB: 512, DiskReserveMB: space.Auto, VolumeOvercommit: 1,
		Builds: 2, BuildCacheAge: daemon.Duration{Duration: 7 * 24 * time.Hour}, BuildTimeout: daemon.Duration{Duration: 15 * time.Minute},
	}
}

// memoryOvercommitDefault fits sandboxes that work in a quarter of their size or
// less, and idle in a fiftieth. Each is guaranteed its size divided by this: below
// that it is never ended for the sake of others.
const memoryOvercommitDefault = 4

// crashResume and crashFail say what becomes of a sandbox whose processes end by
// themselves, or with the host.
const (
	crashResume = "resume" // it goes on from its last checkpoint, which stays on disk
	crashFail   = "fail"   // it is failed, unless it slept in a checkpoint
)

// resolve fills in what depends on other settings.
func (s Settings) resolve() Settings {
	absolute(&s.Data)
	// One for each data directory of the host.
	instance := shortHash(s.Data)
	if s.Run == "" {
		s.Run = filepath.Join("/run/doze", instance)
	}
	if s.Cgroup == "" {
		s.Cgroup = "doze-" + instance
	}
	if s.ImagesDir == "" {
		s.ImagesDir = filepath.Join(s.Data, "images")
	}
	absolute(&s.Run)
	absolute(&s.ImagesDir)
	if s.FleetKeys == "" {
		s.FleetKeys = filepath.Join(s.Data, "fleet")
	}
	absolute(&s.FleetKeys)
	if s.Control == "" {
		s.Control = "https://" + reachable(s.ControlListen)
	}
	if s.Node == "" {
		s.Node = "https://" + reachable(s.NodeListen)
	}
	if s.PublicURL == "" {
		scheme := "http://"
		if s.Secure() {
			scheme = "https://"
		}
		s.PublicURL = scheme + reachable(s.Listen)
	}
	s.resolvePreviews()
	return s
}

// Secure reports whether the listener speaks TLS.
func (s Settings) Secure() bool { return s.TLSCert != "" || s.ACME }

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

// LocalURL is where this host reaches a dozed that listens on an address. The
// certificate of a name is not good for an address.
func (s Settings) LocalURL(listen string) string {
	if s.TLSCert != "" {
		return s.PublicURL
	}
	return "http://" + reachable(listen)
}

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}
