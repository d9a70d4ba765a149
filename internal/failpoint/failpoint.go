// Package failpoint names the steps by which a machine falls asleep and wakes, and
// by which a start takes over what an earlier process left. A test that wants to
// know what a disk that is full or a process that is killed does at each of them
// listens there: see [Reach]. Only a binary that was built with the tag "faults"
// asks it; in all others the calls are empty and the compiler leaves them out.
package failpoint

// Point is one moment of sleep, wake or adoption.
type Point uint8

// The steps, in the order in which a sandbox meets them. A comment says how
// things stand when a step is reached.
const (
	Idle   Point = iota // node: the machine was not told to pause
	Mark                // launcher: no mark says that a pause or a resume is under way
	Turn                // launcher: the engine was not told yet
	Turned              // launcher: the engine did it, no mark says so
	Unmark              // launcher: the marks still say that it is under way
	Slept               // node: the machine is paused, the phase does not say so

	Sink       // node: the machine was not told to go a tier down
	Sweep      // driver: what is left of older checkpoints is there
	Make       // driver: the new checkpoint has no directory
	Checkpoint // driver: the launcher was not asked for a checkpoint
	Share      // launcher: no file of the last checkpoint has a second name in the new one
	Write      // launcher: the engine was not asked for a checkpoint
	Copy       // launcher: the engine named its memory, none of it was copied
	Disk       // launcher: the checkpoint has no file for the disk of the machine
	Clone      // launcher: it has one, with nothing in it
	Index      // launcher: all memory is copied, the index is not written
	Written    // launcher: the checkpoint is written, nobody was told
	Measure    // driver: the checkpoint has no checksums
	Manifest   // driver: the checkpoint has no manifest
	Sync       // driver: one of its files, or its directory, is not on disk
	Publish    // driver: the checkpoint is on disk and does not count
	Published  // driver: the checkpoint counts, and a power failure may undo that
	Vouch      // driver: nobody vouches for the checkpoint
	Push       // launcher: the machine's memory was not moved to swap
	Pushed     // launcher: it was, no mark says so
	Release    // driver: the launcher was not asked to end the processes
	Kill       // launcher: the processes live
	Clear      // launcher: the processes are gone, their run state is there
	Drop       // driver: the processes are gone, the disk that they wrote to is there

	Ahead  // driver: the launcher was not asked for the process of the next wake
	Bundle // launcher: the new machine has no run state
	Group  // launcher: it has no cgroup
	Lay    // launcher: it has no disk, or that of an earlier process
	Laid   // launcher: it has a file for its disk, with nothing in it
	Engine // launcher: it has no process
	Join   // launcher: its process is not in its cgroup
	Link   // launcher: its process has no network

	Called   // node: the machine was not told to resume
	Verify   // driver: a checkpoint for which nobody vouches was not read
	Take     // driver: it is unknown whether a process waits for the checkpoint
	Restore  // driver: the launcher was not asked to load the checkpoint
	Fill     // launcher: the engine was not asked to load it
	Serve    // launcher: the engine asked for a first page of memory
	Filled   // launcher: the guest runs, no mark says so
	Woke     // node: the machine is awake, the phase does not say so
	Lasts    // driver: a loss of power does not undo what says that the machine ran
	Loaded   // driver: the memory is still coming
	Unlimit  // launcher: the memory is there, the processor is not limited
	Retire   // driver: the checkpoint that the machine woke from counts
	Discard  // driver: it does not, and takes its space
	Flush    // launcher: the machine is awake, the host may have what it wrote to its disk in memory only
	Precopy  // launcher: the machine is awake, none of its memory was copied
	Finish   // launcher: the machine is awake, its memory was not copied as it was in its checkpoint
	Renew    // driver: the machine is awake, its new checkpoint is complete, the last one counts
	Adopt    // driver: the launcher was not asked what lives there
	Takeover // launcher: a machine of an earlier launcher was not looked at
	Forget   // driver: machines that nobody knows were not looked for

	count
)

// names is a table: one row for each step.
var names = [count]string{
	Idle: "idle", Mark: "mark", Turn: "turn", Turned: "turned", Unmark: "unmark", Slept: "slept",
	Sink: "sink", Sweep: "sweep", Make: "make", Checkpoint: "checkpoint", Share: "share", Write: "write", Copy: "copy", Disk: "disk", Clone: "clone", Index: "index", Written: "written",
	Measure: "measure", Manifest: "manifest", Sync: "sync", Publish: "publish", Published: "published",
	Vouch: "vouch", Push: "push", Pushed: "pushed", Release: "release", Kill: "kill", Clear: "clear", Drop: "drop",
	Ahead: "ahead", Group: "group", Bundle: "bundle", Lay: "lay", Laid: "laid", Engine: "engine", Join: "join", Link: "link",
	Called: "called", Verify: "verify", Take: "take", Restore: "restore", Fill: "fill", Serve: "serve", Filled: "filled",
	Woke: "woke", Lasts: "lasts", Loaded: "loaded", Unlimit: "unlimit", Retire: "retire", Discard: "discard",
	Flush: "flush", Precopy: "precopy", Finish: "finish", Renew: "renew", Adopt: "adopt", Takeover: "takeover", Forget: "forget",
}

func (s Point) String() string { return names[s] }

// Variable is of the environment: the unix socket on which a test listens. For
// each step it is sent one line, "<step> <machine>", and the machine stands
// still until it answers one: [Go] or [Fail].
const Variable = "DOZE_FAULTS"

// Answers of a test.
const (
	Go   = "go"
	Fail = "fail" // the step does not work, as if a disk were full
)

// All returns every step.
func All() []Point {
	all := make([]Point, count)
	for i := range all {
		all[i] = Point(i)
	}
	return all
}
