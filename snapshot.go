package doze

// SnapshotsMax bounds the snapshots of a workspace: each may take as much disk
// as its sandbox has memory.
const SnapshotsMax = 1000

// SnapshotStatus says whether a snapshot can be used.
type SnapshotStatus string

// The statuses of a snapshot. One that failed stays until it is deleted, and
// does not hold its name.
const (
	SnapshotPending SnapshotStatus = "pending"
	SnapshotReady   SnapshotStatus = "ready"
	SnapshotFailed  SnapshotStatus = "failed"
)

// Snapshot is a sandbox as it was at one moment: memory, processes and files.
// It outlives the sandbox. All of it but the name is set by the system.
type Snapshot struct {
	ID          string         `json:"id"`
	Name        string         `json:"name"` // unique among those of the sandbox
	Status      SnapshotStatus `json:"status"`
	Message     string         `json:"message,omitempty"` // why it failed
	Workspace   string         `json:"workspace"`
	CreatedAt   Time           `json:"createdAt,omitzero"`
	CreatedBy   string         `json:"createdBy,omitempty"`
	SandboxName string         `json:"sandboxName"`
	Source      SnapshotSource `json:"source"`
	Spec        SnapshotSpec   `json:"spec"`
	Bytes       int64          `json:"bytes,omitempty"` // on disk, once it is ready
}

// SnapshotSource is what a snapshot was taken of.
type SnapshotSource struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`    // [KindSandbox], which a request may leave out
	Deleted bool   `json:"deleted"` // the sandbox is gone
}

// SnapshotSpec is the machine that a snapshot needs. Every fork has the same.
type SnapshotSpec struct {
	Generation string             `json:"generation"`
	Image      string             `json:"image"`
	Memory     Megabytes          `json:"memory"`
	Ports      []Port             `json:"ports,omitempty"`
	Region     string             `json:"region"`
	Storage    Megabytes          `json:"storage,omitempty"`
	Volumes    []VolumeAttachment `json:"volumes,omitempty"`
}

// What a snapshot is taken of, and what a fork of it may become.
const (
	KindSandbox     = "sandbox"
	KindApplication = "application"
)

// SnapshotRequest asks for a snapshot. Below the path of a sandbox it has no
// source.
type SnapshotRequest struct {
	Name   string         `json:"name,omitempty"` // generated, if it is empty
	Source SnapshotSource `json:"source,omitzero"`
}

// ForkRequest asks for a new sandbox that goes on where another one is, or was
// when a snapshot was taken.
type ForkRequest struct {
	TargetName string    `json:"targetName"`
	TargetType string    `json:"targetType"`           // [KindSandbox], or [KindApplication]
	SnapshotID string    `json:"snapshotId,omitempty"` // empty: the sandbox as it is now
	Envs       []Env     `json:"envs,omitempty"`       // over those of the source
	Memory     Megabytes `json:"memory,omitempty"`     // 0, or that of the snapshot

	// Of applications alone.
	Port         int    `json:"port,omitempty"`
	Traffic      int    `json:"traffic,omitempty"`
	CustomDomain string `json:"customDomain,omitempty"`
	Prefix       string `json:"prefix,omitempty"`
}

// Check adds the mistakes of a request to fork a snapshot of spec.
func (f *ForkRequest) Check(p *Problems, spec SnapshotSpec) {
	CheckName(p, "targetName", f.TargetName)
	if f.TargetType != KindSandbox && f.TargetType != KindApplication {
		p.Add("targetType", "is %q; it must be %s", clip(f.TargetType), KindSandbox)
	}
	if f.Memory != 0 && f.Memory != spec.Memory {
		p.Add("memory", "is %d; it must be left out or %d: a fork goes on in the memory of the snapshot", f.Memory, spec.Memory)
	}
	for field, set := range map[string]bool{
		"port": f.Port != 0, "traffic": f.Traffic != 0, "customDomain": f.CustomDomain != "", "prefix": f.Prefix != "",
	} {
		if set && f.TargetType != KindApplication {
			p.Add(field, "is for applications only: leave it out, and create a preview of the sandbox")
		}
	}
}

// ForkResponse says what a fork made.
type ForkResponse struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	SnapshotID string `json:"snapshotId"`
}

// Origin is what a sandbox was forked from, as it was then. The snapshot and its sandbox may
// be gone, and another sandbox may have that name.
type Origin struct {
	SandboxName  string `json:"sandboxName"`
	SnapshotID   string `json:"snapshotId"`
	SnapshotName string `json:"snapshotName"`
}

// RestoreResponse says what a sandbox was put back to.
type RestoreResponse struct {
	Name       string `json:"name"`
	SnapshotID string `json:"snapshotId"`
}

// Archive describes the files of a sandbox that is archived, or was. It is the
// Sandbox.archive of the public API.
type Archive struct {
	Key              string     `json:"key,omitempty"`
	Generation       string     `json:"generation,omitempty"`
	StartedAt        Time       `json:"startedAt,omitzero"`
	CreatedAt        Time       `json:"createdAt,omitzero"` // when it was complete
	Size             int64      `json:"size,omitempty"`     // bytes
	RestoreStartedAt Time       `json:"restoreStartedAt,omitzero"`
	Restore          *Unarchive `json:"restore,omitempty"`
}

// RestoreState is how far the way back out of an archive is.
type RestoreState string

// The states of the way back.
const (
	RestoreExtracting RestoreState = "extracting"
	RestoreSucceeded  RestoreState = "succeeded"
	RestoreFailed     RestoreState = "failed"
)

// Unarchive is the way back out of an archive.
type Unarchive struct {
	State         RestoreState `json:"state"`
	RestoredBytes int64        `json:"restoredBytes"`
	TotalBytes    int64        `json:"totalBytes"`
}
