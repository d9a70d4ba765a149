// Package buildapi is what a node asks the program doze-builder in a builder
// machine. It has the calls, the shapes of their bodies, the bounds, and a client.
//
// The program runs beside the steps of Dockerfiles, which its users write. So
// the node believes nothing that it answers: [Client] bounds each answer, and
// [ReadEvents] each line.
//
// The program is mounted from the node's host at each boot. A machine that
// slept may have an older one, so these are the rules of a wire format:
//
//   - A call or a member has one name and one meaning for ever.
//   - A new member may be absent, and an unknown one is ignored, on both sides.
//   - [Status] says which version the program speaks.
package buildapi

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// Version is what this build speaks.
	Version = 1
	// Port is where the program listens in its machine.
	Port = 8079
	// TokenVariable names the environment variable with the token of the node. The
	// program forgets it at once, and no step sees it.
	TokenVariable = "DOZE_BUILDER_TOKEN"
	// prefix is before each path.
	prefix = "/v1/"
	// withoutParam and its like are the names of parameters.
	withoutParam = "without"
)

// The bounds of what a builder takes and answers. A caller finds each of them in
// the message of the error.
const (
	// BuildsMax is how many builds run in one machine at a time. More would share two
	// cores and one disk, and each would end later.
	BuildsMax = 2
	// ContextBytesMax bounds an archive as it was sent.
	ContextBytesMax = 2 << 30
	// ContextUnpackedMax bounds the files of an archive together. The disk of the
	// builder may be smaller.
	ContextUnpackedMax = 8 << 30
	// contextPart is which part of the disk of a builder the files of an archive may take: a
	// half. BuildKit copies those that the Dockerfile names, at least once.
	contextPart = 2
	// ContextFilesMax bounds the entries of an archive: a large node_modules has
	// a hundred thousand.
	ContextFilesMax = 200_000
	// ContextDepthMax bounds the directories in the path of an entry.
	ContextDepthMax = 64
	// ContextPathMax bounds the path of an entry, in bytes, as Linux does.
	ContextPathMax = 4095
	// ContextsMax bounds the contexts that wait for their builds, and the results that
	// nobody has fetched.
	ContextsMax = 8
	// DockerfileMax bounds a Dockerfile, in bytes.
	DockerfileMax = 1 << 20
	// ArgsMax bounds the build arguments, and the secrets, of one build.
	ArgsMax = 256
	// ArgBytesMax bounds the name and the value of one, in bytes. A key of a
	// service account has a few KiB.
	ArgBytesMax = 64 << 10
	// ImagesMax bounds the images that a Dockerfile names.
	ImagesMax = 64
	// StepsMax bounds the layers that a Dockerfile puts upon its base. Engines of
	// containers run images of so many.
	StepsMax = 127
	// LineMax bounds a line of output, in bytes. The rest of a longer one is cut.
	LineMax = 4 << 10
	// OutputMax bounds the output of one build, in bytes. A build that writes more
	// fails, so that endless output has an end.
	OutputMax = 16 << 20
	// LinesMax is the same in lines.
	LinesMax = 200_000
	// Heartbeat is how long a build is silent at most. Then its stream has an empty event:
	// the builder lives.
	Heartbeat = 10 * time.Second
	// TailMax is how many of its last lines a failing step repeats.
	TailMax = 20
	// FailureMax bounds the message of a failure and those lines together, in bytes. It is more
	// than a screen shows, and records and events repeat it.
	FailureMax = 16 << 10
)

// ContextMost bounds the files of an archive together, for a builder whose disk has so many
// bytes. 0 is a disk of which nobody knows.
func ContextMost(disk int64) int64 {
	if disk <= 0 {
		return ContextUnpackedMax
	}
	return min(ContextUnpackedMax, disk/contextPart)
}

// The bounds of what a node reads of a builder.
const (
	// answerMax bounds an answer, in bytes.
	answerMax = 64 << 10
	// requestMax bounds the JSON of a request.
	requestMax = 2 * ArgsMax * (ArgBytesMax + 1<<10)
	// eventBytesMax bounds the JSON of one event: a byte may be six in JSON, and the
	// last event repeats TailMax lines.
	eventBytesMax = 6*LineMax*(TailMax+4) + 4<<10
	// eventsMax bounds the events of one build: its lines, a start and an end of
	// each step, and progress of what is pulled and written.
	eventsMax = LinesMax + 100_000
	// nameMax bounds the text of an instruction in an event, in bytes.
	nameMax = 1 << 10
	// messageMax bounds the message of a failure, in bytes.
	messageMax = 8 << 10
)

// RequestMax is how many bytes of JSON the program reads of a request.
const RequestMax = requestMax

// A Call is one row of the table: a method and a path. The comments give the shapes
// of the bodies. No shape means that there is no body.
type Call struct {
	Method, Path string
}

// idParam stands in a path for the id of a context or a result, or for a digest.
const idParam = "{id}"

// The calls. An id is what the node chose: see [ValidID].
var (
	AskStatus   = Call{http.MethodGet, prefix + "status"}                         // answers Status
	PutContext  = Call{http.MethodPut, prefix + "contexts/" + idParam}            // takes an archive, answers Context
	MakePlan    = Call{http.MethodPost, prefix + "contexts/" + idParam + "/plan"} // takes Plan, answers Planned
	DropContext = Call{http.MethodDelete, prefix + "contexts/" + idParam}         //
	HasImage    = Call{http.MethodHead, prefix + "images/" + idParam}             //
	PutImage    = Call{http.MethodPut, prefix + "images/" + idParam}              // takes an OCI layout as a tar
	StartBuild  = Call{http.MethodPost, prefix + "builds"}                        // takes Build, answers a stream of Event
	AskResult   = Call{http.MethodGet, prefix + "results/" + idParam}             // answers an OCI layout as a tar
	DropResult  = Call{http.MethodDelete, prefix + "results/" + idParam}          //
	PruneCache  = Call{http.MethodPost, prefix + "prune"}                         // takes Prune, answers Pruned
)

// Calls is the table.
var Calls = []Call{AskStatus, PutContext, MakePlan, DropContext, HasImage, PutImage, StartBuild, AskResult, DropResult, PruneCache}

// Pattern is the call as [http.ServeMux] takes it. The path value is "id".
func (c Call) Pattern() string { return c.Method + " " + c.Path }

// Status is how a builder is.
type Status struct {
	Version    int   `json:"version"`
	Builds     int   `json:"builds"`     // that run
	CacheBytes int64 `json:"cacheBytes"` // of what earlier builds made
	DiskBytes  int64 `json:"diskBytes"`  // of the builder's file system
	DiskFree   int64 `json:"diskFree"`
}

// Context is what an archive had.
type Context struct {
	Files int   `json:"files"` // its entries, directories too
	Bytes int64 `json:"bytes"` // of its files, unpacked
	// Args are the names of build arguments in its file .env.build. They are defaults
	// for [Build].
	Args []string `json:"args,omitempty"`
	// Registries are the hosts for which its file .docker/config.json has a login.
	Registries []string `json:"registries,omitempty"`
}

// Plan asks which images a build would need.
type Plan struct {
	Dockerfile string            `json:"dockerfile,omitempty"` // its path in the context; empty is Dockerfile
	Target     string            `json:"target,omitempty"`     // the stage to build; empty is the last one
	Args       map[string]string `json:"args,omitempty"`
}

// Planned has the images that the stages name of which the target is made: FROM,
// COPY --from and RUN --mount=from. Each is spelled as the Dockerfile does, after
// its arguments were put in. Names of stages and "scratch" are no images.
type Planned struct {
	Images []string `json:"images"`
}

// Build is an order.
type Build struct {
	ID         string            `json:"id"`      // of the result, too
	Context    string            `json:"context"` // the id of a context that was put
	Dockerfile string            `json:"dockerfile,omitempty"`
	Target     string            `json:"target,omitempty"`
	Args       map[string]string `json:"args,omitempty"`
	Secrets    map[string]string `json:"secrets,omitempty"` // by id, for RUN --mount=type=secret
	NoCache    bool              `json:"noCache,omitempty"`
	// Names says which images were put here: their names, as [Planned] has them, and the
	// digests under which they were put. All others come from registries.
	Names map[string]string `json:"names,omitempty"`
	// Logins are for registries, by host. docker.io has the name "docker.io".
	Logins map[string]Login  `json:"logins,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // for the image
	// CacheBytes is how much of the cache may be left after the build. Zero is all.
	CacheBytes int64 `json:"cacheBytes,omitempty"`
}

// Login is a credential for a registry.
type Login struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// The states of a step.
const (
	StateStarted = "started"
	StateCached  = "cached"
	StateDone    = "done"
	StateFailed  = "failed"
	// StateCanceled is of a step that did not run, or not to its end, since another one failed
	// or the build was canceled.
	StateCanceled = "canceled"
)

// The streams of a step.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Event is one line of the answer of a build. It tells of a step's state, or it is a
// line of output. The last one has a Result or a Failure.
type Event struct {
	At time.Time `json:"at"`
	// Step and Steps are as in "[2/5]": an instruction's place in its stage. They are zero
	// for what is no instruction, like a pull.
	Step  int    `json:"step,omitempty"`
	Steps int    `json:"steps,omitempty"`
	Stage string `json:"stage,omitempty"` // its name, or stage-0 for the first if it has none
	Name  string `json:"name,omitempty"`  // the instruction, as the Dockerfile has it
	Line  int    `json:"line,omitempty"`  // of the Dockerfile; the first is 1
	// Vertex tells steps apart which have the same name. It is opaque.
	Vertex string        `json:"vertex,omitempty"`
	State  string        `json:"state,omitempty"`  // StateStarted and those after it; empty for output
	Stream string        `json:"stream,omitempty"` // Stdout or Stderr, of output
	Text   string        `json:"text,omitempty"`   // a line without its end
	Took   time.Duration `json:"took,omitempty"`   // nanoseconds, of a step that has ended
	// Progress is of what a step pulls or writes. Text says what.
	Progress *Progress `json:"progress,omitempty"`
	Result   *Result   `json:"result,omitempty"`
	Failure  *Failure  `json:"failure,omitempty"`
}

// Progress is how much of a whole is done, in bytes. A total of zero is not known.
type Progress struct {
	Current int64 `json:"current"`
	Total   int64 `json:"total"`
}

// Result is what a build made. [AskResult] has it until [DropResult].
type Result struct {
	Digest string `json:"digest"` // of the manifest
	Config string `json:"config"` // the digest of the configuration: the same means the same image
	Layers int    `json:"layers"`
	Bytes  int64  `json:"bytes"` // of the layers, uncompressed
}

// Reason says whose a failure is.
type Reason string

// The reasons.
const (
	FailedStep       Reason = "step"       // an instruction failed; its output says why
	FailedDockerfile Reason = "dockerfile" // it is missing, or has a mistake
	FailedBase       Reason = "base"       // an image cannot be pulled
	FailedDisk       Reason = "disk"       // the disk of the builder is full
	FailedOutput     Reason = "output"     // a step wrote more than OutputMax
	FailedCanceled   Reason = "canceled"   // the request ended
	FailedInternal   Reason = "internal"   // the builder's own
)

// reasons are those that a node believes. Any other one is FailedInternal.
var reasons = []Reason{FailedStep, FailedDockerfile, FailedBase, FailedDisk, FailedOutput, FailedCanceled, FailedInternal}

// Failure is why a build made nothing.
type Failure struct {
	Reason  Reason   `json:"reason"`
	Step    int      `json:"step,omitempty"`
	Steps   int      `json:"steps,omitempty"`
	Stage   string   `json:"stage,omitempty"`
	Name    string   `json:"name,omitempty"` // the instruction
	Line    int      `json:"line,omitempty"` // of the Dockerfile
	Message string   `json:"message"`        // for the user
	Tail    []string `json:"tail,omitempty"` // the last lines of the step's output
	Code    int      `json:"code,omitempty"` // the exit code of the step's command
}

// Prune asks to delete what earlier builds made, oldest first, unless a build uses it.
type Prune struct {
	Bytes int64         `json:"bytes,omitempty"` // leave so many; zero is no bound
	Age   time.Duration `json:"age,omitempty"`   // delete what was not used for so long, in nanoseconds
	All   bool          `json:"all,omitempty"`   // leave nothing
}

// Pruned is what was freed.
type Pruned struct {
	Bytes int64 `json:"bytes"`
}

// Mistake is the body of an answer other than 2xx.
type Mistake struct {
	Error string `json:"error"` // what is wrong, where, and what to do
}

// AnnotationImage marks a layer in the manifest of a result that was asked for without
// the layers of an image. The value is the digest under which the image was put. The
// layout has no blob for the layer.
const AnnotationImage = "dev.doze.image"

// idMax bounds an id: it is the name of a file.
const idMax = 128

// ValidID reports whether an id is safe as a file name: letters, digits, and inside of it
// "-", "_", "." and ":".
func ValidID(id string) bool {
	if id == "" || len(id) > idMax {
		return false
	}
	for i, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '-' || c == '_' || c == '.' || c == ':'):
		default:
			return false
		}
	}
	return true
}

// Check returns what is wrong with an order, for the node that made it.
func (b *Build) Check() error {
	switch {
	case !ValidID(b.ID):
		return fmt.Errorf("id: %.*q is not a valid id", idMax, b.ID)
	case !ValidID(b.Context):
		return fmt.Errorf("context: %.*q is not a valid id", idMax, b.Context)
	case len(b.Names) > ImagesMax:
		return fmt.Errorf("names: there are %d images, more than %d", len(b.Names), ImagesMax)
	}
	for name, key := range b.Names {
		if !ValidID(key) {
			return fmt.Errorf("names[%.*q]: not a valid digest", nameMax, name)
		}
	}
	for member, values := range map[string]map[string]string{"args": b.Args, "secrets": b.Secrets, "labels": b.Labels} {
		if err := checkValues(member, values); err != nil {
			return err
		}
	}
	return nil
}

// Check is the same for a plan.
func (p *Plan) Check() error { return checkValues("args", p.Args) }

// checkValues bounds names and values.
func checkValues(member string, values map[string]string) error {
	if len(values) > ArgsMax {
		return fmt.Errorf("%s: there are %d, more than %d", member, len(values), ArgsMax)
	}
	for name, value := range values {
		if name == "" || len(name) > nameMax {
			return fmt.Errorf("%s: a name must have 1 to %d bytes", member, nameMax)
		}
		if len(value) > ArgBytesMax {
			return fmt.Errorf("%s.%s: the value has %d bytes, more than %d", member, name, len(value), ArgBytesMax)
		}
	}
	return nil
}
