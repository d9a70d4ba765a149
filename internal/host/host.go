// Package host composes what a node is made of on one host: the network, the egress
// proxy, images, volumes, drives, swap, the driver, and the node itself. It knows
// the other roles by the functions of [Options] alone.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/builder"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/depot"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/egress"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/hostnet"
	"github.com/dozehq/doze/internal/logbook"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/fence"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/outproxy"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/trace"
	"github.com/dozehq/doze/internal/volume"
)

// What sandboxes without network rules may reach.
const (
	EgressClosed = "closed"
	EgressOpen   = "open"   // public addresses, and all of it is led to the proxy
	EgressDirect = "direct" // the same and UDP, straight out
)

// EgressFile, in the data directory, opens the secrets of routing rules. It belongs
// to the records.
const EgressFile = "egress.key"

// sandboxesDir, in the data directory, has the sandboxes.
const sandboxesDir = "sandboxes"

// Others that are needed when no host is open.
const snapshotsDir, volumesDir, leasedFile = "snapshots", "volumes", "leased"

// LogsDir, in the data directory, has what sandboxes wrote.
const LogsDir = "logs"

// Options say what a host is made of.
type Options struct {
	Data, Run, ImagesDir, Cgroup string
	Launcher, Agent              string // paths of the binaries
	Driver                       string // one of Drivers
	Platform                     string // one of its Platforms; empty is PlatformDefault

	Images            []string // made before the first request, and kept
	PrivateRegistries bool     // images may come from private addresses
	Mirrors           disk.Mirrors
	ImageMax          int64 // bytes that the files of an image may take
	ImageRetention    time.Duration
	Disk              space.Options
	LogsRetention     time.Duration // 0: no output of sandboxes is stored
	LogsQuota         int64         // bytes of the disk for each workspace

	Memory   Memory
	WarmPool int // machines that are started ahead of their sandboxes
	// WarmPoolMax is the same when as many sandboxes were created lately.
	WarmPoolMax int

	GoBack                                      bool // to the last checkpoint, after a crash
	CheckpointEvery, CheckpointPause            time.Duration
	PauseAfter, SaveAfter, SwapAfter, DiskAfter time.Duration
	IdleCPU                                     float64       // with this share of a processor in use, a sandbox without requests is not paused; 0: none counts
	BusyMax                                     time.Duration // for how long after the last request it is not

	Through *outproxy.Proxy // through which this host reaches public addresses; nil: none

	Opened []netip.Prefix // networks that sandboxes may reach by the proxy, although they are not public
	// GuestReferences and Unmasked are what routing rules do that do not say it: see
	// [intercept.Defaults].
	GuestReferences, Unmasked bool
	Egress                    string        // EgressClosed, EgressOpen or EgressDirect
	EgressLink                string        // network interface of dedicated addresses; empty: there are none
	Resolver                  *net.Resolver // that answers what sandboxes ask through the proxy
	DNS                       string        // host:port of the server behind Resolver; empty: those of this host

	Drives drive.Options // an empty URL: there are no drives
	// Remote is the bucket of copies for other nodes, for sandboxes that have slept for
	// RemoteAfter. The copy of a sandbox that does not sleep is made again after RemoteEvery; 0: there is none.
	// RemoteBandwidth bounds what this host sends to it, in bytes in a second; 0: nothing does.
	Remote          drive.Options // an empty URL: there are no copies
	RemoteAfter     time.Duration
	RemoteEvery     time.Duration
	RemoteBandwidth int64
	Builds          Builds

	Upstream

	Traced  func(trace.Record)
	Metrics *metric.Metrics
	// MetricsPerSandbox is how many sandboxes have metrics of their own; 0: none.
	MetricsPerSandbox int
	Output            io.Writer // shows how images get on
}

// Upstream is what a host tells and asks control.
type Upstream struct {
	Report func(fleet.Report)
	Named  func(context.Context) ([]string, error) // references of the images that records name
	Quotas Quotas                                  // meters egress
	// Gate is passed by every operation of machines; nil: they need no leave.
	Gate *fence.Gate
	// ID is that of the node, and Rights are what control grants it for copies. Without
	// them there are no copies.
	ID     string
	Rights depot.Rights
}

// Quotas count what workspaces send and receive, and say which may send no more.
type Quotas interface {
	// Meter has the bytes of a workspace counted by count from now on.
	Meter(workspace string, count func() uint64)
	// Barred returns why the sandboxes of a workspace may send nothing more today, or
	// nothing. It is asked for every connection.
	Barred(workspace string) string
}

// Host is a node and what it is made of.
type Host struct {
	o Options

	net       *hostnet.Net
	egress    *egress.Egress
	refusals  *hostnet.Watch
	secrets   *secrets
	images    *disk.Library
	agents    *disk.Library // of this data directory alone
	disk      *space.Disk   // of the data directory
	imageDisk *space.Disk   // of the images; the same one, unless they are elsewhere
	bucket    *drive.Bucket // nil without drives
	volumes   *volume.Pool
	swap      swap.Plan // that sandboxes get
	memory    int64     // what all sandboxes can take together, in bytes
	traffic   *traffic
	logs      *logbook.Book // nil if no output is stored
	node      *node.Node
	builder   *builder.Room
	depot     *depot.Depot  // nil without copies
	stocked   chan struct{} // closed when depot is open
	rooting   chan struct{} // holds a token while the root file system of builders is looked for, or made
	root      builderRoot   // guarded by rooting
	unnamed   chan struct{} // rings when the record of an image is gone
}

// Open makes images, network and engine, and adopts the sandboxes that are there.
// What was opened is closed again if a later step fails.
func Open(ctx context.Context, o Options) (_ *Host, err error) {
	h := &Host{o: o, stocked: make(chan struct{}), unnamed: make(chan struct{}, 1), rooting: make(chan struct{}, 1), traffic: &traffic{quotas: o.Quotas, all: map[string]*egress.Traffic{}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	if err := h.openDisks(); err != nil {
		return nil, err
	}
	if err := h.openImages(ctx); err != nil {
		return nil, err
	}
	if h.bucket, err = drive.Find(ctx, o.Drives); err != nil {
		return nil, err
	}
	if err := h.openVolumes(); err != nil {
		return nil, err
	}
	if err := h.openMemory(ctx); err != nil {
		return nil, err
	}
	return h, h.openNode(ctx)
}

// Node is the node, for control and the edge.
func (h *Host) Node() Node { return Node{h.node, h.builder, h.depot} }

// Info is what the node says of itself, without its identity and address.
func (h *Host) Info() fleet.NodeInfo {
	return fleet.NodeInfo{
		Memory: largest(h.memory, Traits(h.o.Driver)), Proxy: h.o.Egress != EgressClosed, Unmetered: h.o.Egress == EgressDirect,
		BuildDisk: h.o.Builds.disk(h.o.Builds.memory(h.memory)), SealKey: h.secrets.opener.Sealer().Key(),
		Driver: h.o.Driver,
	}
}

// Bucket is where drives are, or nil.
func (h *Host) Bucket() *drive.Bucket { return h.bucket }

// Swap is the swap that sandboxes got.
func (h *Host) Swap() swap.Plan { return h.swap }

// Enforce ends connections of workspaces that have used up their quota of egress.
func (h *Host) Enforce() { h.egress.Enforce() }

// SweepAddresses removes dedicated addresses that no sandbox leaves from any more.
// Call it when control has told every network.
func (h *Host) SweepAddresses() {
	if err := h.net.SweepAddresses(); err != nil {
		slog.Warn("addresses that nobody leaves from any more could not be removed", "err", err)
	}
}

// Services are what runs until the end, in the order in which it starts.
func (h *Host) Services() []daemon.Service {
	services := []daemon.Service{
		{Name: "node", Run: h.node.Run},
		{Name: "builders", Run: h.builder.Run},
		{Name: "images", Run: h.collectImages},
		{Name: "interceptor", Run: h.secrets.interceptor.Run},
		{Name: "egress", Run: h.egress.Run},
		{Name: "refusals", Run: h.watchRefusals},
		{Name: "catalogue", Run: h.buildWanted},
	}
	if h.depot != nil {
		services = append(services, daemon.Service{Name: "copies", Run: h.depot.Run})
	}
	if h.logs != nil {
		services = slices.Insert(services, 0, daemon.Service{Name: "logs", Run: h.logs.Run})
	}
	return services
}

// Close closes what is open, in reverse. Sandboxes stay.
func (h *Host) Close() error {
	var errs []error
	if h.egress != nil {
		errs = append(errs, h.egress.Close())
	}
	if h.refusals != nil {
		errs = append(errs, h.refusals.Close())
	}
	if h.net != nil {
		errs = append(errs, h.net.Close())
	}
	for _, l := range []*disk.Library{h.agents, h.images} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// openNode starts the engine and adopts the sandboxes.
func (h *Host) openNode(ctx context.Context) (err error) {
	o := h.o
	if h.net, err = hostnet.Open(filepath.Join(o.Data, "net"), hostnet.Options{OpenEgress: o.Egress == EgressDirect, OpenDatagrams: h.datagrams(), EgressLink: o.EgressLink, Opened: o.Opened}); err != nil {
		return fmt.Errorf("open the network: %w", err)
	}
	if err := h.openEgress(ctx); err != nil {
		return err
	}
	resolvers, err := h.resolvers()
	if err != nil {
		return err
	}
	if h.agents, err = disk.Open(filepath.Join(o.Data, "agents"), disk.Options{}); err != nil {
		return err
	}
	agent, err := h.agent(ctx)
	if err != nil {
		return fmt.Errorf("prepare the agent: %w", err)
	}
	open, err := driverNamed(o.Driver)
	if err != nil {
		return err
	}
	driver, err := open(ctx, h)
	if err != nil {
		return fmt.Errorf("open the driver %s: %w", o.Driver, err)
	}
	fenced := machine.Driver(driver)
	if o.Gate != nil {
		fenced = fence.New(driver, o.Gate)
	}
	logs, err := h.openLogs()
	if err != nil {
		return fmt.Errorf("open the logs: %w", err)
	}
	h.node, err = node.Open(ctx, node.Options{
		Drive: h.mountDrive, Logbook: logs,
		Dir: filepath.Join(o.Data, sandboxesDir), Snapshots: filepath.Join(o.Data, snapshotsDir), Ahead: filepath.Join(o.Data, "ahead"), Away: filepath.Join(o.Data, "away"),
		Volumes: h.volumes, Agent: agent, Driver: fenced, Fetch: h.fetchCopy(),
		CheckImage: h.images.Check, Making: h.images.Making, Image: h.fetchImage, PinImage: h.pinImage,
		Images: h.storedImages, ReleaseImage: h.releaseImage, HoldImage: h.images.Hold,
		Lease: h.lease, Release: h.release, Admit: h.admit, Traffic: h.net.Traffic, Egress: h.egress.Summary,
		Nameservers: texts(resolvers), Proxy: proxyAddress, Trust: h.secrets.authorities.Certificate,
		Report: o.Report,
		Woke:   o.Metrics.Woke, Sank: o.Metrics.Sank, Refused: o.Metrics.Refused, Traced: o.Traced,

		Room: h.disk.Claim, SleepRoom: h.disk.ClaimSleep,
		Crowded: crowded, Available: available(hostAvailable, driver.Free), Reserve: o.Memory.reserve(h.memory), Limit: h.memory,
		Overcommit: o.Memory.Overcommit, Budget: o.Memory.BudgetMB << 20, Spares: o.WarmPool, SparesMax: o.WarmPoolMax,
		GoBack: o.GoBack, CheckpointEvery: o.CheckpointEvery, CheckpointPause: o.CheckpointPause,
		IdleCPU: o.IdleCPU, BusyMax: o.BusyMax,
		PauseAfter: o.PauseAfter, DiskAfter: o.DiskAfter, SaveAfter: min(o.SaveAfter, o.DiskAfter), SwapAfter: h.swapAfter(),
	})
	if err != nil {
		return err
	}
	if err := h.net.Sweep(h.node.Owns); err != nil {
		slog.Warn("addresses that nobody has could not be given back", "err", err)
	}
	if err := h.openBuilder(ctx); err != nil {
		return err
	}
	if err := h.openDepot(ctx); err != nil {
		return fmt.Errorf("open the bucket of copies: %w", err)
	}
	if err := h.retireAgents(agent); err != nil {
		slog.Warn("agents of earlier builds could not be removed", "err", err)
	}
	if err := driver.Tidy(ctx, filepath.Join(o.Data, sandboxesDir), filepath.Join(o.Data, snapshotsDir), filepath.Join(o.Data, "ahead")); err != nil {
		slog.Warn("what no machine needs any more could not be removed", "driver", o.Driver, "err", err)
	}
	return nil
}

// mountDrive opens a part of a drive for a sandbox.
func (h *Host) mountDrive(m fleet.DriveMount, dir string) (node.Drive, error) {
	if h.bucket == nil {
		return nil, doze.Errorf(doze.Unsupported, "this platform has no bucket for drives: its operator names one with --drives and --drives-credentials")
	}
	return h.bucket.Mount(m.DriveID, m.DrivePath, m.ReadOnly, dir)
}

// openLogs opens the logs of sandboxes, or removes those of before if none are stored
// any more.
func (h *Host) openLogs() (node.Logbook, error) {
	dir := filepath.Join(h.o.Data, LogsDir)
	if h.o.LogsRetention <= 0 {
		return nil, os.RemoveAll(dir)
	}
	b, err := logbook.Open(logbook.Options{Dir: dir, Retention: h.o.LogsRetention, Quota: h.o.LogsQuota, Room: h.disk.Claim})
	if err != nil {
		return nil, err
	}
	h.logs = b
	return b, nil
}

// openDisks looks at the disks that have data and images. Both have a reserve.
func (h *Host) openDisks() (err error) {
	if h.disk, err = space.Open(h.o.Data, h.o.Disk); err != nil {
		return err
	}
	if err := os.MkdirAll(h.o.ImagesDir, 0o755); err != nil { //nolint:gosec // G301: as the library makes it
		return fmt.Errorf("make the directory of images: %w", err)
	}
	h.imageDisk = h.disk
	if same, err := h.disk.Same(h.o.ImagesDir); same || err != nil {
		return err
	}
	h.imageDisk, err = space.Open(h.o.ImagesDir, h.o.Disk)
	return err
}

// openVolumes opens the volumes, which take the room that they reserve.
func (h *Host) openVolumes() (err error) {
	if h.volumes, err = volume.Open(filepath.Join(h.o.Data, volumesDir), h.disk); err != nil {
		return err
	}
	h.disk.Written(h.volumes.Written)
	s, err := h.disk.State()
	if err == nil && s.Free-s.Reserve < s.Pending {
		slog.Warn("volumes have reserved more than the disk has: nothing that takes disk can be made until some are deleted, the disk is larger, or --volume-overcommit is",
			"reserved", s.Reserved, "pending", s.Pending, "free", s.Free, "reserve", s.Reserve)
	}
	return err
}

func (h *Host) lease(ctx context.Context, id string) (machine.Link, error) {
	s, err := h.net.Lease(ctx, id)
	return machine.Link{
		NetNS: s.Path, Name: s.Link, MAC: s.MAC.String(), IP: s.IP.String(), PrefixLen: s.PrefixLen,
		Gateway: s.Gateway.String(), GatewayMAC: s.GatewayMAC.String(), MTU: s.MTU,
	}, err
}

func texts(addresses []netip.Addr) (list []string) {
	for _, a := range addresses {
		list = append(list, a.String())
	}
	return list
}
