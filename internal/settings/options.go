package settings

import (
	"context"
	"net"
	"net/netip"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/front"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/ingress"
	"github.com/dozehq/doze/internal/space"
)

// Host is what the settings say of a node's host. Where the binaries are, and
// what other roles get to know, is for the caller to add.
func (s Settings) Host() host.Options {
	opened, _ := doze.ParsePrivateNetworks(s.EgressAllow) // Check has reported what is wrong
	mirrors, _ := disk.ParseMirrors(s.RegistryMirrors)    // likewise
	return host.Options{
		Data: s.Data, Run: s.Run, ImagesDir: s.ImagesDir, Cgroup: s.Cgroup, Driver: s.Driver, Platform: s.Platform,
		Images: s.Images, PrivateRegistries: s.PrivateRegistries, Mirrors: mirrors, ImageMax: s.ImageMaxMB << 20, ImageRetention: s.ImageRetention.Duration,
		LogsRetention: s.LogsRetention.Duration, LogsQuota: s.LogsWorkspaceMB << 20,
		Disk: s.Disk(), Memory: s.Memory(), WarmPool: s.WarmPool, WarmPoolMax: s.WarmPoolMax,
		GoBack: s.OnCrash == crashResume, CheckpointEvery: s.Checkpoint.Duration, CheckpointPause: s.CheckPause.Duration,
		IdleCPU: s.IdleCPU, BusyMax: s.BusyMax.Duration, MetricsPerSandbox: s.PerSandbox,
		PauseAfter: s.PauseAfter.Duration, SaveAfter: s.SaveAfter.Duration, SwapAfter: s.SwapAfter.Duration, DiskAfter: s.DiskAfter.Duration,
		GuestReferences: s.GuestReferences, Unmasked: !s.MaskResponses,
		Through: s.Proxy(), Egress: s.Egress, Opened: opened, EgressLink: s.EgressLink, Resolver: s.DNS(), DNS: s.Resolver,
		Drives: s.Bucket(), Builds: s.Building(), Remote: s.RemoteBucket(), RemoteAfter: s.RemoteAfter.Duration, RemoteEvery: s.RemoteEvery.Duration, RemoteBandwidth: int64(s.RemoteBandwidth) << 20,
	}
}

// Building is what the settings say of builds. Where the program is, is for the caller to
// add.
func (s Settings) Building() host.Builds {
	return host.Builds{Most: s.Builds, MemoryMB: s.BuildMemoryMB, DiskMB: s.BuildDiskMB, CacheAge: s.BuildCacheAge.Duration, Timeout: s.BuildTimeout.Duration}
}

// Bucket is what the settings say of the bucket of drives.
func (s Settings) Bucket() drive.Options {
	return drive.Options{URL: s.Drives, Credentials: s.DrivesKeys, Region: s.DrivesRegion}
}

// RemoteBucket is what the settings say of the bucket of checkpoints. A vault repeats requests by
// itself.
func (s Settings) RemoteBucket() drive.Options {
	return drive.Options{URL: s.Remote, Credentials: s.RemoteKeys, Region: s.RemoteRegion, Once: true}
}

// Controls are the base URLs of control: one of them is active.
func (s Settings) Controls() (all []string) {
	for text := range strings.SplitSeq(s.Control, ",") {
		all = append(all, strings.TrimSpace(text))
	}
	return all
}

// Library is what the settings say of images.
func (s Settings) Library() disk.Options {
	mirrors, _ := disk.ParseMirrors(s.RegistryMirrors) // Validate has reported what is wrong
	return disk.Options{PrivateRegistries: s.PrivateRegistries, Mirrors: mirrors, BytesMax: s.ImageMaxMB << 20, Through: s.Proxy()}
}

// Memory is what of the host's memory sandboxes get.
func (s Settings) Memory() host.Memory {
	return host.Memory{
		Swap: s.Swap, ReserveMB: s.ReserveMB, BudgetMB: s.BudgetMB, SandboxMB: s.SandboxMB, Overcommit: s.Overcommit, Ready: s.Ready,
	}
}

// Disk says how much of a disk with data or images stays free.
func (s Settings) Disk() space.Options {
	o := space.Options{Reserve: s.DiskReserveMB, Overcommit: s.VolumeOvercommit}
	if o.Reserve > 0 {
		o.Reserve <<= 20
	}
	return o
}

// DNS asks one server, or those of the host.
func (s Settings) DNS() *net.Resolver {
	if s.Resolver == "" {
		return net.DefaultResolver
	}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Resolver)
	}}
}

// APIURL is where the world reaches the control API.
func (s Settings) APIURL() string { return s.PublicURL + front.APIPath }

// Entrance says where callers come in.
func (s Settings) Entrance() front.Entrance {
	e := front.Entrance{Listen: s.Listen, Run: s.Run}
	if s.ByPath() {
		e.Previews = s.PreviewListen
	}
	return e
}

// Front is what the settings say of the listeners. The caller adds the handlers,
// and whose names are ours.
func (s Settings) Front() front.Options {
	o := front.Options{
		Limits: s.Limits(new(doze.Problems)), // which Validate reports
		Listen: s.Listen, ListenHTTP: s.ListenHTTP, PublicURL: s.PublicURL, Domain: s.Domain,
		Cert: s.TLSCert, Key: s.TLSKey, Idle: s.LeaveIdle.Duration,
	}
	if s.ACME {
		o.Authority = &front.Authority{Directory: s.ACMEURL, Roots: s.ACMERoots, Email: s.ACMEEmail}
	}
	return o
}

// Limits is what strangers may do. It adds what is wrong with the settings.
func (s Settings) Limits(p *doze.Problems) ingress.Limits {
	l := ingress.Limits{
		Connections: s.MaxConnections, PerSource: s.MaxPerSource,
		Header: s.HeaderTimeout.Duration, BodyIdle: s.BodyIdleTimeout.Duration, WriteStall: s.WriteTimeout.Duration,
	}
	for name, n := range map[string]int{"maxConnections": s.MaxConnections, "maxConnectionsPerSource": s.MaxPerSource} {
		if n < 0 {
			p.Add(name, "must not be negative")
		}
	}
	for name, d := range map[string]daemon.Duration{"headerTimeout": s.HeaderTimeout, "bodyIdleTimeout": s.BodyIdleTimeout, "writeStallTimeout": s.WriteTimeout} {
		if d.Duration <= 0 {
			p.Add(name, "must be positive")
		}
	}
	for _, rate := range []struct {
		name, text string
		to         *ingress.Rate
	}{{"sourceRate", s.SourceRate, &l.Requests}, {"sourceFailureRate", s.SourceFailures, &l.Failures}} {
		var err error
		if *rate.to, err = ingress.ParseRate(rate.text); err != nil {
			p.Add(rate.name, "is wrong: %v", err)
		}
	}
	for _, text := range s.TrustedProxies {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			p.Add("trustedProxies", "must be networks such as 10.0.0.0/8 or 192.0.2.1/32: %q is none", text)
		}
		l.Proxies = append(l.Proxies, network.Masked())
	}
	return l
}
