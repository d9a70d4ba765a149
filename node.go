package doze

import "time"

// NodeState is what an operator wants of a node, or what became of it.
type NodeState string

// The states of a node.
const (
	NodeReady    NodeState = "ready"    // it takes new sandboxes
	NodeCordoned NodeState = "cordoned" // it keeps its sandboxes, and takes no new ones
	NodeDraining NodeState = "draining" // its sandboxes are moved to others
	NodeLost     NodeState = "lost"     // its lease ended: others may have its sandboxes
)

// Node is a machine of the fleet, as its operator sees it.
type Node struct {
	ID    string    `json:"id"`
	State NodeState `json:"state"`
	// Present says that the node has joined, and said how it is within half a minute, or its lease if that is longer.
	Present bool   `json:"present"`
	Epoch   int64  `json:"epoch"` // grows with each loss
	URL     string `json:"url"`
	Version string `json:"version"`
	Driver  string `json:"driver"`
	// RenewedAt is when the lease was renewed last. It is zero while the node has not
	// joined this process of control.
	RenewedAt Time      `json:"renewedAt"`
	CreatedAt Time      `json:"createdAt"`
	Memory    Megabytes `json:"memory"`   // that all its sandboxes can have together
	Reserved  Megabytes `json:"reserved"` // of it, that those which are awake may use
	Sandboxes int       `json:"sandboxes"`
	Awake     int       `json:"awake"`
	// Unrecorded are sandboxes that records do not know which somebody restored. They stay until the
	// records are settled.
	Unrecorded int `json:"unrecorded,omitempty"`
}

// NodeToken lets nodes join until it expires. Its text is shown once, in the answer to its
// creation.
type NodeToken struct {
	Token string `json:"token"`
	// Control is the URL at which nodes reach control.
	Control   string `json:"control"`
	ExpiresAt Time   `json:"expiresAt"`
}

// NodeTokenRequest asks for a token.
type NodeTokenRequest struct {
	TTL string `json:"ttl,omitempty"` // how long the token is good, such as 24h; empty is NodeTokenTTL
}

// How long a token for nodes is good, in the form of [ParseDuration].
const (
	NodeTokenTTL    = "24h"
	NodeTokenTTLMax = 7 * 24 * time.Hour // a token that is forgotten ends by itself
)

// MoveRequest says where a sandbox is to go.
type MoveRequest struct {
	Node string `json:"node,omitempty"` // its id; empty is any other
}

// SandboxNode is the node that has a sandbox.
type SandboxNode struct {
	Node string `json:"node"` // its id
}

// NodeSandboxesMax is how many sandboxes of a node an answer lists.
const NodeSandboxesMax = 1000

// NodeSandboxes are the living sandboxes that a node has.
type NodeSandboxes struct {
	Total     int           `json:"total"`
	Sandboxes []NodeSandbox `json:"sandboxes"` // those that were used last, up to NodeSandboxesMax
}

// NodeSandbox is a sandbox of any workspace, as operators see it.
type NodeSandbox struct {
	Workspace  string `json:"workspace"`
	Name       string `json:"name"`
	Status     string `json:"status"`          // as that of [Observed]
	State      string `json:"state,omitempty"` // as that of [Observed]
	LastUsedAt Time   `json:"lastUsedAt,omitzero"`
}

// Moved is where a sandbox went.
type Moved struct {
	Node string `json:"node"` // its id
}

// Drained is what became of the sandboxes of a node.
type Drained struct {
	Moved  int `json:"moved"`
	Stayed int `json:"stayed"` // they could not move: the log of the platform says why
}

// NodeLossesMax is how many things the answer to a removal names.
const NodeLossesMax = 1000

// RemovedNode is what was lost with a node that was removed by force.
type RemovedNode struct {
	Total int        `json:"total"` // things that were lost
	Lost  []NodeLoss `json:"lost"`  // them, up to NodeLossesMax
}

// Settled is what was lost when restored records were settled.
type Settled struct {
	Total int        `json:"total"` // things that were lost, or went back to an older state
	Lost  []NodeLoss `json:"lost"`  // them, up to NodeLossesMax
}

// LossKind is what a [NodeLoss] is.
type LossKind string

// The kinds of losses.
const (
	LostSandbox  LossKind = "sandbox"        // it failed
	LostSnapshot LossKind = "snapshot"       // it failed
	LostVolume   LossKind = "volume"         // it was deleted, unless an older state is left
	LostTemplate LossKind = "volumeTemplate" // a version of it failed
	LostImage    LossKind = "image"          // its tag was deleted
)

// NodeLoss is something that only a node had which was removed by force. Also, it is something that
// restored records do not have as it was.
type NodeLoss struct {
	Kind LossKind `json:"kind"`
	// Workspace is empty if no record names the thing. Name is its id then, and Kind is volume also for
	// the version of a template.
	Workspace string `json:"workspace"`
	Name      string `json:"name"`
	// Older says that it goes on in an older state, which the bucket has.
	Older bool `json:"older,omitempty"`
}
