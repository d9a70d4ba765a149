package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/dozehq/doze"
)

// Nodes returns the nodes of the platform, by id, for operators.
func (c *Client) Nodes(ctx context.Context) ([]doze.Node, error) {
	return resource[[]doze.Node](ctx, c, http.MethodGet, nil, "platform", "nodes")
}

// NodeSandboxes returns the living sandboxes of a node, of all workspaces. It is for operators.
func (c *Client) NodeSandboxes(ctx context.Context, id string) (doze.NodeSandboxes, error) {
	return resource[doze.NodeSandboxes](ctx, c, http.MethodGet, nil, "platform", "nodes", id, "sandboxes")
}

// NodeOf returns the node that has a sandbox. It is for operators.
func (c *Client) NodeOf(ctx context.Context, name string) (doze.SandboxNode, error) {
	return exchange[doze.SandboxNode](ctx, c, http.MethodGet, c.sandbox(name)+"/node", nil)
}

// CordonNode has a node take no new sandboxes. It is for operators.
func (c *Client) CordonNode(ctx context.Context, id string) (doze.Node, error) {
	return resource[doze.Node](ctx, c, http.MethodPost, nil, "platform", "nodes", id, "cordon")
}

// UncordonNode ends what CordonNode or DrainNode began.
func (c *Client) UncordonNode(ctx context.Context, id string) (doze.Node, error) {
	return resource[doze.Node](ctx, c, http.MethodPost, nil, "platform", "nodes", id, "uncordon")
}

// DrainNode moves the sandboxes of a node to others, and returns when that is done. Sandboxes
// that could not move stay, and the answer counts them.
func (c *Client) DrainNode(ctx context.Context, id string) (doze.Drained, error) {
	return resource[doze.Drained](ctx, c, http.MethodPost, nil, "platform", "nodes", id, "drain")
}

// RemoveNode has the platform forget a node that is stopped. It is a Conflict while the node
// runs, or has what the bucket does not have. By force, that is lost, and the answer has it.
func (c *Client) RemoveNode(ctx context.Context, id string, force bool) (doze.RemovedNode, error) {
	address := c.base + "/platform/nodes/" + url.PathEscape(id)
	if force {
		address += "?force=true"
	}
	return exchange[doze.RemovedNode](ctx, c, http.MethodDelete, address, nil)
}

// SettleNodes has restored records count again. It is a Conflict if something would be lost, or a
// node is away. By force, that is lost, and the answer has it.
func (c *Client) SettleNodes(ctx context.Context, force bool) (doze.Settled, error) {
	address := c.base + "/platform/nodes/settle"
	if force {
		address += "?force=true"
	}
	return exchange[doze.Settled](ctx, c, http.MethodPost, address, nil)
}

// CreateNodeToken makes a token with which new nodes join, for a duration such as 24h. The
// token is in the answer, and nowhere else. An empty duration is [doze.NodeTokenTTL].
func (c *Client) CreateNodeToken(ctx context.Context, ttl string) (doze.NodeToken, error) {
	return resource[doze.NodeToken](ctx, c, http.MethodPost, doze.NodeTokenRequest{TTL: ttl}, "platform", "nodes", "tokens")
}

// Move moves a sandbox to the node with an id, or to any other node if that is empty. It
// returns when the sandbox is there.
func (c *Client) Move(ctx context.Context, name, node string) (doze.Moved, error) {
	return exchange[doze.Moved](ctx, c, http.MethodPost, c.sandbox(name)+"/move", doze.MoveRequest{Node: node})
}
