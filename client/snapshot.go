package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/dozehq/doze"
)

// Snapshots returns those of the workspace, newest first, page by page. It ends
// after the first error.
func (c *Client) Snapshots(ctx context.Context) iter.Seq2[doze.Snapshot, error] {
	return all[doze.Snapshot](ctx, c, "/snapshots", url.Values{})
}

// SnapshotsOf returns those of a living sandbox, newest first.
func (c *Client) SnapshotsOf(ctx context.Context, sandbox string) ([]doze.Snapshot, error) {
	return resource[[]doze.Snapshot](ctx, c, http.MethodGet, nil, "sandboxes", sandbox, "snapshots")
}

// Snapshot returns one by its id, or by its name if no other has it.
func (c *Client) Snapshot(ctx context.Context, snapshot string) (doze.Snapshot, error) {
	return resource[doze.Snapshot](ctx, c, http.MethodGet, nil, "snapshots", snapshot)
}

// CreateSnapshot takes a snapshot of a sandbox and returns it when it is ready.
// Without a name the server makes one up.
func (c *Client) CreateSnapshot(ctx context.Context, sandbox, name string) (doze.Snapshot, error) {
	return resource[doze.Snapshot](ctx, c, http.MethodPost, doze.SnapshotRequest{Name: name}, "sandboxes", sandbox, "snapshots")
}

// DeleteSnapshot removes one by its id, or by its name if no other has it.
func (c *Client) DeleteSnapshot(ctx context.Context, snapshot string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "snapshots", snapshot)
	return err
}

// ForkSnapshot makes a sandbox of a snapshot.
func (c *Client) ForkSnapshot(ctx context.Context, snapshot string, f doze.ForkRequest) (doze.ForkResponse, error) {
	return resource[doze.ForkResponse](ctx, c, http.MethodPost, f, "snapshots", snapshot, "fork")
}

// Fork makes a sandbox of another one as it is now, or as the snapshot has it
// that f names.
func (c *Client) Fork(ctx context.Context, sandbox string, f doze.ForkRequest) (doze.ForkResponse, error) {
	return resource[doze.ForkResponse](ctx, c, http.MethodPost, f, "sandboxes", sandbox, "fork")
}

// Restore puts a sandbox back to one of its snapshots, by name or id.
func (c *Client) Restore(ctx context.Context, sandbox, snapshot string) (doze.RestoreResponse, error) {
	return resource[doze.RestoreResponse](ctx, c, http.MethodPost, nil, "sandboxes", sandbox, "snapshots", snapshot, "restore")
}

// Archive begins to archive a sandbox. It returns before that is done.
func (c *Client) Archive(ctx context.Context, sandbox string) (doze.Sandbox, error) {
	return resource[doze.Sandbox](ctx, c, http.MethodPost, nil, "sandboxes", sandbox, "archive")
}

// Unarchive begins to bring an archived sandbox back. It returns before that is
// done.
func (c *Client) Unarchive(ctx context.Context, sandbox string) (doze.Sandbox, error) {
	return resource[doze.Sandbox](ctx, c, http.MethodPost, nil, "sandboxes", sandbox, "unarchive")
}
