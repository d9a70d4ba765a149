package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"regexp"
	"time"

	"github.com/dozehq/doze"
)

// NodeInfo is what a node says of itself.
type NodeInfo struct {
	ID          string // of what the node has on its disk; it stays for ever
	Incarnation string // of the process
	URL         string // where the other roles reach it
	Version     string
	Memory      doze.Megabytes // the most that one sandbox can have; 0: any
	Proxy       bool           // sandboxes reach others, by the proxy that obeys their rules
	Unmetered   bool           // sandboxes may send past what counts
	BuildDisk   doze.Megabytes // room for the files of a builder; 0: not known
	SealKey     []byte         // the public key that secrets of routing rules are sealed for
	Driver      string         // as machine.Traits names it
	// Machines are those of its sandboxes, by id. Others may have some of them since.
	Machines []string
	// Held is what it knows of these machines, and of its volumes, by their names in the bucket. A
	// control whose records were restored believes it.
	Held map[string]Held `json:",omitempty"`
	// Leaving are those of them that wait for what a move does next. Control ends that wait if
	// nobody moves them any more.
	Leaving []string
	Leased  bool // as in Renewal
	// Seq is that of the last renewal before: one that comes later than this counts no more.
	Seq uint64
}

// Held is what a node knows of something that it has.
type Held struct {
	// Epoch is that in which the node got it. It is 0 for a machine of which nobody wrote it down.
	Epoch uint64 `json:",omitempty"`
	// Workspace and Name are those of the sandbox. A volume has none.
	Workspace, Name string `json:",omitempty"`
}

// Lease says for how long a node may run its sandboxes.
type Lease struct {
	Epoch uint64
	// TTL is counted from before the node asked. 0 is for ever: nobody else may have what
	// the node has.
	TTL time.Duration
	// Gone are machines that other nodes have, of those that the node named. It ends its
	// own copies before anything of its runs.
	Gone []string
}

// Renewal is what a node says to keep its lease.
type Renewal struct {
	Node, Incarnation string
	Epoch             uint64
	// Seq grows with each renewal of a process: control drops one that comes late.
	Seq uint64
	// Leased says that the node knows of a lease which ends. Others may have what it has only
	// after that.
	Leased bool
	Load   Load
}

// Control is what a node asks of control. Every call may be repeated.
type Control interface {
	// Join says that a process of a node serves. When it returns, control has told the
	// node what the node forgot: limits, networks, grace periods. A node that opens other
	// secrets than those before it is a Conflict.
	Join(ctx context.Context, n NodeInfo) (Lease, error)
	// Reclaim grants a lease to a node whose lease ended while no process of it ran. Nobody
	// can call the node yet: it has to know first what it still has. A node that control does
	// not know has nothing that others could have.
	// held is as in NodeInfo.
	Reclaim(ctx context.Context, node string, machines []string, held map[string]Held) (Lease, error)
	// Renew extends a lease. Before Join, and after others were allowed to have what the node
	// has, it is ErrNotJoined.
	Renew(ctx context.Context, r Renewal) (Lease, error)
	// Record records reports of a node, in their order. When it returns, they outlast a
	// crash. What a node says of machines of other nodes is dropped.
	Record(ctx context.Context, node string, reports []Report) error
	// Claim says with which key a node encrypts what the bucket has of a machine of its, and
	// since which epoch it has the machine. One that another node has is a Conflict. The same
	// holds for a volume, whose name is its VolumeObject. A snapshot is a SnapshotObject. The node
	// that made it may claim it, and one that is about to begin a sandbox from it. An image that was
	// built or loaded is claimed by its reference. Its node may claim it, and one that needs it now.
	Claim(ctx context.Context, node, machine string) (Claim, error)
	// FileKey is the key of a file that many machines share. The name is file- and the SHA-256 of its
	// content, which the bucket does not say. A node that knows it has the file, or may have it.
	FileKey(ctx context.Context, node, name string) ([]byte, error)
	// FileMark is the mark of the upload of such a file that a copy may rely on. Control drops no upload
	// whose mark it gave, unless nothing in the bucket needs it for long after that. Before a copy
	// counts, a node asks again: with another mark, what the copy relies on is gone.
	FileMark(ctx context.Context, node, name string) (string, error)
	// Certify returns the next certificate of a node, in PEM, for a request in DER (PKCS #10).
	// Control signs for the id in the certificate of the caller alone. A certificate without an
	// id, and a node that is not on record, are Forbidden.
	Certify(ctx context.Context, node string, request []byte) ([]byte, error)
	// ImageRefs returns the references of the images that records name.
	ImageRefs(ctx context.Context) ([]string, error)
	// Traffic says what sandboxes of each workspace on a node have sent and received since
	// the process of the node began, in bytes. It returns why those that have used up their
	// quota may send nothing more today. Before Join, it is ErrNotJoined.
	Traffic(ctx context.Context, node, incarnation string, bytes map[string]uint64) (barred map[string]string, err error)
}

// Claim is the right of a node to a machine.
type Claim struct {
	Epoch uint64 // grows with each node that gets the machine
	Key   []byte // of what the bucket has of it
}

// volumeObject begins the names of volumes in the bucket.
const volumeObject = "volume-"

// VolumeForm is the name of a volume in the bucket, with the id of the volume. No machine has such a
// name.
var VolumeForm = regexp.MustCompile(`^` + volumeObject + `([a-z0-9]{1,64})$`)

// VolumeObject is the name of a volume in the bucket.
func VolumeObject(id string) string { return volumeObject + id }

// snapshotObject begins the names of snapshots in the bucket.
const snapshotObject = "snapshot-"

// FileForm is the name of a file in the bucket that many machines share. No machine has
// such a name.
var FileForm = regexp.MustCompile(`^file-[0-9a-f]{64}$`)

// SnapshotForm is the name of a snapshot in the bucket, with the id of the snapshot.
var SnapshotForm = regexp.MustCompile(`^` + snapshotObject + `([a-z0-9]{1,64})$`)

// SnapshotObject is the name of a snapshot in the bucket.
func SnapshotObject(id string) string { return snapshotObject + id }

// ImageForm is the name of an image in the bucket that was built or loaded.
var ImageForm = regexp.MustCompile(`^image-[0-9a-f]{64}$`)

// ImageObject is the name of such an image in the bucket, by its reference.
func ImageObject(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return "image-" + hex.EncodeToString(sum[:])
}

// nameNotJoined is the name of ErrNotJoined on the way.
const nameNotJoined = "NODE_NOT_JOINED"

// ErrNotJoined is for a node that control does not know: one of the two is new.
var ErrNotJoined error = &doze.Error{Kind: doze.Conflict, Name: nameNotJoined, Message: "the node has not joined"}

// isNotJoined tells ErrNotJoined on this side of the way.
func isNotJoined(err error) bool {
	e, ok := errors.AsType[*doze.Error](err)
	return ok && e.Name == nameNotJoined
}

// controlCalls is the table of what a [ControlClient] asks and a [ControlServer]
// does: one row for each method of [Control].
var controlCalls = map[string]func(ctx context.Context, c Control, in *arguments) (any, error){
	"Join": func(ctx context.Context, c Control, in *arguments) (any, error) {
		return c.Join(ctx, in.Node)
	},
	"Reclaim": func(ctx context.Context, c Control, in *arguments) (any, error) {
		return c.Reclaim(ctx, in.From, in.UIDs, in.Held)
	},
	"Renew": func(ctx context.Context, c Control, in *arguments) (any, error) { return c.Renew(ctx, in.Renewal) },
	"Record": func(ctx context.Context, c Control, in *arguments) (any, error) {
		return nothing{}, c.Record(ctx, in.From, in.Reports)
	},
	"Claim": func(ctx context.Context, c Control, in *arguments) (any, error) { return c.Claim(ctx, in.From, in.UID) },
	"FileKey": func(ctx context.Context, c Control, in *arguments) (any, error) {
		return c.FileKey(ctx, in.From, in.ID)
	},
	"FileMark": func(ctx context.Context, c Control, in *arguments) (any, error) {
		return c.FileMark(ctx, in.From, in.ID)
	},
	certify: func(ctx context.Context, c Control, in *arguments) (any, error) {
		return c.Certify(ctx, in.From, in.Request)
	},
	"ImageRefs": func(ctx context.Context, c Control, _ *arguments) (any, error) { return c.ImageRefs(ctx) },
	"Traffic": func(ctx context.Context, c Control, in *arguments) (any, error) {
		return c.Traffic(ctx, in.From, in.ID, in.Bytes)
	},
}

// certify is the name of the call for a certificate, which needs one with an id.
const certify = "Certify"

// A ControlServer answers the calls of a [ControlClient] by asking a [Control].
type ControlServer struct {
	control Control
	peer    func(*http.Request) string
}

// NewControlServer returns a server for control. peer returns the id of the node that sent a
// request, as its certificate says it. It is empty for a certificate without an id.
func NewControlServer(c Control, peer func(*http.Request) string) *ControlServer {
	return &ControlServer{c, peer}
}

// Register adds the routes of the server.
func (s *ControlServer) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+Prefix+"{call}", func(w http.ResponseWriter, r *http.Request) {
		peer := s.peer(r)
		serveCall(w, r, controlCalls, s.control, func(in *arguments) error {
			if r.PathValue("call") == certify && (peer == "" || in.From == "") {
				return doze.Errorf(doze.Forbidden, "the certificate is that of a role, not of one node: make new ones with dozed certificates")
			}
			return in.speaksFor(peer)
		})
	})
}

// speaksFor is an error unless each node that the arguments name is the peer. A peer
// without an id may be any node.
func (in *arguments) speaksFor(peer string) error {
	for _, id := range []string{in.Node.ID, in.From, in.Renewal.Node} {
		if peer != "" && id != "" && id != peer {
			return doze.Errorf(doze.Forbidden, "the certificate is that of the node %s: it cannot speak for the node %.80q", peer, id)
		}
	}
	return nil
}

// A ControlClient is the [Control] of another process.
type ControlClient struct{ client *Client }

var _ Control = (*ControlClient)(nil)

// NewControlClient returns a client of control at a base URL.
func NewControlClient(base string, transport http.RoundTripper) *ControlClient {
	return &ControlClient{NewControlCaller(base, transport)}
}

// NewControlCaller is NewClient for calls that control answers.
func NewControlCaller(base string, transport http.RoundTripper) *Client {
	c := NewClient(base, transport)
	c.peer = controlPeer
	return c
}

// Join implements [Control].
func (c *ControlClient) Join(ctx context.Context, n NodeInfo) (Lease, error) {
	return ask[Lease](ctx, c.client, "Join", arguments{Node: n})
}

// Reclaim implements [Control].
func (c *ControlClient) Reclaim(ctx context.Context, node string, machines []string, held map[string]Held) (Lease, error) {
	return ask[Lease](ctx, c.client, "Reclaim", arguments{From: node, UIDs: machines, Held: held})
}

// Renew implements [Control].
func (c *ControlClient) Renew(ctx context.Context, r Renewal) (Lease, error) {
	return ask[Lease](ctx, c.client, "Renew", arguments{Renewal: r})
}

// Record implements [Control].
func (c *ControlClient) Record(ctx context.Context, node string, reports []Report) error {
	return c.client.do(ctx, "Record", arguments{From: node, Reports: reports}, nil)
}

// Claim implements [Control].
func (c *ControlClient) Claim(ctx context.Context, node, machine string) (Claim, error) {
	return ask[Claim](ctx, c.client, "Claim", arguments{From: node, UID: machine})
}

// FileKey implements [Control].
func (c *ControlClient) FileKey(ctx context.Context, node, name string) ([]byte, error) {
	return ask[[]byte](ctx, c.client, "FileKey", arguments{From: node, ID: name})
}

// FileMark implements [Control].
func (c *ControlClient) FileMark(ctx context.Context, node, name string) (string, error) {
	return ask[string](ctx, c.client, "FileMark", arguments{From: node, ID: name})
}

// Certify implements [Control].
func (c *ControlClient) Certify(ctx context.Context, node string, request []byte) ([]byte, error) {
	return ask[[]byte](ctx, c.client, certify, arguments{From: node, Request: request})
}

// ImageRefs implements [Control].
func (c *ControlClient) ImageRefs(ctx context.Context) ([]string, error) {
	return ask[[]string](ctx, c.client, "ImageRefs", arguments{})
}

// Traffic implements [Control].
func (c *ControlClient) Traffic(ctx context.Context, node, incarnation string, bytes map[string]uint64) (map[string]string, error) {
	return ask[map[string]string](ctx, c.client, "Traffic", arguments{From: node, ID: incarnation, Bytes: bytes})
}
