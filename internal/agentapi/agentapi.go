// Package agentapi is what a node asks the agents of its sandboxes: the calls,
// the shapes of their bodies, and a client. Below [Prefix] it is for the node
// alone: the edge passes nothing of it on.
//
// An agent lives as long as its sandbox, and so longer than the node's process.
// A node speaks with the agents of every release before it, and after a way back
// with those of a later one. So these are the rules of a wire format:
//
//   - A call or a member keeps its name and its meaning.
//   - A new member may be absent, and an unknown one is ignored, on both sides.
//   - A new call says since which version it exists. A node works without it.
//   - Each answer below [Prefix] says in [VersionHeader] which version the agent
//     speaks. An agent that says nothing speaks version 0.
//
// testdata has what an agent of each version answered. The client is tested with
// all of them.
package agentapi

import (
	"encoding/json"
	"net/http"
)

const (
	// Version is what this build speaks.
	Version = 5
	// VersionHeader has it, in decimal.
	VersionHeader = "Doze-Agent-Version"
	// Prefix is before the paths that are for the node alone.
	Prefix = "/doze/"
	// DriveProtocol is what the connection of [Drive] becomes: over it the agent
	// asks and the node answers, in HTTP/2 without TLS.
	DriveProtocol = "doze-drive"
	// LoopbackProtocol is what the connection of [ConnectLoopback] becomes: the bytes
	// of a connection to a server in the sandbox.
	LoopbackProtocol = "doze-loopback"
	// idParam stands in a path for the id of a drive's mount, or for a port.
	idParam = "{id}"
)

// A Call is one row of the table: a method, a path, and the first version that
// has it. The comments give the shapes of the bodies; no shape means that there
// is no body, or that nobody reads it.
type Call struct {
	Method, Path string
	Since        int
}

// The calls.
var (
	AskState     = Call{Method: http.MethodGet, Path: Prefix + "keepalive"}            // answers State
	TellWoken    = Call{Method: http.MethodPost, Path: Prefix + "wake"}                //
	Identify     = Call{Method: http.MethodPost, Path: Prefix + "identity"}            // takes Identity, answers Identified
	SetVariables = Call{Method: http.MethodPost, Path: Prefix + "variables", Since: 2} // takes Variables
	Quiesce      = Call{Method: http.MethodPost, Path: Prefix + "quiesce"}             // takes Quiet, answers Quiesced
	Unpack       = Call{Method: http.MethodPost, Path: Prefix + "files"}               // takes a tar stream
	Stop         = Call{Method: http.MethodPost, Path: Prefix + "stop"}                //
	PrepareDrive = Call{Method: http.MethodPost, Path: Prefix + "drives"}              // takes Mount, answers Prepared
	ServeDrive   = Call{Method: http.MethodGet, Path: Prefix + "drives/" + idParam}    // becomes DriveProtocol
	DropDrive    = Call{Method: http.MethodDelete, Path: Prefix + "drives/" + idParam} //
	// CollectLogs and AwaitLogs have the parameter "after", a stamp. AwaitLogs answers
	// once CollectLogs would have something.
	CollectLogs = Call{Method: http.MethodGet, Path: Prefix + "logs", Since: 3} // answers Collected
	AwaitLogs   = Call{Method: http.MethodGet, Path: Prefix + "logs/new", Since: 3}
	// BeginImage says what the image is, and runs its program and its health check. It
	// does so once in the life of a machine: a repetition does nothing.
	BeginImage = Call{Method: http.MethodPost, Path: Prefix + "image", Since: 4} // takes Image
	// AwaitImage has the parameter "after", which is ImageState.Change of the answer
	// before, or 0. It answers once something is different.
	AwaitImage = Call{Method: http.MethodGet, Path: Prefix + "image", Since: 4} // answers ImageState
	// ConnectLoopback connects to a port of a loopback address. It becomes
	// [LoopbackProtocol], or is 503 if nobody listens there.
	ConnectLoopback = Call{Method: http.MethodGet, Path: Prefix + "loopback/" + idParam, Since: 5}

	// AskHealth and those after it are what users may ask as well. The public API
	// has their shapes.
	AskHealth     = Call{Method: http.MethodGet, Path: "/health"}
	StartProcess  = Call{Method: http.MethodPost, Path: "/process"}
	ResumeArchive = Call{Method: http.MethodPost, Path: "/archive/resume"}
)

// Calls is the table.
var Calls = []Call{
	AskState, TellWoken, Identify, SetVariables, Quiesce, Unpack, Stop, PrepareDrive, ServeDrive, DropDrive, CollectLogs, AwaitLogs,
	BeginImage, AwaitImage, ConnectLoopback, AskHealth, StartProcess, ResumeArchive,
}

// State is whether the sandbox may sleep, and how deep.
type State struct {
	KeepAlive int `json:"keepAlive"` // how many processes and calls ask that it stay awake
	// KeptAgo is how many milliseconds ago the last process ended that asked for it.
	// It is absent if there was none, and of agents that do not say.
	KeptAgo  *int64   `json:"keptAgo,omitempty"`
	Blockers Blockers `json:"fleeting"`
}

// Blockers are what a checkpoint of the sandbox would leave out.
type Blockers struct {
	Links bool `json:"links"` // network links, addresses or routes that were changed
	Rules bool `json:"rules"` // filter rules
	// Namespaces says that processes have made network namespaces, and use them.
	Namespaces bool `json:"namespaces"`
}

// Identity is whose agent it is from now on.
type Identity struct {
	Hostname string   `json:"hostname"` // empty means that it is as it should be
	Env      []string `json:"env"`      // NAME=value, for what is started from now on
	// Trust has certificates of authorities besides the image's own, in PEM.
	Trust string `json:"trust,omitempty"`
	// Platform are the names of those variables in Env that [SetVariables] replaces.
	// Agents before version 2 ignore them.
	Platform []string `json:"platform,omitempty"`
}

// Variables are those of the platform, for what is started from now on. The agent
// forgets those that it was told before. A variable of the image or of the caller
// stays as it is.
type Variables struct {
	Env []string `json:"env"` // NAME=value
}

// Identified is the name that the sandbox has now. In a copy of a sandbox that
// was renamed before it is not the one of [Identity]: then it must be renamed
// from outside.
type Identified struct {
	Hostname string `json:"hostname"`
}

// Quiet asks that every process end.
type Quiet struct {
	// StopTimeout is how many seconds they have after SIGTERM. Without it, the
	// agent decides.
	StopTimeout *int `json:"stopTimeoutSeconds"`
}

// Quiesced has the processes that ran, as a list of bodies of [StartProcess]. The
// variables of the sandbox are not in them.
type Quiesced struct {
	Processes json.RawMessage `json:"processes"`
}

// Mount is a directory of the sandbox that becomes a mount point.
type Mount struct {
	ID   string  `json:"id"`
	Path string  `json:"path"` // absolute
	UID  *uint32 `json:"uid"`  // owner of what is shown; absent means the user of the sandbox
	GID  *uint32 `json:"gid"`
}

// Prepared says whether a mount that nobody serves is in the way.
type Prepared struct {
	Stale bool `json:"stale"`
}

// Collected is what processes wrote after a stamp. There may be more.
type Collected struct {
	Chunks []Chunk `json:"chunks"` // in the order of their stamps
	// Lost are the bytes that were not collected in time, since the answer before.
	Lost int64 `json:"lost,omitempty"`
}

// Chunk is output of one process. Its lines are whole, but for one that is too
// long or that its process left open.
type Chunk struct {
	At      int64  `json:"at"` // the stamp: unix nanoseconds, and more than all before
	Process string `json:"process"`
	Stream  string `json:"stream"` // stdout or stderr
	Text    string `json:"text"`
}

// Image is what the image of a sandbox says about its process.
type Image struct {
	// Program is a program with its arguments, which runs without a shell; empty means
	// that there is none.
	Program []string `json:"program,omitempty"`
	// Waits says that the program does not start yet: [StartProcess] with its name does
	// that, if it ran before.
	Waits      bool         `json:"waits,omitempty"`
	StopSignal int          `json:"stopSignal,omitempty"` // 0 means SIGTERM
	Health     *HealthCheck `json:"health,omitempty"`
}

// HealthCheck is how the process of an image is checked. A number that is 0 has the
// default of the agent.
type HealthCheck struct {
	Test                []string `json:"test"` // CMD and a program with its arguments, or CMD-SHELL and a line
	IntervalMillis      int64    `json:"intervalMillis,omitempty"`
	TimeoutMillis       int64    `json:"timeoutMillis,omitempty"`
	StartPeriodMillis   int64    `json:"startPeriodMillis,omitempty"`
	StartIntervalMillis int64    `json:"startIntervalMillis,omitempty"`
	Retries             int      `json:"retries,omitempty"`
}

// ImageState is how the process of an image is.
type ImageState struct {
	Change int64 `json:"change"` // grows
	// Status is running, completed, failed, stopped or killed, as of every process, or
	// empty without one.
	Status   string `json:"status,omitempty"`
	ExitCode int    `json:"exitCode,omitempty"`
	Restarts int    `json:"restarts,omitempty"`
	Message  string `json:"message,omitempty"` // why it could not be started
	// Health is starting, healthy or unhealthy, or empty if nothing is checked.
	Health string `json:"health,omitempty"`
	Output string `json:"output,omitempty"` // the end of what the last check wrote
	At     int64  `json:"at,omitempty"`     // of the change, in milliseconds since 1970
}
