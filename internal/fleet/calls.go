package fleet

import (
	"context"
	"time"

	"github.com/dozehq/doze"
)

// arguments are those of every call. Each call takes a few of them.
type arguments struct {
	UID       string         `json:",omitempty"`
	UIDs      []string       `json:",omitempty"`
	ID        string         `json:",omitempty"`
	From      string         `json:",omitempty"`
	Ref       string         `json:",omitempty"`
	Path      string         `json:",omitempty"`
	Deep      bool           `json:",omitempty"`
	Drive     string         `json:",omitempty"`
	Workspace string         `json:",omitempty"`
	Instead   string         `json:",omitempty"`
	Login     *Login         `json:",omitempty"`
	Order     Order          `json:",omitzero"`
	Network   *Network       `json:",omitempty"`
	Mount     DriveMount     `json:",omitzero"`
	Limits    doze.Limits    `json:",omitempty"`
	Size      doze.Megabytes `json:",omitempty"`
	Grace     time.Duration  `json:",omitempty"`
	Since     time.Time      `json:",omitzero"`
	Used      time.Time      `json:",omitzero"`
	Ran       bool           `json:",omitempty"`
	Epoch     uint64         `json:",omitempty"`
	Query     LogQuery       `json:",omitzero"`
	Ended     []EndedLog     `json:",omitempty"`

	Node    NodeInfo          `json:",omitzero"`
	Held    map[string]Held   `json:",omitempty"`
	Renewal Renewal           `json:",omitzero"`
	Reports []Report          `json:",omitempty"`
	Bytes   map[string]uint64 `json:",omitempty"` // by workspace
	Request []byte            `json:",omitempty"` // for a certificate
}

// nothing is the answer of a call that returns an error alone.
type nothing struct{}

// calls is the table of what a [Client] asks and a [Server] does: one row for each
// method of [Node], but for those in streams.
var calls = map[string]func(ctx context.Context, n Node, in *arguments) (any, error){
	"DropBuilder": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.DropBuilder(ctx, in.ID)
	},
	"Builders": func(ctx context.Context, n Node, _ *arguments) (any, error) { return n.Builders(ctx) },
	"CheckImage": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.CheckImage(ctx, in.Ref)
	},
	"FetchImage": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.FetchImage(ctx, in.Ref, in.Login)
	},
	"PinImage": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return n.PinImage(ctx, in.Ref, in.Login)
	},
	"ReleaseImage": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.ReleaseImage(ctx, in.Ref)
	},
	"Create": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.Create(ctx, in.Order)
	},
	"Delete": func(ctx context.Context, n Node, in *arguments) (any, error) { return nothing{}, n.Delete(ctx, in.UID) },
	"Disable": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.Disable(ctx, in.UID)
	},
	"Enable":   func(ctx context.Context, n Node, in *arguments) (any, error) { return nothing{}, n.Enable(ctx, in.UID) },
	"Snapshot": func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Snapshot(ctx, in.UID, in.ID) },
	"DropSnapshot": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.DropSnapshot(ctx, in.ID)
	},
	"Snapshots": func(ctx context.Context, n Node, _ *arguments) (any, error) { return n.Snapshots(ctx) },
	"Archive":   func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Archive(ctx, in.UID) },
	"Unarchive": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.Unarchive(ctx, in.Order)
	},
	"MakeVolume": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.MakeVolume(ctx, in.ID, in.Size, in.From)
	},
	"ResizeVolume": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.ResizeVolume(ctx, in.ID, in.Size)
	},
	"DropVolume": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.DropVolume(ctx, in.ID)
	},
	"Volumes": func(ctx context.Context, n Node, _ *arguments) (any, error) { return n.Volumes(ctx) },
	"Usage":   func(ctx context.Context, n Node, _ *arguments) (any, error) { return n.Usage(ctx) },
	"SetGrace": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.SetGrace(ctx, in.UID, in.Grace)
	},
	"SetNetwork": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.SetNetwork(ctx, in.UID, in.Network.Network())
	},
	"MountDrive": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return n.MountDrive(ctx, in.UID, in.Mount)
	},
	"UnmountDrive": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.UnmountDrive(ctx, in.UID, in.Path)
	},
	"DriveMounts": func(ctx context.Context, n Node, in *arguments) (any, error) { return n.DriveMounts(ctx, in.UID) },
	"DriveUsers":  func(ctx context.Context, n Node, in *arguments) (any, error) { return n.DriveUsers(ctx, in.Drive) },
	"SetLimits": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.SetLimits(ctx, in.Workspace, in.Limits)
	},
	"Claim": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.Claim(ctx, in.Order, in.Instead)
	},
	"Awake":    func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Awake(ctx, in.Workspace) },
	"Statuses": func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Statuses(ctx, in.UIDs) },
	"Traces":   func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Traces(ctx, in.UID) },
	"Egress":   func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Egress(ctx, in.UID) },
	"Consumption": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return n.Consumption(ctx, in.UIDs)
	},
	"Logs": func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Logs(ctx, in.Query) },
	"EndLogs": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.EndLogs(ctx, in.Ended)
	},
	"DropLogs": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.DropLogs(ctx, in.Workspace)
	},
	"Sleep": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.Sleep(ctx, in.UID, in.Deep)
	},
	"Wake": func(ctx context.Context, n Node, in *arguments) (any, error) { return nothing{}, n.Wake(ctx, in.UID) },
	"Consult": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.Consult(ctx, in.UID)
	},
	"Depart": func(ctx context.Context, n Node, in *arguments) (any, error) { return nothing{}, n.Depart(ctx, in.UID) },
	"Return": func(ctx context.Context, n Node, in *arguments) (any, error) { return nothing{}, n.Return(ctx, in.UID) },
	"Leave":  func(ctx context.Context, n Node, in *arguments) (any, error) { return nothing{}, n.Leave(ctx, in.UID) },
	"Revive": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return n.Revive(ctx, in.Order, in.Used, in.Ran)
	},
	"SaveVolume": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.SaveVolume(ctx, in.ID)
	},
	"SaveSnapshot": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.SaveSnapshot(ctx, in.ID)
	},
	"SaveBuilt": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.SaveBuilt(ctx, in.Ref)
	},
	"LeaveVolume": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.LeaveVolume(ctx, in.ID, in.Epoch)
	},
	"Retire": func(ctx context.Context, n Node, in *arguments) (any, error) { return n.Retire(ctx, in.UID, in.Since) },
	"Reinstate": func(ctx context.Context, n Node, in *arguments) (any, error) {
		return nothing{}, n.Reinstate(ctx, in.UID)
	},
}
