// Package fleet is what the roles of a platform say to each other: the orders of
// control to a node, the reports of a node to control, and the directory in which
// the edge finds a sandbox. It is the only package that crosses the boundary
// between two roles. It runs no sandbox and keeps no record.
//
// Its types survive a round trip through JSON, which a test proves field by field.
// They are no public API, and nobody persists them: a record outlives the version
// of a process.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/dozehq/doze"
)

// Order is what control asks a node to run.
type Order struct {
	UID       string // the identity of the sandbox; never reused, safe as a file name
	Name      string // its name, which becomes the host name inside
	Workspace string
	Region    string
	Image     string
	Login     *Login // for the registry of the image, if it needs one
	Memory    doze.Megabytes
	Storage   doze.Megabytes // of its files on disk; 0: they are in memory
	Env       []string       // KEY=value, as the process inside gets them
	Grace     time.Duration
	// IPTables lets root inside change the network and its filter rules, Tun the
	// network and its tun devices. Containers lets it do all that the engine can, so that
	// container engines run inside. They are those of the snapshot in From.
	IPTables, Tun, Containers bool
	// NoEntrypoint leaves out the program of the image, and its health check.
	NoEntrypoint bool
	// Volumes are what it has besides its own files; none if it goes on from a
	// snapshot.
	Volumes []Volume
	// Network is what it may reach and how. Without one it reaches nothing, as
	// after a start of the node until SetNetwork.
	Network *doze.Network
	// Authority names who signs the certificates that the sandbox sees where its
	// requests are looked into. What goes on from a snapshot has that of the
	// snapshot: its processes believe no other one.
	Authority string
	// From is the id of a snapshot that the sandbox goes on from, with its
	// image and memory, whatever else is said here; empty boots the image.
	From string
	// Archived says that its files are in an archive, as far as control knows. Revive alone reads it.
	Archived bool `json:",omitempty"`
	// Epoch is that in which the node gets the sandbox. It grows with each node. A platform of one
	// process has none.
	Epoch uint64 `json:",omitempty"`
}

// ArchiveFile is the file of a copy in the bucket that has the files of an archived sandbox. No
// other copy has it.
const ArchiveFile = "files.tar"

// Issuer is the authority of a sandbox. Those from before each had its own have
// that of their workspace.
func (o *Order) Issuer() string { return cmp.Or(o.Authority, o.Workspace) }

// ChangesNetwork reports whether root inside may change what a checkpoint does not carry.
func (o *Order) ChangesNetwork() bool { return o.IPTables || o.Tun || o.Containers }

// Volume is a disk in a sandbox.
type Volume struct {
	ID       string // as MakeVolume got it; empty for one that begins and ends with the machine
	Path     string // where it is in the sandbox
	ReadOnly bool
	Size     doze.Megabytes
	// Epoch grows with each node that gets the volume. A node that has it in an earlier one
	// takes it from the bucket.
	Epoch uint64 `json:",omitempty"`
}

// Login are credentials for the registry of an image. What a node pulls with
// them is for their workspace alone.
type Login struct {
	Workspace          string
	Username, Password string
}

// SecretPlace is the place that secrets of routing rules of a workspace are
// sealed for.
func SecretPlace(workspace string) string { return "routing/" + workspace }

// Pinned is an image of a registry that a node has.
type Pinned struct {
	Ref    string // by its digest
	Bytes  int64  // that it takes
	Config doze.ImageConfig
}

// Status is what a node knows about a sandbox at this moment.
type Status struct {
	Phase    doze.Phase
	Tier     string    // as machine.Tier names it; empty before the first boot
	LastUsed time.Time // the end of the last use, or now while InUse
	InUse    bool      // a request, stream, socket or keepAlive process is there
	Setback  *Setback  // the last one; nil if there was none
	// Entrypoint is what the image says about its process, and how that was when the
	// sandbox was last awake; nil if the image says nothing.
	Entrypoint *doze.Entrypoint
}

// Setback is a return of a sandbox to its last checkpoint, since its processes had
// ended. What it did after the checkpoint is lost.
type Setback struct {
	Checkpoint time.Time `json:"checkpoint"` // when it was made
	At         time.Time `json:"at"`         // when the sandbox went back
}

// Report is one transition of a sandbox, from the node that made it.
type Report struct {
	UID     string
	Seq     uint64 // grows per sandbox, over restarts too
	Phase   doze.Phase
	Message string // public: why, in one clause; may be empty
	At      time.Time
	// LastUsed is as in Status, which a node does not have for a sandbox that is gone.
	LastUsed time.Time
	// Note says that the phase did not change: something happened in it, such
	// as a process that ran out of memory.
	Note bool
}

// ErrStopping is the end of an order because its node stops. What was begun goes
// on when the order is repeated after the next start.
var ErrStopping = doze.Errorf(doze.Unavailable, "the node is shutting down")

// ErrNoNode is for what nobody can do before a node has joined.
var ErrNoNode error = doze.Errorf(doze.Unavailable, "no node has joined since the control role started: start the node role, or try again in a moment")

// ErrFull is in the error of an order that a node refuses because its memory is reserved
// for others. It is also there if the node does not reach the bucket. Nothing has begun, and
// another node may have room.
var ErrFull = errors.New("the memory of the node is reserved for others")

// ErrMoved is in the error about a sandbox that is not on the node: it was never there, or
// another node has it now.
var ErrMoved = errors.New("the sandbox is not on this node")

// Node is what control asks of a process that runs sandboxes. Every call may
// be repeated: a second one finds the work done.
type Node interface {
	Builder

	// CheckImage returns an Invalid error with the name INVALID_IMAGE for a
	// reference that can never be run here. It makes or pulls nothing.
	CheckImage(ctx context.Context, ref string) error
	// FetchImage has the image of a reference here, as Create would: pulled, if it
	// is not there yet. login may be nil.
	FetchImage(ctx context.Context, ref string, login *Login) error
	// PinImage asks a registry what a reference means now, pulls that, and
	// returns it. login may be nil.
	PinImage(ctx context.Context, ref string, login *Login) (Pinned, error)
	// ReleaseImage says that the record of an image is gone, by the reference that
	// PinImage returned. Without sandboxes, snapshots and other records that need it,
	// the image is removed soon.
	ReleaseImage(ctx context.Context, ref string) error
	// Create boots a sandbox and returns when its agent answers. On an error
	// nothing of it is left.
	Create(ctx context.Context, o Order) error
	// Delete ends a sandbox in any state and returns when nothing of it is
	// left. One that is not there is no error.
	Delete(ctx context.Context, uid string) error
	// Disable puts a sandbox to sleep on disk and refuses to wake it.
	Disable(ctx context.Context, uid string) error
	// Enable lets the next request wake a disabled sandbox.
	Enable(ctx context.Context, uid string) error
	// Snapshot keeps a sandbox as it is now, under an id that is never reused
	// and safe as a file name, and returns how many bytes that takes. One that
	// runs stands still meanwhile, and requests to it wait; one that sleeps is
	// not woken. The snapshot outlives the sandbox. On an error nothing of the
	// snapshot is left.
	Snapshot(ctx context.Context, uid, id string) (bytes int64, err error)
	// DropSnapshot removes a snapshot. One that is not there is no error. What
	// was made of it runs on.
	DropSnapshot(ctx context.Context, id string) error
	// Snapshots returns the bytes of every complete snapshot, by id.
	Snapshots(ctx context.Context) (map[string]int64, error)
	// Archive puts the files of a sandbox that differ from its image into an
	// archive, ends the sandbox, and returns the bytes of the archive: all that
	// is left of it. One that sleeps is woken for that; its processes get the
	// grace period to end, and those that were started by requests are noted.
	// On an error it runs, or sleeps, on: processes that had ended by then are
	// started again.
	Archive(ctx context.Context, uid string) (bytes int64, err error)
	// Unarchive boots an archived sandbox on its image with the files of the
	// archive, starts the noted processes again, and returns when that is done.
	// Of the order, variables count; image and memory are those that the
	// archive belongs to. On an error the archive is as it was.
	Unarchive(ctx context.Context, o Order) error
	// MakeVolume makes a disk under an id that is never reused and safe as a file
	// name. It is empty, or has the content of another one, which must not be larger.
	// One that is there is left as it is.
	MakeVolume(ctx context.Context, id string, size doze.Megabytes, from string) error
	// ImportVolume makes a disk with the files of a tar, and returns how many
	// bytes they have. What must not be in it, or does not fit, is Invalid or
	// TooLarge, and leaves nothing.
	ImportVolume(ctx context.Context, id string, size doze.Megabytes, archive io.Reader) (bytes int64, err error)
	// ResizeVolume makes a disk larger for the next machine that gets it.
	ResizeVolume(ctx context.Context, id string, size doze.Megabytes) error
	// DropVolume removes a disk that no machine has. One that is not there is no
	// error.
	DropVolume(ctx context.Context, id string) error
	// Volumes returns the ids of all disks that were made here.
	Volumes(ctx context.Context) ([]string, error)
	// Usage returns what is on the disk of the node. It is measured in the
	// background about once a minute: a call costs nothing, and the answer may be
	// that old.
	Usage(ctx context.Context) (Usage, error)
	// SetGrace changes how long the processes of a sandbox get to end by
	// themselves, until the next start of the node. One that is not there is no
	// error.
	SetGrace(ctx context.Context, uid string, grace time.Duration) error
	// SetNetwork has the rules of a network obeyed from now on, without a restart,
	// and ends connections that they do not allow any more.
	SetNetwork(ctx context.Context, uid string, network *doze.Network) error
	// MountDrive puts a part of a drive into a sandbox, which wakes, and returns
	// how it is there. The same part at the same path again changes nothing;
	// a path that has something else is a Conflict.
	MountDrive(ctx context.Context, uid string, m DriveMount) (DriveMount, error)
	// UnmountDrive takes a drive away from a path, with all that was written in
	// the bucket. If it cannot, the drive stays.
	UnmountDrive(ctx context.Context, uid, path string) error
	// DriveMounts returns what is mounted in a sandbox: nothing in one that is not
	// there.
	DriveMounts(ctx context.Context, uid string) ([]DriveMount, error)
	// DriveUsers returns the UIDs of the sandboxes that have a drive mounted.
	DriveUsers(ctx context.Context, drive string) ([]string, error)
	// SetLimits sets the limits of a workspace that are about what is awake; the
	// empty one stands for all that have none of their own. What is awake stays so.
	SetLimits(ctx context.Context, workspace string, l doze.Limits) error
	// Claim has the machine of an order count as awake from now on, as Create
	// would, and fails if its workspace may not have more awake. The machine
	// instead, which may be empty, is about to be given up and does not count
	// here. Delete takes it back.
	Claim(ctx context.Context, o Order, instead string) error
	// Awake returns what of a workspace is awake.
	Awake(ctx context.Context, workspace string) (Awake, error)
	// Statuses returns what is known now of some sandboxes, by UID. One that is not
	// in the answer is not on the node. An error says nothing about any of them.
	Statuses(ctx context.Context, uids []string) (map[string]Status, error)
	// Traces returns where the time of the last wakes of a sandbox and of its create
	// went, the newest first. They are in memory: a start of the node forgets them.
	Traces(ctx context.Context, uid string) ([]doze.Trace, error)
	// Egress returns where a sandbox connected to of late, and what it was refused. It is
	// in memory: a start of the node forgets it. The node knows nothing of a sandbox that is
	// not there.
	Egress(ctx context.Context, uid string) (doze.EgressSummary, error)
	// Consumption returns what some sandboxes take now and have done, by UID. One that
	// is not in the answer is not on the node. None is woken, and what an agent knows
	// is not in it.
	Consumption(ctx context.Context, uids []string) (map[string]doze.Usage, error)
	// Logs returns lines of the logs of sandboxes, which outlive these. What a running
	// one has just written is there; none is woken.
	Logs(ctx context.Context, q LogQuery) (LogPage, error)
	// EndLogs adds the events of sandboxes to their logs: their records are about to be
	// deleted.
	EndLogs(ctx context.Context, all []EndedLog) error
	// DropLogs removes the logs of a workspace.
	DropLogs(ctx context.Context, workspace string) error
	// Sleep pauses a sandbox now and, if deep is set, moves it to disk. One that somebody
	// uses is a Conflict, which says why. Processes that compute are no use. The next
	// request wakes the sandbox.
	Sleep(ctx context.Context, uid string, deep bool) error
	// Wake wakes a sandbox, as a request does, and returns when it runs.
	Wake(ctx context.Context, uid string) error
	// Consult brings what Statuses says of the use of a sandbox up to date: one that
	// is awake is asked for its keepAlive processes. None is woken.
	Consult(ctx context.Context, uid string) error
	Mover

	// Retire lets no request into a sandbox any more that is not in use, and was
	// not since a moment, and reports whether. It does not wait, and does as
	// asked for one that is not there. Reinstate takes it back.
	Retire(ctx context.Context, uid string, since time.Time) (bool, error)
	Reinstate(ctx context.Context, uid string) error
}

// Mover is what control asks of a node about sandboxes that go to another node, or come
// from one: a part of [Node].
type Mover interface {
	// Depart waits until nobody is in the middle of a request to a sandbox, while new ones enter. It
	// has them wait then, and puts the sandbox to sleep. When it returns, the bucket has the sandbox as it is, and it does not wake. Leave
	// or Return ends that. An error changes nothing. A platform without a bucket is
	// Unsupported; a sandbox that cannot be copied is a Conflict.
	Depart(ctx context.Context, uid string) error
	// Return takes back what Depart did. One that is not there is no error.
	Return(ctx context.Context, uid string) error
	// Leave removes a sandbox that another node has. Requests that waited have ErrMoved in their errors.
	// One that is not there is no error.
	Leave(ctx context.Context, uid string) error
	// Revive gives a node a sandbox that another one had. It sleeps in what the bucket has of
	// it, and wakes with memory and processes when somebody asks for it, or soon if it ran. Revive
	// returns when the copy was made. used is when the sandbox was used last, as far as that is
	// known. What it did after the copy is lost, and its owner hears of that. One that is here
	// is no error. If the bucket has an archive of it, it is archived then. If control does not know
	// of that, it comes out of the archive at once. One of which the bucket has nothing is NotFound. So is one that would
	// lose something on a node whose sandboxes do not go back.
	Revive(ctx context.Context, o Order, used time.Time, ran bool) (made time.Time, err error)
	// SaveVolume has the bucket have a volume that no sandbox has, as it is. One that is in use
	// is Unavailable; a platform without a bucket is Unsupported. One that neither the node nor
	// the bucket has is NotFound.
	SaveVolume(ctx context.Context, id string) error
	// SaveSnapshot has the bucket have a snapshot. A platform without a bucket is Unsupported.
	// One that neither the node nor the bucket has is NotFound.
	SaveSnapshot(ctx context.Context, id string) error
	// SaveBuilt has the bucket have an image that was built or loaded, by its reference. A platform
	// without a bucket is Unsupported. One that neither the node nor the bucket has is NotFound.
	SaveBuilt(ctx context.Context, ref string) error
	// LeaveVolume removes a volume that the node has in an earlier epoch: another node has it.
	// One that is not there is no error.
	LeaveVolume(ctx context.Context, id string, epoch uint64) error
}

// Awake is what of a workspace is awake, and what memory that reserves.
type Awake struct {
	Sandboxes int
	Memory    doze.Megabytes
}

// Gate is what the edge asks of a node, and control for schedules.
type Gate interface {
	// Transport carries requests to a port of a sandbox. A request wakes the
	// sandbox, and keeps it awake until the body of its response is closed, or
	// the connection, if the response upgrades it. The scheme and host of a
	// request's URL are ignored; its path is sent byte for byte.
	Transport(uid string, port uint16) http.RoundTripper
}
