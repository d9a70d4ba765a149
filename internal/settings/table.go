package settings

import (
	"flag"
	"strings"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/host"
)

// A row is one setting as people give it.
type row struct {
	field any    // a pointer to the field of [Settings]
	flag  string // DOZED_ and this in capitals is the environment variable
	text  string // what it does; the name of its value is in backquotes
}

// rows is the table of settings. The name of a field in a file is its JSON name.
func (s *Settings) rows() []row {
	return []row{
		{&s.Data, "data", "`directory` of everything that must survive"},
		{&s.Database, "database", "`URL` of the PostgreSQL database for the records, such as postgres://doze@db.example.com/doze, without a password: that belongs into --database-file, DOZED_DATABASE or ~/.pgpass (default: SQLite, in the data directory)"},
		{&s.DatabaseFile, "database-file", "`file` with that URL, password included"},
		{&s.Run, "run", "`directory` of run state (default: below /run/doze, one for each data directory)"},
		{&s.ImagesDir, "images-dir", "`directory` of images (default: in the data directory)"},
		{&s.Cgroup, "cgroup", "`name` of the parent of all cgroups (default: one for each data directory)"},
		{&s.Driver, "driver", "`" + strings.Join(host.Drivers(), "|") + "`: what sandboxes run in; one that was made by a driver stays with it"},
		{&s.Listen, "listen", "`address` of the API and of the edge"},
		{&s.TLSCert, "tls-cert", "PEM `file` of a certificate for the public names; it is read again when it changes"},
		{&s.TLSKey, "tls-key", "PEM `file` of its key"},
		{&s.ACME, "acme", "get certificates by ACME, and agree to the terms of the authority: for names of sandboxes, previews and verified custom domains that --tls-cert does not cover; port 443 of these names must lead to --listen"},
		{&s.ACMEURL, "acme-directory", "`URL` of the authority's directory"},
		{&s.ACMERoots, "acme-ca", "PEM `file` of the certificate authorities to believe that it is the authority (default: those of this host)"},
		{&s.ACMEEmail, "acme-email", "`address` that the authority writes to when something is wrong"},
		{&s.ListenHTTP, "http-listen", "`address` on the same host for plain HTTP next to TLS, such as :80: answers the authority, and sends browsers on to https (default: none)"},
		{&s.PublicURL, "public-url", "`URL` by which the world reaches it (default: http://<listen>, or https with --tls-cert or --acme)"},
		{&s.PreviewListen, "preview-listen", "`address` of previews by path, which are there without --domain: pages of sandboxes may not have the origin of the API (default: the port after that of --listen)"},
		{&s.PreviewURL, "preview-url", "`URL` by which the world reaches --preview-listen (default: the host of --public-url, with that port)"},
		{&s.ControlListen, "control-listen", "`address` where dozed control serves dozed node and dozed edge, by TLS with certificates of dozed certificates"},
		{&s.Control, "control", "`URL` by which dozed node and dozed edge reach dozed control (default: https://<control-listen>)"},
		{&s.NodeListen, "node-listen", "`address` where dozed node serves dozed control and dozed edge, by TLS as well"},
		{&s.Node, "node", "`URL` by which dozed control and dozed edge reach dozed node, which tells them (default: https://<node-listen>)"},
		{&s.FleetKeys, "fleet-keys", "`directory` with the certificates of the roles, of which each needs its own and ca.crt (default: fleet, in the data directory)"},
		{&s.Workspace, "workspace", "`name` of the workspace that the first start creates"},
		{&s.Region, "region", "`name` of the region"},
		{&s.Resolver, "resolver", "`host:port` of the DNS server to ask about custom domains, and about names that sandboxes reach through the proxy (default: those of this host)"},
		{&s.Domain, "domain", "platform `domain`: sandboxes are found at sbx-<sandbox>-<workspace>.<region>.<domain>"},
		{&s.PauseAfter, "pause-after", "pause a sandbox that was unused for this `time`, such as 15s"},
		{&s.SaveAfter, "save-after", "write the checkpoint of one that was paused for this `time`; 0: at once"},
		{&s.Checkpoint, "checkpoint-every", "renew the last checkpoint of a sandbox in use that is older than this `time`, such as 5m, so that a crash loses no more: a sandbox without requests for a second falls asleep for it; one that is in use all the time, or that a process keeps awake, is left alone, and the metric doze_checkpoint_age_seconds tells; 0: never"},
		{&s.OnCrash, "on-crash", "`resume|fail`: when the host or a sandbox's own processes crash, the sandbox goes on from its last checkpoint, however old, which takes disk while it is awake; or it fails"},
		{&s.SwapAfter, "swap-after", "move the memory of one that was paused for this `time` to swap, if there is some"},
		{&s.DiskAfter, "disk-after", "give back the memory of one that was paused for this `time`"},
		{&s.Swap, "swap", "`auto|off|host|zram|encrypted|plain`: where the memory of sandboxes that sleep is moved: the first of the next three that this host can do; nowhere; the host's own swap; compressed memory, which never reaches a disk; an encrypted file in the data directory; or a file there that everyone with access to the disk can read. The last three take a size, such as zram:1G, which is memory that sandboxes do not get, or encrypted:8G"},
		{&s.BudgetMB, "memory-budget-mb", "move sleeping sandboxes to swap or to disk early when sandboxes take more memory than this many `MB`; 0: no limit but --reserve-mb"},
		{&s.ReserveMB, "reserve-mb", "keep this many `MB` of memory for the host, and move sleeping sandboxes to disk early when less is free"},
		{&s.SandboxMB, "sandbox-memory-mb", "let all sandboxes together take this many `MB` of memory (default: that of the host without --reserve-mb)"},
		{&s.Overcommit, "memory-overcommit", "let sandboxes in memory be promised this `multiple` of what they can take together; what is over it is refused, after those that sleep went to disk; 1 guarantees each all of its memory"},
		{&s.Ready, "ready", "keep a process (11 MB) for this `number` of sandboxes on disk: they wake faster; -1: for as many as 1 % of the memory of all sandboxes holds"},
		{&s.WarmPool, "warm-pool", "keep this `number` of started machines (about 20 MB each) for the image and the size that was used last: sandboxes are created faster"},
		{&s.WarmPoolMax, "warm-pool-max", "keep up to this `number` of them when as many sandboxes were created within a minute; each is promised the memory of a sandbox, and goes when that is needed"},
		{&s.Egress, "egress", "`closed|open|direct`: sandboxes reach nothing; or public addresses by TCP, as far as their network rules allow, through the proxy; or so, but without it where there are no rules: then UDP passes as well, names are asked of public servers, and what passes is not written to the log"},
		{&s.EgressPool, "egress-pool", "comma separated `addresses` of this host, or networks such as 203.0.113.0/28, that egress IPs get, for sandboxes to leave from (default: there are none)"},
		{&s.EgressLink, "egress-interface", "`name` of the network interface that these addresses belong to: those in use are added to it, and for UDP from them the host forwards packets (net.ipv4.ip_forward)"},
		{&s.MaxConnections, "max-connections", "the `number` of connections open at a time; 0: as many as descriptors allow (ulimit -n), at most 8192"},
		{&s.MaxPerSource, "max-connections-per-source", "the `number` of these from one source, which is an IPv4 address or an IPv6 /64; 0: 512, or half of --max-connections from a loopback address"},
		{&s.SourceRate, "source-rate", "`rate` of requests from one source: 100 per second, 100:500 with a burst of 500, or off (default: 1000:5000, and 20 times that from a loopback address)"},
		{&s.SourceFailures, "source-failure-rate", "`rate` of requests with a wrong credential, or without one, from one source (default: 10:100, and 20 times that from a loopback address)"},
		{&s.HeaderTimeout, "header-timeout", "close a connection whose header takes longer than this `time`"},
		{&s.BodyIdleTimeout, "body-idle-timeout", "end a request whose body pauses for longer than this `time`"},
		{&s.WriteTimeout, "write-stall-timeout", "close a connection whose client takes nothing of an answer for this `time`"},
		{&s.TrustedProxies, "trusted-proxies", "comma separated `networks` of the proxies in front, such as 10.0.0.0/8: the address of a client is what they say in X-Forwarded-For (default: there are none)"},
		{&s.PrivateRegistries, "private-registries", "pull images from registries on private addresses too"},
		{&s.ImageMaxMB, "image-max-mb", "refuse images of registries whose files take more than this many `MB`; while one is made, it takes twice that of the disk"},
		{&s.ImageRetention, "image-retention", "remove an image of a registry that no sandbox, snapshot or image of a workspace has needed for this `time`; 0: never"},
		{&s.DiskReserveMB, "disk-reserve-mb", "keep this many `MB` of the disk free: images, volumes, snapshots and archives that would take them are refused, and checkpoints leave a quarter of them; -1: 2 % of the disk, at least 1024 and at most 20480"},
		{&s.VolumeOvercommit, "volume-overcommit", "promise this `factor` of the free disk to volumes: with 1 each volume can be filled, with more some may find the disk full"},
		{&s.Drives, "drives", "`URL` of the S3 bucket that drives are in, such as https://s3.example.com/bucket (default: there are no drives)"},
		{&s.DrivesKeys, "drives-credentials", "`file` with the credentials of that bucket, in the form of ~/.aws/credentials: its profile default; it never reaches a sandbox"},
		{&s.DrivesRegion, "drives-region", "`name` of the region that the bucket is in, as S3 knows it"},
		{&s.Quotas, "quotas", "comma separated `limits` of each workspace that has none of its own, such as sandboxes=100,diskMb=100000 (default: those that doze quota ls shows)"},
		{&s.KeyRequests, "key-requests", "the `number` of requests that one credential may send in a second; twice as many may come at once; 0: any number"},
		{&s.AuditRetention, "audit-retention", "keep lines of the audit log for this `time`, such as 2160h"},
		{&s.OTLPEndpoint, "otlp-endpoint", "`URL` of an OpenTelemetry collector that gets a trace of every wake and create by OTLP over HTTP, such as http://127.0.0.1:4318; OTEL_EXPORTER_OTLP_HEADERS has its credentials (default: traces stay here)"},
		{&s.Log, "log", "`level`: debug, info, warn or error"},
		{&s.Images, "images", "comma separated `names` of the images to make before the first request (default: " + strings.Join(s.Images, ",") + ")"},
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
