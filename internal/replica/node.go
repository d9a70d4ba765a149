package replica

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"

	"github.com/dozehq/doze/internal/fleet"
)

// nodes are those that an edge knows, and which machine is where.
type nodes struct {
	transport func(id string) http.RoundTripper
	forget    func(id string)
	atlas     *fleet.Atlas

	mu  sync.Mutex
	all map[string]*fleet.Client // guarded by mu; by the id of the node

	only *fleet.Client // of the node that said last where it is
}

func newNodes(transport func(id string) http.RoundTripper, forget func(id string)) *nodes {
	return &nodes{transport: transport, forget: forget, atlas: fleet.NewAtlas(), all: map[string]*fleet.Client{}, only: fleet.NewClient("", transport(""))}
}

// of returns the client of the node of a machine. While nobody knows where the node is, it
// reaches nobody.
func (n *nodes) of(machine string) (string, *fleet.Client) {
	id := n.atlas.Node(machine)
	n.mu.Lock()
	defer n.mu.Unlock()
	if id == "" && len(n.all) <= 1 { // a control of an earlier release has one node, and says nothing of places
		return "", n.only
	}
	if id == "" { // any of them could take the request
		return "", fleet.NewClient("", n.transport(""))
	}
	return id, n.client(id)
}

// Many implements [fleet.Moves].
func (n *nodes) Many() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all) > 1
}

// Await implements [fleet.Moves].
func (n *nodes) Await(ctx context.Context, uid, node string) bool {
	return n.atlas.Await(ctx, uid, node)
}

// client returns the client of a node. Preconditions: n.mu is held.
func (n *nodes) client(id string) *fleet.Client {
	c := n.all[id]
	if c == nil {
		c = fleet.NewClient("", n.transport(id))
		n.all[id] = c
	}
	return c
}

// reach has requests go to a node where it is now. A node that control does not name
// is one of which a new control has not heard yet. One without an address is off the records.
func (n *nodes) reach(id string, value json.RawMessage) error {
	if value == nil {
		return nil
	}
	var url string
	if err := json.Unmarshal(value, &url); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if url == "" {
		delete(n.all, id)
		n.forget(id)
		return nil
	}
	n.client(id).Reach(url)
	n.only.Reach(url)
	return nil
}
