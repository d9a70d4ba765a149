package doze

import (
	"fmt"
	"strings"
	"time"
)

// Limits of builds. The first ones are of a workspace.
const (
	BuildsMax        = 100 // on record; the oldest that ended are forgotten
	BuildsWaitingMax = 16  // that have not ended
	BuildUploadsMax  = 4   // uploads under way
	// BuildContextMax bounds the archive of a build, in bytes. Files that a
	// Dockerfile does not need belong into .dockerignore.
	BuildContextMax = 1 << 30
	// BuildUploadTime is how long the address of an upload is good.
	BuildUploadTime = 15 * time.Minute
	// BuildArgsMax bounds the arguments, and the secrets, of a build.
	BuildArgsMax = 256
	// BuildArgBytesMax bounds the name and the value of one, in bytes.
	BuildArgBytesMax = 64 << 10
	// BuildPathMax bounds the path of a Dockerfile and the name of a stage.
	BuildPathMax = 1024
	// BuildLogMax and BuildLogLinesMax bound the log of a build, in bytes and in lines.
	BuildLogMax      = 4 << 20
	BuildLogLinesMax = 20_000
)

// The statuses of a build. All but the first three are final.
const (
	BuildUploading = "UPLOADING" // its files are awaited
	BuildBuilding  = "BUILDING"  // it waits for its turn, or its steps run
	BuildDeploying = "DEPLOYING" // its sandbox gets a machine of the image
	BuildDeployed  = "DEPLOYED"  // its sandbox runs
	BuildBuilt     = ImageBuilt  // its image is there
	BuildFailed    = "FAILED"
	BuildCancelled = "CANCELLED"
)

// Build makes an image of a Dockerfile.
type Build struct {
	ID           string `json:"id"`
	Name         string `json:"name"`         // of the image, and of the sandbox if it is for one
	Tag          string `json:"tag"`          // of the image
	ResourceType string `json:"resourceType"` // sandbox: a sandbox is deployed; image: nothing else is
	Workspace    string `json:"workspace"`
	Status       string `json:"status"`
	// Position is the place in the queue: 1 is the next. 0 waits for nothing.
	Position   int               `json:"position,omitempty"`
	Dockerfile string            `json:"dockerfile,omitempty"`
	Target     string            `json:"target,omitempty"`
	Args       map[string]string `json:"args,omitempty"`
	NoCache    bool              `json:"noCache,omitempty"`
	CreatedAt  Time              `json:"createdAt,omitzero"`
	StartedAt  Time              `json:"startedAt,omitzero"`
	EndedAt    Time              `json:"endedAt,omitzero"`
	CreatedBy  string            `json:"createdBy,omitempty"`
	// Image is what spec.runtime.image of a sandbox takes, once the build made it.
	Image   string        `json:"image,omitempty"`
	Digest  string        `json:"digest,omitempty"`
	Size    int64         `json:"size,omitempty"` // bytes of the image
	Failure *BuildFailure `json:"failure,omitempty"`
	// UploadURL is where the files are put, once, without a credential. Only the
	// answer to the request that made the build has it.
	UploadURL string `json:"uploadUrl,omitempty"`
}

// Ended reports whether nothing more happens to the build.
func (b *Build) Ended() bool {
	return b.Status == BuildBuilt || b.Status == BuildDeployed || b.Status == BuildFailed || b.Status == BuildCancelled
}

// BuildFailure is why a build made no image.
type BuildFailure struct {
	Message string   `json:"message"`
	Step    int      `json:"step,omitempty"`    // which one failed, from 1
	Line    int      `json:"line,omitempty"`    // of the Dockerfile, from 1
	Command string   `json:"command,omitempty"` // the step, as the Dockerfile says it
	Code    int      `json:"code,omitempty"`    // exit status of the command
	Output  []string `json:"output,omitempty"`  // the last lines of the step
}

// Text is the failure for people: the message, where it happened, and the last lines.
func (f *BuildFailure) Text() string {
	var b strings.Builder
	b.WriteString(f.Message)
	switch {
	case strings.Contains(f.Message, fmt.Sprintf("line %d", f.Line)): // it says where
	case f.Line > 0 && f.Command != "":
		fmt.Fprintf(&b, " (Dockerfile line %d: %s)", f.Line, f.Command)
	case f.Line > 0:
		fmt.Fprintf(&b, " (Dockerfile line %d)", f.Line)
	case f.Command != "":
		fmt.Fprintf(&b, " (%s)", f.Command)
	}
	for _, line := range f.Output {
		b.WriteString("\n" + line)
	}
	return b.String()
}

// Brief is the text with as many of the last lines as fit into some bytes. A longer message is
// cut.
func (f *BuildFailure) Brief(most int) string {
	short := *f
	for short.Output = f.Output; len(short.Output) > 0 && len(short.Text()) > most; {
		short.Output = short.Output[1:]
	}
	text := short.Text()
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// BuildRequest asks for a build, whose files come by the address in the answer.
type BuildRequest struct {
	Name       string            `json:"name"`                 // of the image, with or without a tag
	Dockerfile string            `json:"dockerfile,omitempty"` // its path in the files; empty is Dockerfile
	Target     string            `json:"target,omitempty"`     // the stage to build; empty is the last one
	Args       map[string]string `json:"args,omitempty"`       // build arguments
	Secrets    map[string]string `json:"secrets,omitempty"`    // by the id that a mount names; in no log, layer or answer
	NoCache    bool              `json:"noCache,omitempty"`    // run every step
}

// Check adds what is wrong with the options of a build. The name is checked elsewhere.
func (r *BuildRequest) Check(p *Problems) {
	for field, text := range map[string]string{"dockerfile": r.Dockerfile, "target": r.Target} {
		if len(text) > BuildPathMax {
			p.Add(field, "has %d bytes; at most %d are allowed", len(text), BuildPathMax)
		}
	}
	if path := r.Dockerfile; strings.HasPrefix(path, "/") || path == ".." || strings.HasPrefix(path, "../") || strings.Contains(path, "/../") {
		p.Add("dockerfile", "is %q; it must be a path inside of the files that are uploaded", clip(path))
	}
	checkBuildValues(p, "args", r.Args)
	checkBuildValues(p, "secrets", r.Secrets)
	for id := range r.Secrets {
		if strings.Contains(id, "/") {
			p.Add("secrets", "has the id %q; it must not have a slash", clip(id))
		}
	}
}

func checkBuildValues(p *Problems, field string, values map[string]string) {
	if len(values) > BuildArgsMax {
		p.Add(field, "has %d entries; at most %d are allowed", len(values), BuildArgsMax)
		return
	}
	for name, value := range values {
		if name == "" || strings.ContainsAny(name, "= \t\n") {
			p.Add(field, "has the name %q; it must not be empty, or have an equals sign or a space", clip(name))
		}
		if n := len(name) + len(value); n > BuildArgBytesMax {
			p.Add(field, "%s has %d bytes; at most %d are allowed", clip(name), n, BuildArgBytesMax)
		}
	}
}

// The states of a step in a [BuildEvent].
const (
	StepWaiting  = "waiting"
	StepStarted  = "started"
	StepCached   = "cached"
	StepDone     = "done"
	StepFailed   = "failed"
	StepCanceled = "canceled" // it did not run, or not to its end: another step failed
)

// BuildEvent is one line of the log of a build. It is a step that changed its state, a line
// of output, a word of the platform, or the end. A line with its time alone says that the
// build goes on.
type BuildEvent struct {
	At     Time   `json:"at"`
	Step   int    `json:"step,omitempty"`  // counts from 1; 0 is none
	Steps  int    `json:"steps,omitempty"` // as far as it is known
	Stage  string `json:"stage,omitempty"`
	Name   string `json:"name,omitempty"`   // the step as the Dockerfile says it, or what the platform does
	Line   int    `json:"line,omitempty"`   // of the Dockerfile
	Vertex string `json:"vertex,omitempty"` // tells steps apart that have one name; it has no meaning
	State  string `json:"state,omitempty"`  // of the step; empty for output
	Stream string `json:"stream,omitempty"`
	Text   string `json:"text,omitempty"`
	TookMs int64  `json:"tookMs,omitempty"` // of a step that ended, in milliseconds
	// Current and Total are of a transfer, in bytes. A total of 0 is unknown.
	Current int64 `json:"current,omitempty"`
	Total   int64 `json:"total,omitempty"`
	// Status is final: the build has ended, and no line follows.
	Status  string        `json:"status,omitempty"`
	Image   string        `json:"image,omitempty"`
	Failure *BuildFailure `json:"failure,omitempty"`
}

// Plain is the event as a line of text, or empty if it is none, as the progress of a
// transfer.
func (e *BuildEvent) Plain() string {
	name := e.Name
	if e.Step > 0 && e.Steps > 0 {
		name = fmt.Sprintf("[%s%d/%d] %s", stagePrefix(e.Stage), e.Step, e.Steps, e.Name)
	}
	switch {
	case e.Status != "" && e.Failure != nil:
		return e.Status + ": " + e.Failure.Text()
	case e.Status != "":
		return strings.TrimSpace(e.Status + " " + e.Image)
	case e.State == StepCached:
		return name + " CACHED"
	case e.State == StepDone:
		return fmt.Sprintf("%s DONE %.1fs", name, float64(e.TookMs)/float64(time.Second/time.Millisecond))
	case e.State == StepFailed:
		return name + " FAILED"
	case e.State == StepCanceled:
		return name + " CANCELED"
	case e.State == StepStarted:
		return name
	case e.Total > 0 || e.Current > 0:
		return ""
	}
	return e.Text
}

func stagePrefix(stage string) string {
	if stage == "" {
		return ""
	}
	return stage + " "
}

// BuiltImage is the reference of the image of a build.
func BuiltImage(name, tag string) string { return KindSandbox + "/" + name + ":" + tag }

// buildTagLength is how many letters of the id of a build are the tag of its image: 50
// random bits.
const buildTagLength = 10

// BuildTag is the tag of the image that a build makes for a sandbox.
func BuildTag(id string) string { return id[:min(len(id), buildTagLength)] }
