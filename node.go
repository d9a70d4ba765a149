package doze

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
	// Present says that the node has a lease and answers.
	Present bool   `json:"present"`
	Epoch   uint64 `json:"epoch"` // grows with each loss
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
}

// NodeToken lets one node or more join, until it is over.
type NodeToken struct {
	Token     WriteOnly[string] `json:"-"`
	ExpiresAt Time              `json:"expiresAt"`
}

// MoveRequest says where a sandbox is to go.
type MoveRequest struct {
	Node string `json:"node,omitempty"` // its id; empty is any other
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
