package doze

// WakesMax is how many wakes of a sandbox its latencies are of, the newest ones.
const WakesMax = 128

// Tiers that a caller may ask a sandbox to sleep in.
const (
	SleepPaused = "paused" // in memory
	SleepDisk   = "disk"
)

// SandboxUsage is what one sandbox takes of its host, and what it has done.
type SandboxUsage struct {
	Name   string `json:"name"`
	Status string `json:"status"` // as in [Sandbox]
	State  string `json:"state"`  // likewise
	Usage
}

// Usage is what a machine takes now, and what it has done since a moment. A member
// that nobody can measure is 0. Asking for it wakes no sandbox.
type Usage struct {
	MeasuredAt Time `json:"measuredAt"`
	// CountedSince is when the counters of wakes, sleeps and processor time began:
	// with the sandbox, or with the last start of its node.
	CountedSince Time `json:"countedSince"`
	// Tier says where the memory is: awake, paused, saved, swapped or disk. It is
	// empty for a sandbox without a machine.
	Tier      string         `json:"tier"`
	Memory    MemoryUsage    `json:"memory"`
	Processor ProcessorUsage `json:"processor"`
	Disk      DiskUsage      `json:"disk"`
	Network   NetworkUsage   `json:"network"`
	Wakes     WakeUsage      `json:"wakes"`
	Sleeps    int64          `json:"sleeps"` // pauses
	// LastWake is the trace of the last wake; nil if none is remembered.
	LastWake *Trace `json:"lastWake,omitempty"`
}

// MemoryUsage is in bytes.
type MemoryUsage struct {
	ResidentBytes int64 `json:"residentBytes"` // in RAM, with the engine's own, without what the kernel can drop
	GuestBytes    int64 `json:"guestBytes"`    // of these, for processes and files of the sandbox
	EngineBytes   int64 `json:"engineBytes"`   // of these, for the engine itself
	CacheBytes    int64 `json:"cacheBytes"`    // of files on a disk, which the kernel can drop; not among them
	SwapBytes     int64 `json:"swapBytes"`     // in the swap of the host
	LimitBytes    int64 `json:"limitBytes"`    // that the sandbox may use, without the engine's own
}

// ProcessorUsage is the time of processors that processes and engine took.
type ProcessorUsage struct {
	Seconds float64 `json:"seconds"`
	Limit   float64 `json:"limit"` // processors that the sandbox may use at a time
}

// DiskUsage is in bytes of allocated blocks. It is measured about once a minute, but
// for the checkpoint and the storage.
type DiskUsage struct {
	CheckpointBytes int64 `json:"checkpointBytes"` // of the memory of a sandbox that sleeps, and of files in it
	// StorageBytes is what its files take, if they are on disk. Blocks that they share with
	// snapshots and forks count. StorageLimitBytes is what they may take.
	StorageBytes      int64 `json:"storageBytes"`
	StorageLimitBytes int64 `json:"storageLimitBytes"`
	ScratchBytes      int64 `json:"scratchBytes"` // of its ephemeral volumes
	VolumeBytes       int64 `json:"volumeBytes"`  // of its persistent volumes
	DriveBytes        int64 `json:"driveBytes"`   // of files on their way to drives
	ArchiveBytes      int64 `json:"archiveBytes"`
}

// NetworkUsage counts the bytes on the link of a sandbox, requests to it included. The
// count begins with the sandbox, and again after a start of the host.
type NetworkUsage struct {
	ReceivedBytes int64 `json:"receivedBytes"`
	SentBytes     int64 `json:"sentBytes"`
}

// WakeUsage counts wakes, and says how long requests waited for the last
// [WakesMax] of them, in microseconds: 0 without a wake.
type WakeUsage struct {
	Count    int64 `json:"count"`
	Failures int64 `json:"failures"`
	P50Us    int64 `json:"p50Us"`
	P99Us    int64 `json:"p99Us"`
	LastUs   int64 `json:"lastUs"`
}
