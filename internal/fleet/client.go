package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
)

// ErrUnreachable is in the error of a call that may, or may not, have reached its
// node. It says nothing about what the node has: only the node's own word that
// something is gone may delete a record of it.
var ErrUnreachable = errors.New("unreachable")

// A Client is a [Node] of another process. Its errors have the kind, name, message
// and fields of those of the node, or ErrUnreachable in them.
type Client struct {
	base  atomic.Pointer[string]
	http  *http.Client
	peer  string // the other role, in errors
	began time.Time
	once  sync.Once     // closes known
	known chan struct{} // closed when there is a base URL
}

var _ Node = (*Client)(nil)

// Peers of clients, in errors.
const (
	nodePeer    = "the node of the sandbox"
	controlPeer = "control"
)

// NewClient returns a client of the server at a base URL. Without one, nobody is
// reached until [Client.Reach].
func NewClient(base string, transport http.RoundTripper) *Client {
	c := &Client{http: &http.Client{Transport: transport}, peer: nodePeer, began: time.Now(), known: make(chan struct{})}
	c.base.Store(&base)
	if base != "" {
		c.Reach(base)
	}
	return c
}

// Reach has calls go to another base URL from now on.
func (c *Client) Reach(base string) {
	c.base.Store(&base)
	c.once.Do(func() { close(c.known) })
}

// knownWait is how long after its start a client waits for a base URL: roles that are
// started together find each other within a second.
const knownWait = 10 * time.Second

// errNowhere is the end of a call of a client that has no base URL.
var errNowhere = errors.New("its address is not known yet")

// at returns the URL of a path.
func (c *Client) at(ctx context.Context, path string) (string, error) {
	select {
	case <-c.known:
	default:
		wait := time.NewTimer(time.Until(c.began.Add(knownWait)))
		defer wait.Stop()
		select {
		case <-c.known:
		case <-wait.C:
			return "", errNowhere
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	return *c.base.Load() + path, nil
}

// do makes a call of a table.
func (c *Client) do(ctx context.Context, call string, in arguments, out any) error {
	return c.Post(ctx, call, in, out)
}

// Post makes a call whose arguments and answer are JSON. Without out, its answer does
// not matter.
func (c *Client) Post(ctx context.Context, call string, in, out any) error {
	raw, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	return c.send(ctx, call, nil, bytes.NewReader(raw), out)
}

// ask makes a call that returns something.
func ask[Out any](ctx context.Context, c *Client, call string, in arguments) (out Out, err error) {
	err = c.do(ctx, call, in, &out)
	return out, err
}

func (c *Client) send(ctx context.Context, call string, query url.Values, body io.Reader, out any) error {
	resp, err := c.open(ctx, call, query, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return unreachable(ctx, c.peer, call, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s: the answer cannot be read: %w", call, err)
	}
	return nil
}

// open makes a call and returns its answer, whose body the caller closes. What the node
// refused is an error.
func (c *Client) open(ctx context.Context, call string, query url.Values, body io.Reader) (*http.Response, error) {
	to, err := c.at(ctx, Prefix+call+"?"+query.Encode())
	if err != nil {
		return nil, unreachable(ctx, c.peer, call, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, body) //nolint:gosec // G704: the operator says where nodes are
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, err)
	}
	announce(ctx, r)
	resp, err := c.http.Do(r) //nolint:gosec // G704: as above
	if err != nil {
		return nil, unreachable(ctx, c.peer, call, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return nil, unreachable(ctx, c.peer, call, err)
	}
	return nil, failed(c.peer, resp.StatusCode, raw)
}

// unreachable is an error of the way. The end of the caller's own context is not.
func unreachable(ctx context.Context, peer, call string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return doze.Wrap(errors.Join(ErrUnreachable, fmt.Errorf("%s: %w", call, err)), doze.Unavailable, "%s cannot be reached: try again", peer)
}

// failed is what a peer answered.
func failed(peer string, status int, raw []byte) error {
	var f failure
	if err := json.Unmarshal(raw, &f); err != nil || f.Kind == "" {
		return doze.Errorf(doze.KindOfStatus(status), "%s answers %d", peer, status)
	}
	return f.error(doze.KindOfStatus(status))
}

// Metrics returns what the process of the node counts, in the text format of
// Prometheus.
func (c *Client) Metrics(ctx context.Context) (text []byte, err error) {
	err = c.Post(ctx, metricsCall, struct{}{}, &text)
	return text, err
}

// CheckImage implements [Node].
func (c *Client) CheckImage(ctx context.Context, ref string) error {
	return c.do(ctx, "CheckImage", arguments{Ref: ref}, nil)
}

// FetchImage implements [Node].
func (c *Client) FetchImage(ctx context.Context, ref string, login *Login) error {
	return c.do(ctx, "FetchImage", arguments{Ref: ref, Login: login}, nil)
}

// PinImage implements [Node].
func (c *Client) PinImage(ctx context.Context, ref string, login *Login) (Pinned, error) {
	return ask[Pinned](ctx, c, "PinImage", arguments{Ref: ref, Login: login})
}

// ReleaseImage implements [Node].
func (c *Client) ReleaseImage(ctx context.Context, ref string) error {
	return c.do(ctx, "ReleaseImage", arguments{Ref: ref}, nil)
}

// Create implements [Node].
func (c *Client) Create(ctx context.Context, o Order) error {
	return c.do(ctx, "Create", arguments{Order: o}, nil)
}

// Delete implements [Node].
func (c *Client) Delete(ctx context.Context, uid string) error {
	return c.do(ctx, "Delete", arguments{UID: uid}, nil)
}

// Disable implements [Node].
func (c *Client) Disable(ctx context.Context, uid string) error {
	return c.do(ctx, "Disable", arguments{UID: uid}, nil)
}

// Enable implements [Node].
func (c *Client) Enable(ctx context.Context, uid string) error {
	return c.do(ctx, "Enable", arguments{UID: uid}, nil)
}

// Snapshot implements [Node].
func (c *Client) Snapshot(ctx context.Context, uid, id string) (int64, error) {
	return ask[int64](ctx, c, "Snapshot", arguments{UID: uid, ID: id})
}

// DropSnapshot implements [Node].
func (c *Client) DropSnapshot(ctx context.Context, id string) error {
	return c.do(ctx, "DropSnapshot", arguments{ID: id}, nil)
}

// Snapshots implements [Node].
func (c *Client) Snapshots(ctx context.Context) (map[string]int64, error) {
	return ask[map[string]int64](ctx, c, "Snapshots", arguments{})
}

// Archive implements [Node].
func (c *Client) Archive(ctx context.Context, uid string) (int64, error) {
	return ask[int64](ctx, c, "Archive", arguments{UID: uid})
}

// Unarchive implements [Node].
func (c *Client) Unarchive(ctx context.Context, o Order) error {
	return c.do(ctx, "Unarchive", arguments{Order: o}, nil)
}

// MakeVolume implements [Node].
func (c *Client) MakeVolume(ctx context.Context, id string, size doze.Megabytes, from string) error {
	return c.do(ctx, "MakeVolume", arguments{ID: id, Size: size, From: from}, nil)
}

// ImportVolume implements [Node].
func (c *Client) ImportVolume(ctx context.Context, id string, size doze.Megabytes, archive io.Reader) (bytes int64, err error) {
	query := url.Values{"id": {id}, "size": {strconv.Itoa(int(size))}}
	err = c.send(ctx, importVolume, query, archive, &bytes)
	return bytes, err
}

// ResizeVolume implements [Node].
func (c *Client) ResizeVolume(ctx context.Context, id string, size doze.Megabytes) error {
	return c.do(ctx, "ResizeVolume", arguments{ID: id, Size: size}, nil)
}

// DropBuilder implements [Builder].
func (c *Client) DropBuilder(ctx context.Context, workspaceID string) error {
	return c.do(ctx, "DropBuilder", arguments{ID: workspaceID}, nil)
}

// Builders implements [Builder].
func (c *Client) Builders(ctx context.Context) (map[string]BuilderUse, error) {
	return ask[map[string]BuilderUse](ctx, c, "Builders", arguments{})
}

// DropVolume implements [Node].
func (c *Client) DropVolume(ctx context.Context, id string) error {
	return c.do(ctx, "DropVolume", arguments{ID: id}, nil)
}

// Volumes implements [Node].
func (c *Client) Volumes(ctx context.Context) ([]string, error) {
	return ask[[]string](ctx, c, "Volumes", arguments{})
}

// Usage implements [Node].
func (c *Client) Usage(ctx context.Context) (Usage, error) {
	return ask[Usage](ctx, c, "Usage", arguments{})
}

// SetGrace implements [Node].
func (c *Client) SetGrace(ctx context.Context, uid string, grace time.Duration) error {
	return c.do(ctx, "SetGrace", arguments{UID: uid, Grace: grace}, nil)
}

// SetNetwork implements [Node].
func (c *Client) SetNetwork(ctx context.Context, uid string, network *doze.Network) error {
	return c.do(ctx, "SetNetwork", arguments{UID: uid, Network: NetworkOf(network)}, nil)
}

// MountDrive implements [Node].
func (c *Client) MountDrive(ctx context.Context, uid string, m DriveMount) (DriveMount, error) {
	return ask[DriveMount](ctx, c, "MountDrive", arguments{UID: uid, Mount: m})
}

// UnmountDrive implements [Node].
func (c *Client) UnmountDrive(ctx context.Context, uid, path string) error {
	return c.do(ctx, "UnmountDrive", arguments{UID: uid, Path: path}, nil)
}

// DriveMounts implements [Node].
func (c *Client) DriveMounts(ctx context.Context, uid string) ([]DriveMount, error) {
	return ask[[]DriveMount](ctx, c, "DriveMounts", arguments{UID: uid})
}

// DriveUsers implements [Node].
func (c *Client) DriveUsers(ctx context.Context, drive string) ([]string, error) {
	return ask[[]string](ctx, c, "DriveUsers", arguments{Drive: drive})
}

// SetLimits implements [Node].
func (c *Client) SetLimits(ctx context.Context, workspace string, l doze.Limits) error {
	return c.do(ctx, "SetLimits", arguments{Workspace: workspace, Limits: l}, nil)
}

// Claim implements [Node].
func (c *Client) Claim(ctx context.Context, o Order, instead string) error {
	return c.do(ctx, "Claim", arguments{Order: o, Instead: instead}, nil)
}

// Awake implements [Node].
func (c *Client) Awake(ctx context.Context, workspace string) (Awake, error) {
	return ask[Awake](ctx, c, "Awake", arguments{Workspace: workspace})
}

// Statuses implements [Node].
func (c *Client) Statuses(ctx context.Context, uids []string) (map[string]Status, error) {
	return ask[map[string]Status](ctx, c, "Statuses", arguments{UIDs: uids})
}

// Traces implements [Node].
func (c *Client) Traces(ctx context.Context, uid string) ([]doze.Trace, error) {
	return ask[[]doze.Trace](ctx, c, "Traces", arguments{UID: uid})
}

// Egress implements [Node].
func (c *Client) Egress(ctx context.Context, uid string) (doze.EgressSummary, error) {
	return ask[doze.EgressSummary](ctx, c, "Egress", arguments{UID: uid})
}

// Consumption implements [Node].
func (c *Client) Consumption(ctx context.Context, uids []string) (map[string]doze.Usage, error) {
	return ask[map[string]doze.Usage](ctx, c, "Consumption", arguments{UIDs: uids})
}

// Logs implements [Node].
func (c *Client) Logs(ctx context.Context, q LogQuery) (LogPage, error) {
	return ask[LogPage](ctx, c, "Logs", arguments{Query: q})
}

// EndLogs implements [Node].
func (c *Client) EndLogs(ctx context.Context, all []EndedLog) error {
	return c.do(ctx, "EndLogs", arguments{Ended: all}, nil)
}

// DropLogs implements [Node].
func (c *Client) DropLogs(ctx context.Context, workspace string) error {
	return c.do(ctx, "DropLogs", arguments{Workspace: workspace}, nil)
}

// Sleep implements [Node].
func (c *Client) Sleep(ctx context.Context, uid string, deep bool) error {
	return c.do(ctx, "Sleep", arguments{UID: uid, Deep: deep}, nil)
}

// Wake implements [Node].
func (c *Client) Wake(ctx context.Context, uid string) error {
	return c.do(ctx, "Wake", arguments{UID: uid}, nil)
}

// Consult implements [Node].
func (c *Client) Consult(ctx context.Context, uid string) error {
	return c.do(ctx, "Consult", arguments{UID: uid}, nil)
}

// Depart implements [Mover].
func (c *Client) Depart(ctx context.Context, uid string) error {
	return c.do(ctx, "Depart", arguments{UID: uid}, nil)
}

// Return implements [Mover].
func (c *Client) Return(ctx context.Context, uid string) error {
	return c.do(ctx, "Return", arguments{UID: uid}, nil)
}

// Leave implements [Mover].
func (c *Client) Leave(ctx context.Context, uid string) error {
	return c.do(ctx, "Leave", arguments{UID: uid}, nil)
}

// Revive implements [Mover].
func (c *Client) Revive(ctx context.Context, o Order, used time.Time, ran bool) (time.Time, error) {
	return ask[time.Time](ctx, c, "Revive", arguments{Order: o, Used: used, Ran: ran})
}

// SaveVolume implements [Mover].
func (c *Client) SaveVolume(ctx context.Context, id string) error {
	return c.do(ctx, "SaveVolume", arguments{ID: id}, nil)
}

// SaveSnapshot implements [Mover].
func (c *Client) SaveSnapshot(ctx context.Context, id string) error {
	return c.do(ctx, "SaveSnapshot", arguments{ID: id}, nil)
}

// SaveBuilt implements [Mover].
func (c *Client) SaveBuilt(ctx context.Context, ref string) error {
	return c.do(ctx, "SaveBuilt", arguments{Ref: ref}, nil)
}

// LeaveVolume implements [Mover].
func (c *Client) LeaveVolume(ctx context.Context, id string, epoch uint64) error {
	return c.do(ctx, "LeaveVolume", arguments{ID: id, Epoch: epoch}, nil)
}

// Retire implements [Node].
func (c *Client) Retire(ctx context.Context, uid string, since time.Time) (bool, error) {
	return ask[bool](ctx, c, "Retire", arguments{UID: uid, Since: since})
}

// Reinstate implements [Node].
func (c *Client) Reinstate(ctx context.Context, uid string) error {
	return c.do(ctx, "Reinstate", arguments{UID: uid}, nil)
}
