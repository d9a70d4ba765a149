package settings

import (
	"flag"
	"strings"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/host"
)

// A reader is a set of those who read a setting.
type reader uint16

const (
	control reader = 1 << iota
	node
	edge
	apart // a role reads it only in a process of its own
	makesCertificates
	destroys
	examines
	makesImages
	saves
	migrates

	everyRole = control | node | edge
)

// readers are the commands that read some of the settings.
var readers = map[string]reader{
	"all": everyRole, "control": control, "node": node, "edge": edge,
	"certificates": makesCertificates, "destroy": destroys, "doctor": examines, "image": makesImages,
	"backup": saves, "restore": saves, "migrate": migrates,
}

// reads reports whether a command reads a setting. One that is in no table reads all.
func reads(command string, r row) bool {
	by, ok := readers[command]
	return !ok || r.by&by != 0 && (command != "all" || r.by&apart == 0)
}

// Own returns those of the flags of a command that the command reads, for its help. One
// configuration serves all commands, so that each of them accepts all flags.
func Own(flags *flag.FlagSet) *flag.FlagSet {
	words := strings.Fields(flags.Name()) // dozed, and its command
	others := map[string]bool{}
	for _, r := range new(Settings).rows() {
		others[r.flag] = len(words) > 1 && !reads(words[1], r)
	}
	own := flag.NewFlagSet(flags.Name(), flag.ContinueOnError)
	flags.VisitAll(func(f *flag.Flag) {
		if !others[f.Name] {
			own.Var(f.Value, f.Name, f.Usage)
			own.Lookup(f.Name).DefValue = f.DefValue
		}
	})
	return own
}

// A row is one setting as people give it.
type row struct {
	field any    // a pointer to the field of [Settings]
	flag  string // DOZED_ and this in capitals is the environment variable
	by    reader // who reads it
	text  string // what it does; the name of its value is in backquotes
}

// rows is the table of settings. The name of a field in a file is its JSON name.
func (s *Settings) rows() []row {
	return []row{
		{&s.Data, "data", everyRole | makesCertificates | destroys | examines | makesImages | saves | migrates, "`directory` for everything that must survive a restart"},
		{&s.Database, "database", control | saves | migrates, "`URL` of a PostgreSQL database for the records, such as postgres://doze@db.example.com/doze (default: SQLite in the data directory). Do not put a password here: use --database-file, DOZED_DATABASE or ~/.pgpass"},
		{&s.DatabaseFile, "database-file", control | saves | migrates, "`file` with the database URL, including its password"},
		{&s.Run, "run", everyRole | destroys | saves, "`directory` for run state (default: below /run/doze, one for each data directory)"},
		{&s.ImagesDir, "images-dir", node | destroys | makesImages | saves, "`directory` for images (default: in the data directory)"},
		{&s.Cgroup, "cgroup", node | edge | destroys, "`name` of the parent cgroup (default: one for each data directory)"},
		{&s.Driver, "driver", node | examines, "`" + strings.Join(host.Drivers(), "|") + "`: the sandbox driver; existing sandboxes stay with theirs"},
		{&s.Platform, "platform", node | examines, "`" + strings.Join(host.Platforms(host.DriverDefault), "|") + "`: how the system calls of sandboxes are intercepted. KVM needs /dev/kvm, and is refused until it is proved: dozed doctor measures it"},
		{&s.Listen, "listen", everyRole, "`address` of the API and of the edge"},
		{&s.TLSCert, "tls-cert", control | edge, "PEM `file` with the certificate of the public names; dozed reloads it when it changes"},
		{&s.TLSKey, "tls-key", edge, "PEM `file` with its private key"},
		{&s.ACME, "acme", control | edge, "obtain certificates by ACME, and accept the authority's terms. This covers sandboxes, previews and verified custom domains without a --tls-cert. Port 443 of these names must lead to --listen"},
		{&s.ACMEURL, "acme-directory", edge, "`URL` of the ACME directory"},
		{&s.ACMERoots, "acme-ca", edge, "CA bundle `file` used to verify the ACME server (default: that of this host)"},
		{&s.ACMEEmail, "acme-email", edge, "contact `address` for the ACME authority"},
		{&s.ListenHTTP, "http-listen", edge, "`address` on the same host for plain HTTP, such as :80: answers ACME challenges, and redirects browsers to HTTPS (default: none)"},
		{&s.PublicURL, "public-url", control | edge, "public `URL` of the API (default: http://<listen>, or https with --tls-cert or --acme)"},
		{&s.PreviewListen, "preview-listen", control | edge, "`address` of previews by path, for platforms without --domain. They need another origin than the API (default: the port after that of --listen)"},
		{&s.PreviewURL, "preview-url", control | edge, "public `URL` of --preview-listen (default: the host of --public-url, with that port)"},
		{&s.ControlListen, "control-listen", control | apart, "`address` where dozed control serves dozed node and dozed edge, by mutual TLS (see dozed certificates)"},
		{&s.Control, "control", everyRole | apart, "`URL` of dozed control for dozed node and dozed edge (default: https://<control-listen>). Several, separated by commas, are one that is active and others that stand by"},
		{&s.Standby, "standby", control, "wait while another dozed control has the database, and take over when that ends. Needs PostgreSQL"},
		{&s.NodeListen, "node-listen", node | apart, "`address` where dozed node serves dozed control and dozed edge, by mutual TLS"},
		{&s.Node, "node", node | apart, "`URL` of dozed node, which dozed node announces to the others (default: https://<node-listen>)"},
		{&s.FleetKeys, "fleet-keys", everyRole | apart | makesCertificates | saves, "`directory` with the certificates of the roles. Each role needs its own and ca.crt (default: fleet, in the data directory)"},
		{&s.Join, "join", node | apart, "`token` of doze node token, with which a new node gets its certificate from control. It is needed once. DOZED_JOIN hides it from other users of this host"},
		{&s.Workspace, "workspace", control, "`name` of the initial workspace"},
		{&s.Regions, "regions", control | edge, "comma-separated region `names` of this platform. All of them are this place; the first is the default (default: " + strings.Join(s.Regions, ",") + ")"},
		{&s.Resolver, "resolver", control | node, "`host:port` of the DNS server for custom domains and for names that sandboxes reach through the proxy (default: those of this host)"},
		{&s.Domain, "domain", control | edge, "platform `domain`: the host of a sandbox is sbx-<sandbox>-<workspace>.<region>.<domain>"},
		{&s.PauseAfter, "pause-after", node, "idle `time` after which a sandbox is paused, such as 15s"},
		{&s.IdleCPU, "idle-cpu", node, "do not pause a sandbox whose processes use at least this `share` of a processor while it is idle, such as 0.2; 0: pause it all the same"},
		{&s.BusyMax, "busy-max", node, "pause it in any case this `time` after the last request"},
		{&s.SaveAfter, "save-after", node, "write a sandbox's checkpoint after it has been paused this `time`; 0: at once"},
		{&s.Checkpoint, "checkpoint-every", node, "renew the checkpoint of a sandbox in use after this `time`, such as 5m, so that a crash loses less; 0: never. The sandbox falls asleep in the first second without requests. One that is never idle stands still for a moment: see --checkpoint-pause"},
		{&s.CheckPause, "checkpoint-pause", node, "for at most about this `time`, a sandbox in use stands still for a new checkpoint. The checkpoint of one that changes too much memory for that is not renewed: see the metric doze_checkpoint_age_seconds"},
		{&s.OnCrash, "on-crash", node, "`resume|fail`: what happens to a sandbox when the host or its own processes crash. It resumes from its last checkpoint, whatever its age (this takes disk while it is awake), or it fails"},
		{&s.SwapAfter, "swap-after", node, "move a sandbox's memory to swap after it has been paused this `time`, if there is swap"},
		{&s.DiskAfter, "disk-after", node, "free a sandbox's memory after it has been paused this `time`"},
		{&s.Swap, "swap", node | examines, "`auto|off|host|zram|encrypted|plain`: swap for sleeping sandboxes. host: that of the host. zram: compressed memory. encrypted: an encrypted file in the data directory. plain: a file that everyone with access to the disk can read. auto: the first of host, zram and encrypted that works here. zram, encrypted and plain take a size, such as zram:1G (taken from the memory for sandboxes) or encrypted:8G"},
		{&s.BudgetMB, "memory-budget-mb", node, "move sleeping sandboxes to swap or disk early when sandboxes use more than this many `MB` of memory; 0: only --reserve-mb counts"},
		{&s.ReserveMB, "reserve-mb", node, "leave this many `MB` of memory to the host. With less free memory, sleeping sandboxes move to disk early"},
		{&s.SandboxMB, "sandbox-memory-mb", node, "limit all sandboxes together to this many `MB` of memory (default: the host's memory minus --reserve-mb)"},
		{&s.Overcommit, "memory-overcommit", node, "let awake sandboxes reserve this `multiple` of the memory for sandboxes. Beyond that, sleeping sandboxes move to disk, then requests are rejected. 1 guarantees all memory"},
		{&s.Ready, "ready", node, "hold a process (11 MB) ready for this `number` of sandboxes on disk, for faster wakes; -1: for 1 % of the memory of all sandboxes"},
		{&s.WarmPool, "warm-pool", node, "start this `number` of machines ahead (about 20 MB each), with the image and size used last, for faster creates"},
		{&s.WarmPoolMax, "warm-pool-max", node, "grow the warm pool up to this `number` if that many sandboxes were created within a minute. Each machine reserves the memory of a sandbox, until that is needed"},
		{&s.Egress, "egress", node, "`closed|open|direct`: what sandboxes reach. closed: nothing. open: public addresses by TCP, through the proxy, within their network rules. direct: as open, but sandboxes without rules bypass the proxy, with UDP and public DNS, and without log lines"},
		{&s.EgressAllow, "egress-allow", node, "comma-separated private `networks` that all sandboxes may reach through the proxy, such as 10.1.2.0/24 for a package mirror. Addresses of this host stay closed (default: none)"},
		{&s.UpstreamProxy, "upstream-proxy", everyRole | examines | makesImages, "`URL` of the HTTP proxy through which this host reaches public addresses, such as http://proxy.example.com:3128. dozed and connections of sandboxes use it (default: none). Do not put a password here: use --upstream-proxy-file or DOZED_UPSTREAM_PROXY"},
		{&s.UpstreamFile, "upstream-proxy-file", everyRole | examines | makesImages, "`file` with the URL of the proxy, including its password"},
		{&s.UpstreamExcept, "upstream-no-proxy", everyRole | examines | makesImages, "comma-separated `hosts` and networks to reach without the proxy, as in NO_PROXY. Private addresses never use it (default: none)"},
		{&s.UpstreamNames, "upstream-resolves", everyRole | examines | makesImages, "give the proxy names of hosts instead of their addresses, for a host that cannot resolve public names. The proxy must then refuse private addresses"},
		{&s.EgressPool, "egress-pool", control | node | examines, "comma-separated `addresses` of this host for egress IPs, or networks such as 203.0.113.0/28 (default: none)"},
		{&s.EgressLink, "egress-interface", node | examines, "network interface `name` of --egress-pool. dozed adds the addresses in use to it. For UDP it enables IP forwarding on the host (net.ipv4.ip_forward)"},
		{&s.GuestReferences, "guest-references", node, "resolve {{SECRET:name}} in what sandboxes send to destinations of routing rules, unless a rule sets guestReferences. A sandbox then chooses where in a request a secret goes"},
		{&s.MaskResponses, "mask-responses", node, "mask secrets of routing rules in answers of their destinations, unless a rule sets maskResponses. Answers are then asked for whole and uncompressed"},
		{&s.MaxConnections, "max-connections", edge, "limit open connections to this `number`; 0: as many as file descriptors allow (ulimit -n), at most 8192"},
		{&s.MaxPerSource, "max-connections-per-source", edge, "limit the connections of one source (an IPv4 address or IPv6 /64) to this `number`; 0: 512, or half of --max-connections from loopback"},
		{&s.SourceRate, "source-rate", edge, "rate limit of one source: a `rate` such as 100 per second, 100:500 with a burst of 500, or off (default: 1000:5000, and 20 times that from loopback)"},
		{&s.SourceFailures, "source-failure-rate", edge, "rate limit of one source for requests without a valid credential: a `rate` as in --source-rate (default: 10:100, and 20 times that from loopback)"},
		{&s.HeaderTimeout, "header-timeout", edge, "close a connection whose request header takes longer than this `time`"},
		{&s.BodyIdleTimeout, "body-idle-timeout", edge, "end a request whose body stalls for this `time`"},
		{&s.WriteTimeout, "write-stall-timeout", edge, "close a connection whose client reads nothing for this `time`"},
		{&s.LeaveIdle, "leave-idle", edge | apart, "when dozed edge ends, wait at most this `time` for clients to close connections that they do not use. A request that is sent while one is closed fails. Many clients close them after 90s; 0: wait for none"},
		{&s.TrustedProxies, "trusted-proxies", edge, "comma-separated `networks` of trusted proxies, such as 10.0.0.0/8. dozed takes client addresses from their X-Forwarded-For (default: none)"},
		{&s.PrivateRegistries, "private-registries", node | makesImages, "allow image registries on private addresses"},
		{&s.RegistryMirrors, "registry-mirrors", node | makesImages, "comma-separated `pairs` of a registry and its mirror, such as docker.io=mirror.example.com/docker. Images come from the mirror alone, also those of FROM in builds. It may be on a private address. Pulls with credentials of a workspace use the registry (default: none)"},
		{&s.ImageMaxMB, "image-max-mb", node | makesImages, "reject registry images with more than this many `MB` of files. A pull takes twice that of the disk"},
		{&s.ImageRetention, "image-retention", node, "delete a registry image that no sandbox, snapshot or workspace has used for this `time`; 0: never"},
		{&s.Builds, "builds", node, "run this `number` of image builds at a time. Others wait in a queue"},
		{&s.BuildMemoryMB, "build-memory-mb", node, "`MB` of memory of each builder: a workspace has one, with its build cache. It sleeps between builds (default: 4096, at most half of the memory for sandboxes)"},
		{&s.BuildDiskMB, "build-disk-mb", node, "let the files and the cache of a builder take this many `MB` of its memory (default: three quarters of --build-memory-mb)"},
		{&s.BuildCacheAge, "build-cache-age", node, "delete a builder and its cache after nobody used it for this `time`; 0: never"},
		{&s.BuildTimeout, "build-timeout", node, "end a build that takes longer than this `time`"},
		{&s.DiskReserveMB, "disk-reserve-mb", node | examines, "leave this many `MB` of the disk free. Images, volumes, snapshots and archives beyond that are rejected, and checkpoints leave a quarter of it; -1: 2 % of the disk, at least 1024 and at most 20480"},
		{&s.VolumeOvercommit, "volume-overcommit", node, "let volumes reserve this `factor` of the free disk. With 1, every volume can be filled"},
		{&s.Drives, "drives", control | node, "`URL` of the S3 bucket for drives, such as https://s3.example.com/bucket (default: no drives)"},
		{&s.DrivesKeys, "drives-credentials", control | node, "`file` with the bucket's credentials, in the format of ~/.aws/credentials (profile default). They never reach a sandbox"},
		{&s.DrivesRegion, "drives-region", control | node, "region `name` of the bucket"},
		{&s.Remote, "remote", control | node, "`URL` of the S3 bucket for checkpoints, such as https://s3.example.com/checkpoints. Sandboxes of a node that is lost go on from there on other nodes (default: none)"},
		{&s.RemoteKeys, "remote-credentials", control | node | migrates, "`file` with the bucket's credentials, in the format of ~/.aws/credentials (profile default). The bucket has encrypted chunks alone"},
		{&s.RemoteRegion, "remote-region", control | node | migrates, "region `name` of the bucket"},
		{&s.RemoteAfter, "remote-after", node, "copy a sandbox to the bucket after it has slept for this `time`"},
		{&s.RemoteEvery, "remote-every", node, "copy a sandbox that does not sleep again after this `time`. It stands still for a moment; 0: only sandboxes that sleep are copied"},
		{&s.RemoteBandwidth, "remote-bandwidth-mb", node, "send at most this many `MB` in a second to the bucket; 0: no limit"},
		{&s.Lease, "lease", control, "a node that control has not heard of for this `time` is lost: its sandboxes stand still there, and go on elsewhere"},
		{&s.LeaseGrace, "lease-grace", control, "renew leases without the database for at most this `time`. After a crash of control, no node counts as lost for as long"},
		{&s.NodeCertificate, "node-certificate", control, "certificates of nodes are good for this `time`. A node gets the next one by itself when a third of it is left"},
		{&s.Quotas, "quotas", control | edge, "comma-separated default `limits` of a workspace, such as sandboxes=100,diskMb=100000 (default: see doze quota ls)"},
		{&s.KeyRequests, "key-requests", control | edge, "rate limit of one credential: this `number` of requests per second, with a burst of twice that; 0: none"},
		{&s.LogsRetention, "logs-retention", node, "store what processes of sandboxes write for this `time`, also after a sandbox ended; 0: store none"},
		{&s.LogsWorkspaceMB, "logs-workspace-mb", node, "let the stored logs of a workspace take this many `MB` of the disk. The oldest lines go first"},
		{&s.AuditRetention, "audit-retention", control, "delete lines of the audit log after this `time`, such as 2160h"},
		{&s.PerSandbox, "metrics-per-sandbox", node, "show metrics of each sandbox in /metrics, with its name, for at most this `number` of sandboxes. The others are added up as other. 0: none"},
		{&s.OTLPEndpoint, "otlp-endpoint", everyRole, "`URL` of an OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318. It gets a trace of each wake and create. OTEL_EXPORTER_OTLP_HEADERS has its credentials (default: none)"},
		{&s.Log, "log", everyRole, "log `level`: debug, info, warn or error"},
		{&s.Images, "images", node | makesImages, "comma-separated `names` of images to prepare before the first request (default: " + strings.Join(s.Images, ",") + ")"},
	}
}

// Bind makes a flag of every setting.
func (s *Settings) Bind(flags *flag.FlagSet) {
	for _, r := range s.rows() {
		switch to := r.field.(type) {
		case *string:
			flags.StringVar(to, r.flag, *to, r.text)
		case *bool:
			flags.BoolVar(to, r.flag, *to, r.text)
		case *int:
			flags.IntVar(to, r.flag, *to, r.text)
		case *int64:
			flags.Int64Var(to, r.flag, *to, r.text)
		case *float64:
			flags.Float64Var(to, r.flag, *to, r.text)
		case *daemon.Duration:
			flags.Var(to, r.flag, r.text)
		case *[]string:
			flags.Func(r.flag, r.text, listed(to))
		}
	}
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
