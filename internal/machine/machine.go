// Package machine defines what a sandbox runs in. The drivers are its
// sub-packages; machinetest is the suite that each of them passes.
//
// A machine never runs twice: a driver that cannot prove that an older
// incarnation is gone refuses to start a new one.
package machine

import (
	"context"
	"errors"
	"net"
	"time"
)

// Tier says where the memory of a machine is. A higher tier costs less and
// takes longer to leave.
type Tier uint8

const (
	Awake   Tier = iota // its processes run
	Paused              // its processes stand still; its memory is in RAM
	Saved               // as Paused, and a complete checkpoint is on disk
	Swapped             // as Saved, and its memory is in the host's swap
	OnDisk              // only the checkpoint exists
)

var tiers = [...]string{Awake: "awake", Paused: "paused", Saved: "saved", Swapped: "swapped", OnDisk: "disk"}

func (t Tier) String() string { return tiers[t] }

// Next returns the next tier on the way down from t to a lower one. Memory that
// is about to be given up is not moved to swap first.
func (t Tier) Next(to Tier) Tier {
	if t == Saved && to == OnDisk {
		return OnDisk
	}
	return t + 1
}

// Checkpointed reports whether a complete checkpoint is on disk beside the processes,
// so that nothing is lost with them.
func (t Tier) Checkpointed() bool { return t == Saved || t == Swapped }

// Recovery is what the owner of a sandbox can do that has lost its memory. The reason of an
// end may end with it.
const Recovery = "restore one of its snapshots, or delete it and create it again"

// ErrGone is what a driver returns for a machine of which neither processes
// nor a checkpoint are left.
var ErrGone = errors.New("neither processes nor a checkpoint are left")

// ErrDamaged is what Resume returns for a checkpoint that must not be run: it
// is incomplete or altered, or that of another machine. The checkpoint stays where
// it is.
var ErrDamaged = errors.New("the checkpoint cannot be run")

// ErrNoEngine is what a driver returns for a machine that runs in, or a checkpoint
// that was made with, a version of the engine that is not there. Neither is gone
// or damaged, and both go on when it is put back.
var ErrNoEngine = errors.New("its engine is missing")

// ErrNoMemory is why a node refuses memory to a machine. The machine stays as it is.
var ErrNoMemory = errors.New("the memory of the node is reserved for others")

// ErrNoVolumes is what Boot returns for a machine with volumes where what starts
// machines is of an older build, and would leave them out.
var ErrNoVolumes = errors.New("what starts machines knows no volumes")

// ErrNoDisks is the same for a machine with a disk.
var ErrNoDisks = errors.New("what starts machines knows no disks")

// ErrTooLong is what Renew returns for a machine that would stand still for longer than
// it may. Its last checkpoint is the one of before.
var ErrTooLong = errors.New("the machine would stand still for too long")

// Freeze is called right before an awake machine stands still: an error keeps it from
// that. It returns what is called when the machine goes on, or cannot. A nil Freeze does
// nothing.
type Freeze func() (thaw func(), err error)

// Begin calls f.
func (f Freeze) Begin() (thaw func(), err error) {
	if f == nil {
		return func() {}, nil
	}
	return f()
}

// Link is the network interface of a machine: the guest's end of a pair. The host end
// belongs to the network that leased it.
type Link struct {
	NetNS      string // path of the network namespace that holds the guest's end
	Name       string // of the guest's end
	MAC        string
	IP         string
	PrefixLen  int
	Gateway    string
	GatewayMAC string
	MTU        int
}

// Config is everything that a driver must know to run a machine, and to find
// it again after a crash.
type Config struct {
	Driver   string `json:",omitempty"` // the name of the one that makes it; those of before there was a choice have none
	ID       string // unique on the host for ever; [a-z0-9-]
	Dir      string // the driver keeps checkpoints here; survives a reboot
	Root     string // file of the read-only root file system (EROFS)
	Agent    string // file with the agent, mounted read-only at AgentDir (EROFS)
	Hostname string
	Env      []string
	Args     []string // of the first process; by default the agent
	Memory   int64    // bytes the guest may use
	CPUs     float64  // share of the host's processors
	// Disk is how many bytes the layer above Root may take on the host's disk. That layer is
	// in memory if it is 0.
	Disk int64 `json:",omitempty"`
	Link Link

	// Volumes are directories of the host that the guest has too. A checkpoint has only
	// the names of files that are open in them, and a wake opens these again. So nobody
	// may remove or rename anything in them while the machine is OnDisk.
	Volumes []Volume

	// What root may do inside besides. A checkpoint leaves out what comes of it
	// (see Suspend): links, addresses, routes and rules.
	IPTables bool // change the network, set filter rules, open raw sockets
	Tun      bool // change the network, attach tun devices
	// Containers is for container engines inside: root may do all that the engine can, and
	// has control groups.
	Containers bool

	// GoBack says that the last checkpoint stays on disk while the machine is awake
	// or paused. When its processes end by themselves, it goes on from there.
	// Otherwise it is gone with them.
	GoBack bool

	// From is a directory made by Snapshot, which a boot goes on from on another
	// machine, and Receive on the same one; nobody else asks. Without one the guest runs
	// its first process.
	From string
}

// Volume is a directory of the host in a guest.
type Volume struct {
	Source   string // on the host; it may differ from one wake to the next
	Path     string // in the guest
	ReadOnly bool   // the guest may not change it, not even as root
}

// AgentDir is where the agent is mounted in every machine.
const AgentDir = "/.doze"

// LogDir is a file system of its own in every machine, for what its processes
// print: the agent's default.
const LogDir = "/var/log/doze"

// Stats is what a machine costs now.
type Stats struct {
	MemoryBytes int64 // in RAM, without what the kernel can drop
	SwapBytes   int64 // in the host's swap
	DiskBytes   int64 // of the checkpoint, without the disk of the machine
	// StorageBytes is what the disk of the machine has. Blocks that it shares with others count.
	StorageBytes int64
	// By kind, as far as the kernel and the driver tell: GuestBytes are memory of the
	// guest's processes and files, EngineBytes that of the engine itself, and CacheBytes
	// files that the kernel can drop, which are not in MemoryBytes.
	GuestBytes, EngineBytes, CacheBytes int64
	// CPUTime is the time of processors that its processes used since they began: the
	// engine's own is in it. It starts again from zero with each wake from OnDisk.
	CPUTime time.Duration
}

// Event is something that happened to a machine by itself.
type Event struct {
	ID string
	// Exited says that the machine ended. Otherwise it goes on. A machine that
	// ends in a tier that is Checkpointed is OnDisk then, which is no event: nothing
	// is lost.
	Exited bool
	// OutOfMemory says that the memory limit made the kernel kill processes in
	// it, or the whole machine if Exited.
	OutOfMemory bool
	Message     string // public: one clause
}

// A Machine is one virtual machine or container. Its methods are called by one
// goroutine at a time, except Tier, Ready, WentBack, Dial and Stats, which are safe at any time.
type Machine interface {
	// Tier returns where the machine's memory is.
	Tier() Tier
	// Suspend moves the machine down to a tier. If it cannot, the error says why,
	// nothing is lost, and the machine is in a tier between the old and the wanted one.
	// The end of ctx has the same effect. Open connections sleep with the machine, but
	// for those over its link when it wakes from OnDisk: they are closed in it. Bytes
	// that arrive while it is saved may be acknowledged and forgotten: callers must not
	// wait for an answer meanwhile. A machine that is OnDisk already gives up the
	// process that waits for its next wake. A checkpoint does not have the changes that
	// processes made to the network inside. A caller that needs these suspends no
	// further than Paused, and makes no copy.
	Suspend(ctx context.Context, to Tier) error
	// Resume makes the machine run exactly where it stopped, from any tier.
	// If it cannot, the tier and the checkpoint are as before.
	Resume(ctx context.Context) error
	// Precopy copies the memory of an awake machine while it runs. The next Snapshot or
	// Renew then has to copy only what was written to since, and the machine stands still
	// for less time. What Precopy copied is removed by the next of these calls, or when
	// the machine sleeps. It does nothing for a machine that is not awake. An error
	// changes nothing but that.
	Precopy(ctx context.Context) error
	// Snapshot makes a copy of the machine as it is now, for others to start from:
	// a directory that does not exist yet and is complete when Snapshot returns. An
	// awake machine stands still for a part of that time, and Snapshot leaves it Paused if it
	// cannot go on. Without an error the tier is as before. The copy lasts
	// after Close, until Discard.
	Snapshot(ctx context.Context, dir string, freeze Freeze) error
	// Renew makes a new last checkpoint of an awake machine that may go back to it, as
	// [Config] says, and the machine goes on. It stands still for about most at most:
	// if that is too short, the error is [ErrTooLong], and the last checkpoint is the one
	// of before. Renew leaves a machine Paused that cannot go on.
	Renew(ctx context.Context, most time.Duration, freeze Freeze) error
	// Rename gives the guest of an awake machine another host name. It keeps
	// that in every sleep, and in copies, whatever their configuration says.
	Rename(ctx context.Context, hostname string) error
	// Administer runs the program of the agent once more in the guest of an awake
	// machine, with arguments and with the power to mount, which nobody else has
	// there. It returns when that process has ended; what it printed is the
	// engine's log.
	Administer(ctx context.Context, args ...string) error
	// Archive writes the difference between the files of an awake machine and its root
	// file system to a file that does not exist yet. The file is a tar of the layer
	// above, with whiteouts, and is complete when Archive returns. Other file systems,
	// such as /tmp, are not in it. The machine stands still meanwhile, as for Snapshot.
	Archive(ctx context.Context, file string) error
	// WentBack returns when the checkpoint was made that the machine went back to,
	// since its processes had ended: see [Config]. What it did after that is lost.
	// It is zero for a machine that lost nothing since it was booted or adopted.
	WentBack() time.Time
	// Ready reports whether the machine is OnDisk and a process waits for its
	// next wake, which it makes faster.
	Ready() bool
	// Dial connects to a TCP port inside.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
	// Stats returns what the machine costs now.
	Stats(ctx context.Context) (Stats, error)
	// Close destroys the machine and its checkpoint. It may be called in any
	// state, more than once.
	Close(ctx context.Context) error
}

// Traits are what a driver can do. Callers ask the traits, and not which driver it is.
type Traits struct {
	// Name is in the configuration of each machine and in its record: [a-z0-9]. A
	// machine is found by the driver that made it, and by no other.
	Name string
	// Network says that a checkpoint has what processes inside changed of their
	// network: links, addresses, routes, rules and namespaces. Without it, a machine
	// that has something of that sleeps in memory only, and is not copied.
	Network bool
	// Swap says that a machine can be Swapped.
	Swap bool
	// Copies says that Snapshot makes copies that boots go on from.
	Copies bool
	// Directories says that volumes are directories of the host.
	Directories bool
	// Disks says that a machine can have a disk.
	Disks bool
	// Overhead is how many bytes the engine of a machine may take besides the memory
	// of its guest.
	Overhead int64
}

// A Driver makes machines.
type Driver interface {
	// Traits returns what it can do, which never changes.
	Traits() Traits
	// Boot starts a new machine; its first process runs when Boot returns. On
	// an error nothing of the machine is left. One that starts from a copy
	// needs the same Root, Agent, Args, Memory, Disk, IPTables, Tun and Containers as the machine that was
	// copied. It gets the memory, processes and files of it, in which the host
	// name (see Rename), the network and the clock are its own and the
	// environment is not. If the machine had Volumes, this one needs as many, at the same
	// paths. The caller sees to it that their files are those of the moment of the copy.
	// Connections of the copied machine are closed in it.
	Boot(ctx context.Context, c Config) (Machine, error)
	// Receive makes the copy in c.From the checkpoint of the machine that was copied, on
	// this host or another one. It takes the place of an older one. The machine is OnDisk then, and
	// wakes from the copy with its memory, processes and files. The network is that of
	// c. What Boot says of copies holds here, too. The caller has written the copy
	// just now and compared it with what was saved. The machine has no processes. An error
	// leaves the older checkpoint, if there is one, or nothing.
	Receive(ctx context.Context, c Config) (Machine, error)
	// Adopt finds a machine that an earlier process booted, in the tier it is in, and
	// repairs what a crash left half done. If its processes have ended and its
	// configuration allows that, it goes back to its last checkpoint and is OnDisk. It
	// returns [ErrGone] if there is nothing to adopt.
	Adopt(ctx context.Context, c Config) (Machine, error)
	// Sweep destroys every machine for whose id live is false.
	Sweep(ctx context.Context, live func(id string) bool) error
	// Discard removes a copy that Snapshot made, or began to make. It is no error
	// if there is none. Machines that started from it are not touched.
	Discard(dir string) error
	// Events returns what happens to machines from now on, until ctx ends.
	Events(ctx context.Context) (<-chan Event, error)
}
