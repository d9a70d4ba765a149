package fleet

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/dozehq/doze"
)

// Builder is what control asks of a node about builds of images: a part of [Node].
//
// Each workspace has a builder of its own on a node: a hidden machine with its cache,
// which sleeps between builds. A second workspace never sees it.
type Builder interface {
	// Build makes an image of a Dockerfile and its context, and returns where the image
	// is. The archive is a zip, a tar, or a tar with gzip; its first bytes say which.
	//
	// emit hears of every step, of one event at a time, and never after Build returned. It
	// may be called in another goroutine, and must not block for long.
	//
	// A node, and a workspace, has some builds under way at a time. Others wait for their
	// turn, and say so by events in [BuildWaiting]. The end of ctx cancels the build. On an error nothing of it is left, but for steps in the cache.
	//
	// A step that fails, and a Dockerfile or archive that cannot be built, is an Invalid
	// error with the name BUILD_FAILED: see [BuildFailed]. The end of o.Timeout is a
	// Timeout. A builder that ended by itself is Unavailable: the same order may work.
	// Unsupported: this node has no builders.
	Build(ctx context.Context, o BuildOrder, archive io.Reader, emit func(BuildEvent)) (Built, error)
	// DropBuilder removes the builder of a workspace and its cache, and cancels its
	// builds. It returns when nothing is left. A builder that is not there is no error.
	DropBuilder(ctx context.Context, workspaceID string) error
	// Builders returns the builders of the node, by the id of their workspace. None is
	// woken. A node that cannot build is Unsupported.
	Builders(ctx context.Context) (map[string]BuilderUse, error)
	// SaveImage returns an image as an OCI layout in a tar. The caller closes it. The
	// image is pulled first if it is not there. login may be nil. An error in the middle
	// is one of the reader, never its end.
	SaveImage(ctx context.Context, ref string, login *Login) (io.ReadCloser, error)
	// LoadImage makes an image of a tar that has an OCI layout or what docker saves. The
	// id is never reused and safe as a file name. An archive that is no image, or a
	// hostile one, is Invalid or TooLarge, and leaves nothing.
	LoadImage(ctx context.Context, id string, archive io.Reader) (Built, error)
}

// BuildOrder is what control asks a node to build.
type BuildOrder struct {
	ID        string // of the build; never reused, safe as a file name
	Workspace string // its name
	// WorkspaceID says whose builder and cache it is: a later workspace of the same name
	// is a stranger. It is safe as a file name.
	WorkspaceID string
	Dockerfile  string // its path in the context; empty is Dockerfile
	Target      string // the stage to build; empty is the last one
	Args        map[string]string
	// Secrets are by the id that a mount of a step names. They are never in a log, an
	// event, a record or a layer.
	Secrets map[string]string
	NoCache bool // run every step
	// Logins are for images that the Dockerfile names, by the host of their registry.
	Logins map[string]Login
	// Bases are images of the workspace, by each name that a Dockerfile may use for
	// them, such as app, app:2 and sandbox/app:2. They win over images of the platform.
	Bases map[string]Base
	// Network is what the steps may reach, and how. Without one they reach nothing.
	Network *doze.Network
	// Timeout bounds the build from its turn on; 0 is what the operator set, which is
	// also the most.
	Timeout time.Duration
}

// buildOrderOnWire is a [BuildOrder] whose network is complete, as in [orderOnWire].
type (
	plainBuildOrder  BuildOrder
	buildOrderOnWire struct {
		plainBuildOrder

		Network *Network `json:",omitempty"`
	}
)

// MarshalJSON implements [json.Marshaler].
func (o BuildOrder) MarshalJSON() ([]byte, error) {
	return json.Marshal(buildOrderOnWire{plainBuildOrder(o), NetworkOf(o.Network)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *BuildOrder) UnmarshalJSON(raw []byte) error {
	var w buildOrderOnWire
	if err := json.Unmarshal(raw, &w); err != nil {
		return err
	}
	*o = BuildOrder(w.plainBuildOrder)
	o.Network = w.Network.Network()
	return nil
}

// Base is an image of the platform or of a workspace, that a Dockerfile may begin with.
type Base struct {
	Ref   string // what PinImage, Build or LoadImage returned for it
	Login *Login // for the registry of the image, if it needs one
}

// The states of a [BuildEvent]. An event without one is output or progress.
const (
	BuildWaiting  = "waiting" // for its turn; Text says what for
	BuildStarted  = "started"
	BuildCached   = "cached"
	BuildDone     = "done"
	BuildError    = "failed"
	BuildCanceled = "canceled" // it did not run, or not to its end: another step failed
)

// BuildEvent is something that happened in a build.
type BuildEvent struct {
	At     time.Time
	Step   int    // counts from 1; 0 is none, as while the builder starts
	Steps  int    // how many there are, as far as it is known
	Stage  string // the stage of the Dockerfile
	Name   string // the step as the Dockerfile says it, or what the platform does
	Line   int    // in the Dockerfile; 0 is none
	Vertex string // tells steps apart that have one name; it has no meaning
	State  string // as above; empty for output
	Stream string // stdout or stderr, of output
	Text   string // of output: without the end of the line
	Took   time.Duration
	// Progress is that of a transfer; nil is none.
	Progress *BuildProgress
}

// BuildProgress is how far a transfer is, in bytes. A total of 0 is unknown.
type BuildProgress struct{ Current, Total int64 }

// Built is an image that a node made.
type Built struct {
	Ref    string // what [Order.Image] takes; it means these bytes for ever
	Digest string // sha256:…
	Bytes  int64  // that it takes
	Image  doze.ImageConfig
}

// BuilderUse is what a builder takes.
type BuilderUse struct {
	CacheBytes int64     // of the steps that it remembers, as it was last seen
	LastUsed   time.Time // the end of its last build, or now if one is under way
	Builds     int       // that are under way
	Tier       string    // as machine.Tier names it
}

// NameBuildFailed is the name of an error of [Builder.Build]: see [BuildFailed].
const NameBuildFailed = "BUILD_FAILED"

// BuildFailure says where a build failed. The zero value of a member is nothing known.
type BuildFailure struct {
	Step    int      // which step; counts from 1
	Line    int      // in the Dockerfile
	Command string   // the step as the Dockerfile says it
	Code    int      // the exit status of a command
	Output  []string // its last lines
}

// BuildFailed returns the error of a build that its Dockerfile, its context or one of
// its commands made fail. Its fields are step, line, command, code and output, where
// they are known.
func BuildFailed(message string, f BuildFailure) error {
	fields := map[string]any{}
	for name, value := range map[string]int{"step": f.Step, "line": f.Line, "code": f.Code} {
		if value != 0 {
			fields[name] = value
		}
	}
	if f.Command != "" {
		fields["command"] = f.Command
	}
	if len(f.Output) > 0 {
		fields["output"] = f.Output
	}
	return &doze.Error{Kind: doze.Invalid, Name: NameBuildFailed, Message: message, Fields: fields}
}

// BuildFailureOf returns where a build failed, and false for an error of another kind.
func BuildFailureOf(err error) (f BuildFailure, failed bool) {
	e := doze.Public(err)
	if e.Name != NameBuildFailed {
		return f, false
	}
	raw, err := json.Marshal(e.Fields) // they may have come over the network
	if err != nil {
		return f, true
	}
	_ = json.Unmarshal(raw, &f) // what cannot be read is not known; names match in any case
	return f, true
}
