package doze

// TracesMax is how many traces a node keeps in memory for each sandbox, the
// newest ones. A trace takes less than 1 KB.
const TracesMax = 16

// Kinds of traces.
const (
	TraceWake   = "wake"
	TraceCreate = "create"
)

// States of a trace.
const (
	TraceRunning = "running" // it is under way
	TraceDone    = "done"
	TraceFailed  = "failed"
)

// A Trace says where the time of one wake or create of a sandbox went, from the
// arrival of the request that caused it.
type Trace struct {
	Kind      string `json:"kind"` // wake or create
	StartedAt Time   `json:"startedAt"`
	// From is the tier that a wake began in, or what the machine of a create is
	// made of: spare, image or snapshot. It is empty before that is known.
	From   string `json:"from"`
	Status string `json:"status"`          // running, done or failed
	Error  string `json:"error,omitempty"` // of a failed one
	// WaitedUs is how long the caller waited until the sandbox got its request, or
	// until the sandbox was created. What the sandbox took to answer is not in it.
	WaitedUs int64        `json:"waitedUs"`
	Stages   []TraceStage `json:"stages"`
}

// A TraceStage is one part of a trace. Stages may overlap: some run at the same
// time, and some are within others.
type TraceStage struct {
	Name    string `json:"name"`
	Within  string `json:"within,omitempty"` // the name of the stage that this one is a part of
	StartUs int64  `json:"startUs"`          // after the start of the trace
	TookUs  int64  `json:"tookUs"`
}
