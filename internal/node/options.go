package node

import (
	"context"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
	"github.com/dozehq/doze/internal/node/idle"
	"github.com/dozehq/doze/internal/trace"
)

// Image is what a sandbox is made of.
type Image struct {
	Path string // file of the read-only root file system

	doze.ImageConfig
}

// Options are the settings of a node and what it builds sandboxes with.
type Options struct {
	Dir       string // one directory per sandbox; survives a reboot
	Snapshots string // one directory per snapshot; on the same file system, so that files can be shared
	Away      string // one directory per copy for other nodes, on the same file system
	Ahead     string // directory of what is started ahead, on the same file system; without one nothing is
	Agent     string // file with the agent
	Driver    machine.Driver

	// Fetch puts the newest copy of a sandbox from the bucket where Incoming says, on disk,
	// and returns what the copy needs. It is NotFound if the bucket has none. nil: there is no
	// bucket.
	Fetch func(ctx context.Context, uid string) (Files, error)

	// CheckImage and Image resolve an image's name; Image may take as long as
	// making it takes. Making returns what Image has to make for that, in a clause for the
	// owner of a sandbox: empty if nothing. It may be nil.
	CheckImage func(ref string) error
	Making     func(ref string) string
	Image      func(ctx context.Context, ref string, login *fleet.Login) (Image, error)
	PinImage   func(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error)
	// HoldImage keeps the file of an image that a sandbox begins with that goes on from
	// a snapshot, until it is on record.
	HoldImage func(path string)
	// ReleaseImage says that no record names an image any more.
	ReleaseImage func(ref string)
	// Images returns what the images of the host take of its disk, without who
	// uses them.
	Images func() ([]fleet.DiskUse, error)
	// Lease returns the network of a sandbox, the same one for the same id
	// until Release.
	Lease   func(ctx context.Context, id string) (machine.Link, error)
	Release func(id string) error
	// Admit has the network of an order obeyed for what was leased under an id,
	// and is NotFound if nothing is. What nobody admitted reaches nothing.
	Admit func(id string, o fleet.Order) error
	// Traffic returns what went over what was leased under an id: nothing, if nothing
	// is. It may be nil.
	Traffic func(id string) (doze.NetworkUsage, error)
	// Egress returns where a sandbox connected to of late, by the UID of the order that
	// was admitted. It may be nil.
	Egress func(uid string) doze.EgressSummary
	// Proxy is host:port of the proxy in every sandbox.
	Proxy string
	// Trust returns the certificate, in PEM, of an authority that signs where a
	// routing rule has connections intercepted.
	Trust func(authority string) ([]byte, error)
	// Volumes keeps the disks of sandboxes.
	Volumes Volumes
	// Drive opens a part of a drive for a sandbox, with a directory for what is
	// being written. Without a bucket it is Unsupported.
	Drive func(m fleet.DriveMount, dir string) (Drive, error)
	// Logbook stores what sandboxes write. Without one, nothing is stored.
	Logbook Logbook
	// Nameservers are the addresses that sandboxes ask for names, if there are
	// any that they can reach.
	Nameservers []string
	// Report is told of every transition, in order, by one goroutine.
	Report func(fleet.Report)
	// Woke and Sank are told how wakes and moves down ended and how long they
	// took. They must not wait. Either may be nil.
	Woke func(from machine.Tier, took time.Duration, err error)
	Sank func(to machine.Tier, took time.Duration, err error)
	// Traced is told of every wake and every create that has ended. It must not
	// wait. It may be nil.
	Traced func(trace.Record)
	// Room takes bytes of the disk for what is about to be written, until release is
	// called, or is Exhausted; SleepRoom is for checkpoints of sandboxes, which may
	// take more of it. Without them the disk is the node's.
	Room, SleepRoom func(bytes int64) (release func(), err error)
	// Refused is told of each sandbox that may not be awake, by the name of the
	// quota. It must not wait. It may be nil.
	Refused func(quota string)
	// Available returns the bytes of memory that the host can still give.
	Available func() (int64, error)
	// Crowded reports whether all processors of the host are in use just now. It is
	// called often, and must not wait.
	Crowded func() bool

	PauseAfter time.Duration // unused for this long, a sandbox is paused
	IdleCPU    float64       // with this share of a processor in use, a sandbox without requests is not paused; 0: none counts
	BusyMax    time.Duration // for how long after the last request it is not
	GoBack     bool          // if the processes of a sandbox end by themselves, it goes on from its last checkpoint
	SaveAfter  time.Duration // paused for this long, its checkpoint is written
	SwapAfter  time.Duration // paused for this long, its memory is moved to the host's swap; 0, or not before DiskAfter: never
	DiskAfter  time.Duration // paused for this long, its memory is given back
	// CheckpointEvery is how old the last checkpoint of a sandbox in use may get: it
	// is renewed in the next moment in which nobody uses the sandbox, or beside the
	// requests if there is none. 0: only a sleep writes one.
	CheckpointEvery time.Duration
	// CheckpointPause is for about how long at most a sandbox stands still if its
	// checkpoint is renewed beside requests.
	CheckpointPause time.Duration
	Spares          int     // how many machines are started ahead of their sandboxes
	SparesMax       int     // the same, when as many were created within a minute
	Reserve         int64   // with less memory than this available, sandboxes move to disk early
	Budget          int64   // with more memory than this in sandboxes, they move down early; 0: no limit
	Limit           int64   // what all machines can take together, in bytes; 0: no limit
	Overcommit      float64 // how many times the limit may be reserved for machines in memory
}

// fill replaces each optional function that is nil by one that does nothing.
func (o *Options) fill() {
	if o.Woke == nil {
		o.Woke = func(machine.Tier, time.Duration, error) {}
	}
	if o.Sank == nil {
		o.Sank = func(machine.Tier, time.Duration, error) {}
	}
	boundless := func(int64) (release func(), err error) { return func() {}, nil }
	if o.Room == nil {
		o.Room = boundless
	}
	if o.SleepRoom == nil {
		o.SleepRoom = boundless
	}
	if o.Traced == nil {
		o.Traced = func(trace.Record) {}
	}
	if o.Egress == nil {
		o.Egress = func(string) doze.EgressSummary {
			return doze.EgressSummary{Destinations: []doze.EgressDestination{}}
		}
	}
	if o.Traffic == nil {
		o.Traffic = func(string) (doze.NetworkUsage, error) { return doze.NetworkUsage{}, nil }
	}
	if o.Crowded == nil {
		o.Crowded = func() bool { return false }
	}
	if o.Refused == nil {
		o.Refused = func(string) {}
	}
}

// load says when processes compute too much for a sandbox that sleeps.
func (o *Options) load() idle.Load { return idle.Load{Share: o.IdleCPU, Max: o.BusyMax} }

// schedule says when sandboxes move down.
func (o *Options) schedule() descent.Schedule {
	return descent.Schedule{
		Pause: o.PauseAfter, Save: o.SaveAfter, Swap: o.SwapAfter, Disk: o.DiskAfter, Swaps: o.Driver.Traits().Swap,
	}
}

// hiddenPatience is how many times longer a machine of the platform itself is paused
// before its checkpoint is written, as long as it is not due on disk. The files of a
// builder are many objects of the engine, of which a checkpoint takes seconds that no
// request can end. People build again within minutes.
const hiddenPatience = 60

// hiddenSchedule is the schedule of the machines of the platform itself, where that of
// sandboxes is w.
func hiddenSchedule(w descent.Schedule) descent.Schedule {
	w.Save = max(w.Save, min(w.Save*hiddenPatience, w.Disk))
	return w
}
