package settings

import (
	"fmt"
	"log/slog"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/teardown"
	"github.com/dozehq/doze/internal/trace/otlp"
)

const (
	// memoryOvercommitMax is beyond every use: the smallest process of a sandbox takes
	// more than a hundredth of the default size.
	memoryOvercommitMax = 100
	// checkpointsApart is how often checkpoints may be renewed. Most take far less
	// time to be written.
	checkpointsApart = 5 * time.Second
	// idleCPUMax is as many processors as a sandbox can have at most.
	idleCPUMax = 512
	// perSandboxMax bounds what one page of metrics has of single sandboxes: 10 series of
	// each, which is a lot for any Prometheus.
	perSandboxMax = 10_000
	// volumeOvercommitMax is far above what any disk survives whose volumes are used.
	volumeOvercommitMax = 100
)

var domainForm = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate reports every mistake at once.
func (s Settings) Validate() error {
	var p doze.Problems
	for _, check := range []func(*doze.Problems){
		s.checkNames, s.checkAddresses, s.checkPreviews, s.checkACME, s.checkDatabase, func(p *doze.Problems) { s.Limits(p) },
		s.checkTimes, s.checkLogs, s.checkDrives, s.checkRemote, s.checkCrash, s.checkEgress, s.checkProxy, s.checkQuotas, s.checkNumbers, s.checkMemory, s.checkDisk, s.checkBuilds, s.checkOutput,
	} {
		check(&p)
	}
	return p.Err()
}

func (s Settings) checkNames(p *doze.Problems) {
	doze.CheckName(p, "workspace", s.Workspace)
	s.checkRegions(p)
	if s.Domain != "" && !domainForm.MatchString(s.Domain) {
		p.Add("domain", "must be a domain name such as sandboxes.example.com")
	}
	if !teardown.ValidGroup(s.Cgroup) {
		p.Add("cgroup", "must be one name of letters, digits, dots, dashes and underscores")
	}
	if !slices.Contains(host.Drivers(), s.Driver) {
		p.Add("driver", "must be %s", strings.Join(host.Drivers(), " or "))
	}
	if known := host.Platforms(s.Driver); !slices.Contains(known, s.Platform) {
		p.Add("platform", "must be %s", strings.Join(known, ", "))
	}
}

func (s Settings) checkRegions(p *doze.Problems) {
	if len(s.Regions) == 0 {
		p.Add("regions", "must name at least one region")
	}
	for i, name := range s.Regions {
		doze.CheckName(p, fmt.Sprintf("regions[%d]", i), name)
		if name == doze.AnyRegion || slices.Contains(s.Regions[:i], name) {
			p.Add("regions", "must not have %q here: choose another name", name)
		}
	}
}

func (s Settings) checkAddresses(p *doze.Problems) {
	if _, _, err := net.SplitHostPort(s.Listen); err != nil {
		p.Add("listen", "must be host:port: %v", err)
	}
	if s.Resolver != "" {
		if _, _, err := net.SplitHostPort(s.Resolver); err != nil {
			p.Add("resolver", "must be host:port: %v", err)
		}
	}
	if (s.TLSCert == "") != (s.TLSKey == "") {
		p.Add("tlsCert", "and tlsKey go together")
	}
	for name, address := range map[string]string{"controlListen": s.ControlListen, "nodeListen": s.NodeListen} {
		if _, _, err := net.SplitHostPort(address); err != nil {
			p.Add(name, "must be host:port: %v", err)
		}
	}
	for _, text := range s.Controls() {
		if !isPeer(text) {
			p.Add("control", "must be a URL such as https://10.0.0.1:7083, or several of them, separated by commas")
		}
	}
	if !isPeer(s.Node) {
		p.Add("node", "must be a URL such as https://10.0.0.1:7084")
	}
}

// isPeer reports whether a text is the base URL of another role.
func isPeer(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme == "https" && u.Host != "" && u.Path == ""
}

func (s Settings) checkTimes(p *doze.Problems) {
	if !(s.IdleCPU >= 0 && s.IdleCPU <= idleCPUMax) { // also false for what is no number
		p.Add("idleCpu", "must be 0 to %d", idleCPUMax)
	}
	for name, d := range map[string]daemon.Duration{"saveAfter": s.SaveAfter, "swapAfter": s.SwapAfter, "busyMax": s.BusyMax, "imageRetention": s.ImageRetention, "logsRetention": s.LogsRetention} {
		if d.Duration < 0 {
			p.Add(name, "must not be negative")
		}
	}
	for name, d := range map[string]daemon.Duration{"pauseAfter": s.PauseAfter, "diskAfter": s.DiskAfter} {
		if d.Duration <= 0 {
			p.Add(name, "must be positive")
		}
	}
}

// logsLeastMB holds the log of one sandbox in whole segments.
const logsLeastMB = 1

func (s Settings) checkLogs(p *doze.Problems) {
	if s.LogsWorkspaceMB < logsLeastMB {
		p.Add("logsWorkspaceMb", "must be at least %d; logsRetention 0 turns stored logs off", logsLeastMB)
	}
}

// leaseLeast is the shortest lease: a node renews it six times, over a network that may
// lose some of that.
const leaseLeast = 3 * time.Second

// nodeCertificateLeast and nodeCertificateMost bound the life of a certificate of a node. It is
// renewed a few times a minute at most, and ends before its authority.
const nodeCertificateLeast, nodeCertificateMost = 10 * time.Second, 10 * 365 * 24 * time.Hour

func (s Settings) checkRemote(p *doze.Problems) {
	if (s.Remote == "") != (s.RemoteKeys == "") {
		p.Add("remote", "and remoteCredentials go together")
	}
	if _, _, err := drive.Parse(s.Remote); s.Remote != "" && err != nil {
		p.Add("remote", "is wrong: %v", err)
	}
	if s.Lease.Duration < leaseLeast {
		p.Add("lease", "is %s; it must be at least %s", s.Lease, leaseLeast)
	}
	if d := s.NodeCertificate.Duration; d < nodeCertificateLeast || d > nodeCertificateMost {
		p.Add("nodeCertificate", "is %s; it must be between %s and %s", s.NodeCertificate, nodeCertificateLeast, nodeCertificateMost)
	}
	if s.LeaseGrace.Duration < 0 || s.RemoteAfter.Duration < 0 || s.RemoteEvery.Duration < 0 {
		p.Add("leaseGrace", ", remoteAfter and remoteEvery must not be negative")
	}
	if s.LeaveIdle.Duration < 0 {
		p.Add("leaveIdle", "must not be negative")
	}
	if s.RemoteBandwidth < 0 {
		p.Add("remoteBandwidthMb", "must not be negative")
	}
}

func (s Settings) checkDrives(p *doze.Problems) {
	if (s.Drives == "") != (s.DrivesKeys == "") {
		p.Add("drives", "and drivesCredentials go together")
	}
	if _, _, err := drive.Parse(s.Drives); s.Drives != "" && err != nil {
		p.Add("drives", "are wrong: %v", err)
	}
}

func (s Settings) checkCrash(p *doze.Problems) {
	if every := s.Checkpoint.Duration; every != 0 && every < checkpointsApart {
		p.Add("checkpointEvery", "must be at least %v, or 0", checkpointsApart)
	} else if every != 0 && s.OnCrash != crashResume {
		p.Add("checkpointEvery", "needs onCrash %s: without it nobody goes back to a checkpoint", crashResume)
	}
	if s.CheckPause.Duration <= 0 {
		p.Add("checkpointPause", "must be more than 0, such as 150ms")
	}
	if s.OnCrash != crashResume && s.OnCrash != crashFail {
		p.Add("onCrash", "must be %s or %s", crashResume, crashFail)
	}
}

func (s Settings) checkEgress(p *doze.Problems) {
	if s.Egress != host.EgressClosed && s.Egress != host.EgressOpen && s.Egress != host.EgressDirect {
		p.Add("egress", "must be %s, %s or %s", host.EgressClosed, host.EgressOpen, host.EgressDirect)
	}
	if _, err := doze.ParsePrivateNetworks(s.EgressAllow); err != nil {
		p.Add("egressAllow", "is wrong: %v", err)
	}
	if len(s.EgressAllow) > 0 && s.Egress == host.EgressClosed {
		p.Add("egressAllow", "opens nothing with egress %s: choose %s", host.EgressClosed, host.EgressOpen)
	}
	if _, err := doze.ParseAddressPool(s.EgressPool); err != nil {
		p.Add("egressPool", "is wrong: %v", err)
	}
	if (len(s.EgressPool) == 0) != (s.EgressLink == "") {
		p.Add("egressPool", "and egressInterface go together")
	}
}

func (s Settings) checkQuotas(p *doze.Problems) {
	limits, err := doze.ParseLimits(s.Quotas)
	if err != nil {
		p.Add("quotas", "are wrong: %v", err)
	}
	if _, ok := limits[doze.QuotaEgress]; ok && s.Egress == host.EgressDirect {
		p.Add("quotas", "has %s, which cannot hold with egress %s: choose %s", doze.QuotaEgress, host.EgressDirect, host.EgressOpen)
	}
	if s.KeyRequests < 0 {
		p.Add("keyRequests", "must not be negative")
	}
}

func (s Settings) checkNumbers(p *doze.Problems) {
	if s.Ready < host.ReadyAuto {
		p.Add("ready", "must not be negative, but for %d", host.ReadyAuto)
	}
	if s.WarmPool < 0 {
		p.Add("warmPool", "must not be negative")
	}
	if s.WarmPoolMax < 0 {
		p.Add("warmPoolMax", "must not be negative; 0 has the number stay as it is")
	}
	if s.PerSandbox < 0 || s.PerSandbox > perSandboxMax {
		p.Add("metricsPerSandbox", "must be 0 to %d", perSandboxMax)
	}
}

func (s Settings) checkMemory(p *doze.Problems) {
	if !(s.Overcommit >= 1 && s.Overcommit <= memoryOvercommitMax) { // also false for what is no number
		p.Add("memoryOvercommit", "must be 1 to %d", memoryOvercommitMax)
	}
	if least := sandboxMBMin(host.Traits(s.Driver)); s.SandboxMB != 0 && s.SandboxMB < least {
		p.Add("sandboxMemoryMb", "must be at least %d, which is what one small sandbox takes, or 0", least)
	}
	for name, mb := range map[string]int64{"reserveMb": s.ReserveMB, "memoryBudgetMb": s.BudgetMB} {
		if mb < 0 {
			p.Add(name, "must not be negative")
		}
	}
	if _, err := swap.Parse(s.Swap); err != nil {
		p.Add("swap", "%v", err)
	}
}

// sandboxMBMin is what one sandbox of the smallest size takes with its engine.
func sandboxMBMin(t machine.Traits) int64 { return int64(doze.MemoryMin) + t.Overhead>>20 }

func (s Settings) checkDisk(p *doze.Problems) {
	if _, err := disk.ParseMirrors(s.RegistryMirrors); err != nil {
		p.Add("registryMirrors", "are wrong: %v", err)
	}
	if s.ImageMaxMB <= 0 {
		p.Add("imageMaxMb", "must be positive")
	}
	if s.DiskReserveMB < space.Auto {
		p.Add("diskReserveMb", "must be -1 or more")
	}
	if s.VolumeOvercommit < 1 || s.VolumeOvercommit > volumeOvercommitMax {
		p.Add("volumeOvercommit", "must be 1 to %d", volumeOvercommitMax)
	}
}

// buildTimeoutMax is longer than anybody waits for an image.
const buildTimeoutMax = 24 * time.Hour

func (s Settings) checkBuilds(p *doze.Problems) {
	if s.Builds < 1 || s.Builds > host.BuildsMax {
		p.Add("builds", "must be 1 to %d", host.BuildsMax)
	}
	if s.BuildMemoryMB != 0 && (s.BuildMemoryMB < int64(host.BuildMemoryMin) || s.BuildMemoryMB > int64(doze.MemoryMax)) {
		p.Add("buildMemoryMb", "must be %d to %d, or 0", host.BuildMemoryMin, doze.MemoryMax)
	}
	if s.BuildDiskMB < 0 || s.BuildMemoryMB != 0 && s.BuildDiskMB >= s.BuildMemoryMB {
		p.Add("buildDiskMb", "must be less than buildMemoryMb, or 0: the files of a builder are in its memory")
	}
	if s.BuildCacheAge.Duration < 0 {
		p.Add("buildCacheAge", "must not be negative")
	}
	if s.BuildTimeout.Duration <= 0 || s.BuildTimeout.Duration > buildTimeoutMax {
		p.Add("buildTimeout", "must be more than 0, and at most %v", buildTimeoutMax)
	}
}

func (s Settings) checkOutput(p *doze.Problems) {
	if s.OTLPEndpoint != "" {
		if err := otlp.Check(s.OTLPEndpoint); err != nil {
			p.Add("otlpEndpoint", "%v", err)
		}
	}
	if _, err := s.LogLevel(); err != nil {
		p.Add("log", "must be debug, info, warn or error")
	}
}

// LogLevel is the level from which on the log has lines.
func (s Settings) LogLevel() (l slog.Level, err error) {
	return l, l.UnmarshalText([]byte(strings.ToUpper(s.Log)))
}

// checkACME adds what is wrong with the settings around certificates.
func (s Settings) checkACME(p *doze.Problems) {
	host, _, _ := net.SplitHostPort(s.Listen)
	switch other, _, err := net.SplitHostPort(s.ListenHTTP); {
	case s.ListenHTTP == "":
	case err != nil:
		p.Add("httpListen", "must be host:port: %v", err)
	case !s.Secure():
		p.Add("httpListen", "is for plain HTTP next to TLS: it needs tlsCert or acme")
	case other != host:
		p.Add("httpListen", "must have the host of listen")
	}
	if !s.ACME {
		return
	}
	if u, err := url.Parse(s.ACMEURL); err != nil || u.Scheme != "https" || u.Host == "" {
		p.Add("acmeDirectory", "must be a URL that begins with https://")
	}
	if _, err := mail.ParseAddress(s.ACMEEmail); s.ACMEEmail != "" && err != nil {
		p.Add("acmeEmail", "must be an address such as ops@example.com")
	}
	public, err := url.Parse(s.PublicURL)
	if err != nil {
		return // it is wrong for a reason of its own
	}
	if _, err := netip.ParseAddr(public.Hostname()); s.TLSCert == "" && (err == nil || public.Hostname() == "localhost") {
		p.Add("publicUrl", "is %s: no authority gives certificates for that; use the name that the world knows, or tlsCert", s.PublicURL)
	}
}
