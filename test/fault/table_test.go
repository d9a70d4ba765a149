package fault_test

import (
	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/failpoint"
)

// fault is what happens at a step.
type fault uint8

const (
	fail     fault = iota // the step reports an error
	full                  // the disk is full, with data and run state on it
	daemon                // dozed is killed
	launcher              // the launcher is killed
	engine                // the sandbox's own process is killed
)

var faultNames = map[fault]string{fail: "fail", full: "full", daemon: "daemon", launcher: "launcher", engine: "engine"}

// journey is how far a sandbox goes down before it is woken.
type journey string

const (
	paused  journey = "paused"
	saved   journey = "saved"
	swapped journey = "swapped"
	disk    journey = "disk" // with a process that waits for the wake
	back    journey = "back" // as saved, and a crash leads back to the checkpoint that it woke from
	cold    journey = "cold" // with none, and with an image for which nobody vouches
	used    journey = "used" // as back, and its checkpoint is renewed while a request is under way

	// As others, with files on disk.
	filedBack journey = "files back"
	filedUsed journey = "files used"
	filedDisk journey = "files disk" // and a crash leads back to the checkpoint
	filedCold journey = "files cold" // likewise, and the image is vouched for
)

// filed is how many megabytes the files of a sandbox have on disk, by journey. On the
// others they are in memory.
var filed = map[journey]doze.Megabytes{filedBack: 64, filedUsed: 64, filedDisk: 64, filedCold: 64}

// flags of dozed for each journey. A row says what is lost without a checkpoint
// to go back to.
var flags = map[journey][]string{
	paused:  {"--on-crash", "fail", "--swap", "off", "--save-after", "1h", "--disk-after", "2h"},
	saved:   {"--on-crash", "fail", "--swap", "off", "--save-after", "0s", "--disk-after", "1h"},
	back:    {"--swap", "off", "--save-after", "0s", "--disk-after", "1h"},
	used:    {"--swap", "off", "--save-after", "0s", "--disk-after", "1h", "--checkpoint-every", "5s", "--checkpoint-pause", "10s"},
	swapped: {"--on-crash", "fail", "--swap", "host", "--save-after", "0s", "--swap-after", "50ms", "--disk-after", "1h"},
	disk:    {"--on-crash", "fail", "--swap", "off", "--save-after", "0s", "--disk-after", "50ms", "--ready", "1"},
	cold:    {"--on-crash", "fail", "--swap", "off", "--save-after", "0s", "--disk-after", "50ms", "--ready", "0"},

	filedBack: {"--swap", "off", "--save-after", "0s", "--disk-after", "1h"},
	filedUsed: {"--swap", "off", "--save-after", "0s", "--disk-after", "1h", "--checkpoint-every", "5s", "--checkpoint-pause", "10s"},
	filedDisk: {"--swap", "off", "--save-after", "0s", "--disk-after", "50ms", "--ready", "1"},
	filedCold: {"--swap", "off", "--save-after", "0s", "--disk-after", "50ms", "--ready", "0"},
}

// harm is which part of its journey a sandbox is on.
type harm string

const (
	down     harm = "down"     // it falls asleep
	inUse    harm = "in use"   // its checkpoint is renewed
	up       harm = "up"       // a request wakes it
	again    harm = "again"    // dozed was killed while it slept, and starts
	awake    harm = "awake"    // dozed was killed while it was awake, and starts
	succeeds harm = "succeeds" // the launcher was killed while it was awake, and its successor starts
	forks    harm = "forks"    // another one is made of a snapshot of it
	restores harm = "restores" // it is put back to a snapshot
)

// row is a step on a way, and what is done to it there.
type row struct {
	at     failpoint.Point
	on     journey
	harm   harm
	faults []fault
	// passes is how often the step is let pass: some are met several times.
	passes int
	// loses says that there is no complete checkpoint: without its process, the
	// sandbox fails, and says so.
	loses bool
	// rewinds says that the memory comes out of the checkpoint meanwhile: without
	// launcher or process, the sandbox sleeps on from there. With both, the end
	// of the process is noticed at once, or as that of a sandbox that is awake.
	rewinds bool
}

var (
	any5   = []fault{fail, full, daemon, launcher, engine}
	any4   = []fault{fail, daemon, launcher, engine}
	noFail = []fault{daemon, launcher, engine} // nothing can go wrong there but the end of a process
	noOne  = []fault{fail, daemon, launcher}   // there is no engine
	ends   = []fault{daemon, launcher}         // neither

	noOneFull = []fault{fail, full, daemon, launcher} // there is no engine, and something is written
)

// diskSync is how many files of a checkpoint are brought to disk before the disk of the machine.
const diskSync = 4

// rows is every step, at least once.
var rows = []row{
	// It is paused.
	{at: failpoint.Idle, on: paused, harm: down, faults: any4, loses: true},
	{at: failpoint.Mark, on: paused, harm: down, faults: any5, loses: true},
	{at: failpoint.Turn, on: paused, harm: down, faults: noFail, loses: true},
	{at: failpoint.Turned, on: paused, harm: down, faults: noFail, loses: true},
	{at: failpoint.Unmark, on: paused, harm: down, faults: any4, loses: true},
	{at: failpoint.Slept, on: paused, harm: down, faults: noFail, loses: true},

	// Its checkpoint is written.
	{at: failpoint.Sink, on: saved, harm: down, faults: any4, loses: true},
	{at: failpoint.Retire, on: saved, harm: down, faults: any4, loses: true},
	{at: failpoint.Sweep, on: saved, harm: down, faults: any4, loses: true},
	{at: failpoint.Make, on: saved, harm: down, faults: any5, loses: true},
	{at: failpoint.Checkpoint, on: saved, harm: down, faults: any4, loses: true},
	{at: failpoint.Write, on: saved, harm: down, faults: any5, loses: true},
	{at: failpoint.Copy, on: saved, harm: down, faults: any5},
	{at: failpoint.Index, on: saved, harm: down, faults: any5},
	{at: failpoint.Written, on: saved, harm: down, faults: noFail},
	{at: failpoint.Measure, on: saved, harm: down, faults: any4},
	{at: failpoint.Manifest, on: saved, harm: down, faults: any5},
	{at: failpoint.Sync, on: saved, harm: down, faults: any5},
	{at: failpoint.Sync, on: saved, harm: down, passes: 1, faults: noOne},
	{at: failpoint.Sync, on: saved, harm: down, passes: 2, faults: noOne},
	{at: failpoint.Sync, on: saved, harm: down, passes: 3, faults: noOne},
	{at: failpoint.Sync, on: saved, harm: down, passes: 4, faults: noOne},
	{at: failpoint.Sync, on: saved, harm: down, passes: 5, faults: any4},
	{at: failpoint.Publish, on: saved, harm: down, faults: any5},
	{at: failpoint.Published, on: saved, harm: down, faults: any4},
	{at: failpoint.Vouch, on: saved, harm: down, faults: any5},

	// It ends where there is no checkpoint but the last one.
	{at: failpoint.Retire, on: back, harm: up, faults: any4, rewinds: true},
	{at: failpoint.Turned, on: back, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Unmark, on: back, harm: up, faults: any4, rewinds: true},
	{at: failpoint.Discard, on: back, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Idle, on: back, harm: down, faults: any4, rewinds: true},
	{at: failpoint.Slept, on: back, harm: down, faults: noFail, rewinds: true},
	{at: failpoint.Make, on: back, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Share, on: back, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Write, on: back, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Copy, on: back, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Index, on: back, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Sync, on: back, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Publish, on: back, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Published, on: back, harm: down, faults: any4, rewinds: true},

	// Its memory is moved to swap.
	{at: failpoint.Sink, on: swapped, harm: down, passes: 1, faults: any4},
	{at: failpoint.Push, on: swapped, harm: down, faults: any4},
	{at: failpoint.Pushed, on: swapped, harm: down, faults: any5},

	// Its memory is given up, and the process of the next wake is made.
	{at: failpoint.Sink, on: disk, harm: down, passes: 1, faults: any4},
	{at: failpoint.Release, on: disk, harm: down, faults: any4},
	{at: failpoint.Kill, on: disk, harm: down, faults: any4},
	{at: failpoint.Clear, on: disk, harm: down, faults: ends},
	{at: failpoint.Ahead, on: disk, harm: down, faults: ends},
	{at: failpoint.Bundle, on: disk, harm: down, faults: []fault{fail, full, daemon, launcher}},
	{at: failpoint.Group, on: disk, harm: down, faults: noOne},
	{at: failpoint.Engine, on: disk, harm: down, faults: []fault{fail, full, daemon, launcher}},
	{at: failpoint.Join, on: disk, harm: down, faults: any4},
	{at: failpoint.Link, on: disk, harm: down, faults: any4},

	// It wakes from disk.
	{at: failpoint.Called, on: disk, harm: up, faults: any4},
	{at: failpoint.Take, on: disk, harm: up, faults: any4},
	{at: failpoint.Restore, on: disk, harm: up, faults: any5},
	{at: failpoint.Fill, on: disk, harm: up, faults: any4, rewinds: true},
	{at: failpoint.Serve, on: disk, harm: up, faults: any4, rewinds: true},
	{at: failpoint.Filled, on: disk, harm: up, faults: any5, rewinds: true},
	{at: failpoint.Woke, on: disk, harm: up, faults: ends, rewinds: true},
	{at: failpoint.Lasts, on: disk, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Loaded, on: disk, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Unlimit, on: disk, harm: up, faults: ends},
	{at: failpoint.Retire, on: disk, harm: up, faults: any4, loses: true},
	{at: failpoint.Discard, on: disk, harm: up, faults: noFail, loses: true},

	// It wakes from a disk that was somewhere else meanwhile.
	{at: failpoint.Verify, on: cold, harm: up, faults: noOne},
	{at: failpoint.Take, on: cold, harm: up, faults: noOne},
	{at: failpoint.Bundle, on: cold, harm: up, faults: []fault{fail, full, daemon, launcher}},
	{at: failpoint.Group, on: cold, harm: up, faults: noOne},
	{at: failpoint.Engine, on: cold, harm: up, faults: noOne},
	{at: failpoint.Join, on: cold, harm: up, faults: any4},
	{at: failpoint.Link, on: cold, harm: up, faults: any4},
	{at: failpoint.Vouch, on: cold, harm: up, faults: []fault{fail, full, daemon, launcher}},

	// It wakes from memory, and its checkpoint counts no more.
	{at: failpoint.Called, on: saved, harm: up, faults: any4},
	{at: failpoint.Retire, on: saved, harm: up, faults: any4, rewinds: true, loses: true},  // it is turned at the same time
	{at: failpoint.Lasts, on: saved, harm: up, faults: noFail, rewinds: true, loses: true}, // likewise
	{at: failpoint.Mark, on: saved, harm: up, faults: any4, rewinds: true},
	{at: failpoint.Turn, on: saved, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Turned, on: saved, harm: up, faults: noFail, rewinds: true, loses: true},
	{at: failpoint.Unmark, on: saved, harm: up, faults: any4, rewinds: true, loses: true},
	{at: failpoint.Discard, on: saved, harm: up, faults: noFail, loses: true},

	// It wakes from swap, and its checkpoint counts no more.
	{at: failpoint.Called, on: swapped, harm: up, faults: any4},
	{at: failpoint.Retire, on: swapped, harm: up, faults: any4, rewinds: true, loses: true},
	{at: failpoint.Mark, on: swapped, harm: up, faults: any4, rewinds: true},
	{at: failpoint.Turned, on: swapped, harm: up, faults: noFail, rewinds: true, loses: true},

	// It wakes from memory, and there is no checkpoint.
	{at: failpoint.Called, on: paused, harm: up, faults: any4, loses: true},
	{at: failpoint.Mark, on: paused, harm: up, faults: any5, loses: true},
	{at: failpoint.Turn, on: paused, harm: up, faults: noFail, loses: true},
	{at: failpoint.Turned, on: paused, harm: up, faults: noFail, loses: true},
	{at: failpoint.Unmark, on: paused, harm: up, faults: any4, loses: true},
	{at: failpoint.Woke, on: paused, harm: up, faults: noFail, loses: true},

	// It is in use all the time, and its checkpoint is renewed.
	{at: failpoint.Precopy, on: used, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Make, on: used, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Copy, on: used, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Finish, on: used, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Index, on: used, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Publish, on: used, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Renew, on: used, harm: inUse, faults: any5, rewinds: true},

	// Its files are on disk, and a copy of them gets into its checkpoint.
	{at: failpoint.Disk, on: filedBack, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Clone, on: filedBack, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Index, on: filedBack, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Manifest, on: filedBack, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Sync, on: filedBack, harm: down, passes: diskSync, faults: any5, rewinds: true},
	{at: failpoint.Publish, on: filedBack, harm: down, faults: any5, rewinds: true},
	{at: failpoint.Published, on: filedBack, harm: down, faults: any4, rewinds: true},
	{at: failpoint.Turned, on: filedBack, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Discard, on: filedBack, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Flush, on: filedUsed, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Disk, on: filedUsed, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Clone, on: filedUsed, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Finish, on: filedUsed, harm: inUse, faults: any5, rewinds: true},
	{at: failpoint.Renew, on: filedUsed, harm: inUse, faults: any5, rewinds: true},

	// Its files are on disk, and are removed and laid out of its checkpoint.
	{at: failpoint.Release, on: filedDisk, harm: down, faults: any4, rewinds: true},
	{at: failpoint.Drop, on: filedDisk, harm: down, faults: noOne},
	{at: failpoint.Lay, on: filedDisk, harm: down, faults: noOneFull},
	{at: failpoint.Laid, on: filedDisk, harm: down, faults: noOneFull},
	{at: failpoint.Engine, on: filedDisk, harm: down, faults: noOneFull},
	{at: failpoint.Join, on: filedDisk, harm: down, faults: any4},
	{at: failpoint.Take, on: filedDisk, harm: up, faults: any4},
	{at: failpoint.Restore, on: filedDisk, harm: up, faults: any5},
	{at: failpoint.Fill, on: filedDisk, harm: up, faults: any4, rewinds: true},
	{at: failpoint.Filled, on: filedDisk, harm: up, faults: any5, rewinds: true},
	{at: failpoint.Lasts, on: filedDisk, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Loaded, on: filedDisk, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Discard, on: filedDisk, harm: up, faults: noFail, rewinds: true},
	{at: failpoint.Drop, on: filedDisk, harm: again, faults: noOne}, // of the process that waits for the wake
	{at: failpoint.Lay, on: filedCold, harm: up, faults: noOneFull},
	{at: failpoint.Laid, on: filedCold, harm: up, faults: noOneFull},
	{at: failpoint.Engine, on: filedCold, harm: up, faults: noOneFull},
	{at: failpoint.Adopt, on: filedCold, harm: again, faults: noOne},
	{at: failpoint.Adopt, on: filedBack, harm: awake, faults: any4, rewinds: true},
	{at: failpoint.Takeover, on: filedBack, harm: succeeds, faults: noFail, rewinds: true},

	// Copies of it get files on disk of their own.
	{at: failpoint.Lay, on: filedBack, harm: forks, faults: noOneFull, rewinds: true},
	{at: failpoint.Laid, on: filedBack, harm: forks, faults: noOneFull, rewinds: true},
	{at: failpoint.Engine, on: filedBack, harm: forks, faults: noOneFull, rewinds: true},
	{at: failpoint.Filled, on: filedBack, harm: forks, faults: ends, rewinds: true},
	{at: failpoint.Lay, on: filedBack, harm: restores, faults: noOneFull, rewinds: true},
	{at: failpoint.Laid, on: filedBack, harm: restores, faults: noOneFull, rewinds: true},
	{at: failpoint.Engine, on: filedBack, harm: restores, faults: noOneFull, rewinds: true},
	{at: failpoint.Filled, on: filedBack, harm: restores, faults: ends, rewinds: true},
	{at: failpoint.Drop, on: filedBack, harm: restores, faults: noOne, rewinds: true}, // of what it was

	// The next dozed takes it over.
	{at: failpoint.Adopt, on: paused, harm: again, faults: any4, loses: true},
	{at: failpoint.Adopt, on: saved, harm: again, faults: any4},
	{at: failpoint.Sweep, on: saved, harm: again, faults: any4},
	{at: failpoint.Adopt, on: swapped, harm: again, faults: any4},
	{at: failpoint.Adopt, on: cold, harm: again, faults: noOne},
	{at: failpoint.Kill, on: disk, harm: again, faults: any4}, // of the process that waits for the wake
	{at: failpoint.Forget, on: disk, harm: again, faults: noOne},
	{at: failpoint.Adopt, on: paused, harm: awake, faults: any4, loses: true},
	{at: failpoint.Retire, on: saved, harm: awake, faults: any4, loses: true},
	{at: failpoint.Forget, on: paused, harm: awake, faults: any4, loses: true},

	// The next launcher takes it over.
	{at: failpoint.Takeover, on: paused, harm: succeeds, faults: noFail, loses: true},
}
