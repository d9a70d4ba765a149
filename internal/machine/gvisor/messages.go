package gvisor

import (
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/trace"
)

// What the node and a launcher say to each other: JSON over HTTP on a unix
// socket that only root can open. An answer other than 200 has the body
// [Failure].
const (
	PathVersion    = "/version"    // GET: Version
	PathMachines   = "/machines"   // GET: []Found; with a QueryID, of that machine only
	PathEvents     = "/events"     // GET: machine.Event, one per line, until the caller leaves
	PathLimit      = "/limit"      // POST Ceiling
	PathBoot       = "/boot"       // POST Boot: Timed
	PathPrepare    = "/prepare"    // POST Boot: Timed; creates the process that Restore will fill
	PathPause      = "/pause"      // POST Target
	PathResume     = "/resume"     // POST Target: Timed
	PathCheckpoint = "/checkpoint" // POST Checkpoint: Made; until the caller closes its half of the connection
	PathFinish     = "/finish"     // POST Target: Made; the rest of a checkpoint of a machine that runs on, until the caller closes its half of the connection
	PathWatch      = "/watch"      // POST Target; the engine of a machine that is awake notes from now on which memory is touched
	PathPrecopy    = "/precopy"    // POST Precopy: Made; until the caller closes its half of the connection
	PathReclaim    = "/reclaim"    // POST Target: Reclaimed; moves the memory of a paused machine to swap, until the caller leaves
	PathRestore    = "/restore"    // POST Restore: Timed
	PathArchive    = "/archive"    // POST Archive
	PathRename     = "/rename"     // POST Rename
	PathAdminister = "/administer" // POST Administer
	PathLoaded     = "/loaded"     // POST Target: waits until all memory is loaded
	PathStats      = "/stats"      // POST Target: machine.Stats
	PathKill       = "/kill"       // POST Target; also for a machine that is not there
)

// QueryID is the parameter of a query that names a machine.
const QueryID = "id"

// Version says what a launcher is.
type Version struct {
	Engine string `json:"engine"` // checkpoints are readable by the same engine only
	PID    int    `json:"pid"`
	// Volumes says that it mounts those of a [Config]. An older build of the same
	// version, which may run still, does not.
	Volumes bool `json:"volumes"`
	// Disks says the same of a disk.
	Disks bool `json:"disks"`
}

// Config is what a launcher needs to run a machine.
type Config = machine.Config

// Event is what a launcher tells about a machine.
type Event = machine.Event

// Stats is what a machine costs.
type Stats = machine.Stats

// Timed says how long the stages of a call took. An older launcher says nothing.
type Timed = trace.Parts

// States of a machine in a launcher.
const (
	StateCreated = "created"
	StateRunning = "running"
	StatePaused  = "paused"
	StateSwapped = "swapped" // paused, and its memory was moved to swap
)

// Ceiling bounds all machines together, those of other launchers with the same
// parent of cgroups too. An older build of a launcher does not know the call.
type Ceiling struct {
	Memory int64 `json:"memory"` // bytes
}

// Found is a machine that lives in a launcher.
type Found struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// Boot asks for a new machine.
type Boot struct {
	Config Config `json:"config"`
}

// Target names a machine.
type Target struct {
	ID           string `json:"id"`
	Checkpointed bool   `json:"kept,omitempty"` // of Resume: a complete checkpoint is on disk
}

// Reclaimed tells where a machine's memory is now, in bytes.
type Reclaimed struct {
	Left  int64 `json:"left"`  // in RAM
	Moved int64 `json:"moved"` // in swap
}

// Checkpoint asks for a checkpoint of a paused machine, which stays paused.
type Checkpoint struct {
	ID string `json:"id"`
	// Dir is a directory with nothing in it but, perhaps, a file of pages that
	// an earlier checkpoint of the machine wrote in part.
	Dir string `json:"dir"`
	// Layers says that the caller knows of [checkpoint.Index]. To one that does not, a checkpoint
	// would look like one without memory.
	Layers bool `json:"layers"`
	// Base is an earlier checkpoint of the machine, whose memory the new one shares
	// where it is the same. An older launcher shares nothing.
	Base *Base `json:"base,omitempty"`
	// Yields says that nobody waits for the checkpoint: until the call ends early, all
	// others come first. An older launcher treats it as any other.
	Yields bool `json:"yields,omitempty"`
	// Counted says that the engine counted its memory a moment ago, for [Precopy]. An
	// older launcher lets it count again.
	Counted bool `json:"counted,omitempty"`
	// Runs says that the machine is to go on as soon as it can. Then Made says whether its
	// memory was copied. An older launcher copies it in this call.
	Runs bool `json:"runs,omitempty"`
}

// Precopy asks for a copy of the memory of a machine while it runs: an index and
// layers in an empty directory. They are the base of the checkpoint that follows. A
// chunk that the guest writes to meanwhile is copied anyhow, and the checkpoint does
// not share it.
type Precopy struct {
	ID   string `json:"id"`
	Dir  string `json:"dir"`
	Base *Base  `json:"base,omitempty"` // as for a Checkpoint
}

// Base is a checkpoint that another one may share files with.
type Base struct {
	Dir   string          `json:"dir"`
	Index checkpoint.File `json:"index"`
}

// Made says what a checkpoint or a copy wrote. An older launcher says nothing.
type Made struct {
	Files []checkpoint.File `json:"files"` // those whose checksums are known
	// Runs says that the machine may go on. The call PathFinish is to follow soon. It copies the
	// memory as it is now.
	Runs bool `json:"runs,omitempty"`
}

// Rename asks for another host name of a running machine.
type Rename struct {
	ID       string `json:"id"`
	Hostname string `json:"hostname"`
}

// Administer asks for one run of the agent's program in a running machine.
type Administer struct {
	ID   string   `json:"id"`
	Args []string `json:"args"`
}

// Archive asks for the files of a machine, as [machine.Machine] says.
type Archive struct {
	ID   string `json:"id"`
	File string `json:"file"` // must not exist
}

// Restore asks for a machine out of a checkpoint. The machine runs when the call
// returns; its memory may still be loading.
type Restore struct {
	Config Config            `json:"config"`
	Dir    string            `json:"dir"`
	Files  []checkpoint.File `json:"files"` // what must be in Dir
}

// Failure is the body of an error.
type Failure struct {
	Error string `json:"error"`
	Gone  bool   `json:"gone"`  // there is no such machine
	Taken bool   `json:"taken"` // there is such a machine already
	Still bool   `json:"still"` // it was not resumed, and stands still for sure
	Late  bool   `json:"late"`  // what ended the checkpoint was meant for an earlier one
	Lost  bool   `json:"lost"`  // the guest wrote to memory before it was copied
}

// Time limits of the calls. A call that takes longer is taken for hanging: the
// launcher kills the machine's processes, which ends it.
const (
	LimitStart      = 60 * time.Second // boot, prepare, restore
	LimitPause      = 10 * time.Second // pause, resume
	LimitCheckpoint = 10 * time.Minute // a large memory on a slow disk
	LimitKill       = 30 * time.Second
)

// Files of a checkpoint that the engine writes, besides those of [checkpoint].
const (
	FileState    = "checkpoint.img"
	FilePageMeta = "pages_meta.img"
)

// layout is what the engine writes.
var layout = checkpoint.Layout{FileState, FilePageMeta}
