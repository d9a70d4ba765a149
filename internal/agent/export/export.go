// Package export makes archives of a sandbox, which it freezes first, and unpacks
// them in another one.
package export

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/archive"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/process"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// stopTimeout is how long a process may take to end before an archive is
	// made. A caller may ask for another time, of at most stopTimeoutMax.
	stopTimeout    = 10 * time.Second
	stopTimeoutMax = 10 * time.Minute
	excludesMax    = 1000
)

// Request is the body of POST /archive/export.
type Request struct {
	archive.Target

	Async         bool     `json:"async"`
	DryRun        bool     `json:"dryRun"`
	Excludes      []string `json:"excludes"`
	SaveProcesses *bool    `json:"saveProcesses"`      // true, unless it is false
	StopTimeout   *int     `json:"stopTimeoutSeconds"` // 0 kills at once
	Image         string   `json:"imageMountPoint"`
}

// Result is what has been archived, or would be.
type Result struct {
	Manifest         archive.Manifest `json:"manifest"`
	Size             int64            `json:"size"`
	Duration         string           `json:"duration,omitempty"`
	Uploaded         bool             `json:"uploaded"`
	StoppedProcesses []string         `json:"stoppedProcesses,omitempty"`
	Changes          []archive.Change `json:"changes,omitempty"` // of a dry run
}

// Progress is how far the last export is.
type Progress struct {
	State      string `json:"state"` // running, succeeded or failed
	StartedAt  string `json:"startedAt"`
	FinishedAt string `json:"finishedAt,omitempty"`
	Size       int64  `json:"size,omitempty"`
	Uploaded   bool   `json:"uploaded,omitempty"`
	Error      string `json:"error,omitempty"`
}

// Status is whether the sandbox is frozen, and why.
type Status struct {
	State            string    `json:"state"` // active, quiescing or quiesced
	Since            string    `json:"since,omitempty"`
	Reason           string    `json:"reason,omitempty"`
	StoppedProcesses []string  `json:"stoppedProcesses,omitempty"`
	Export           *Progress `json:"export,omitempty"`
}

// Exporter makes archives, one at a time.
type Exporter struct {
	version   string // of the agent
	root      string // where files are unpacked; empty means nowhere
	processes *process.Table
	sessions  func() // ends what people have open
	vars      *environ.Variables
	client    *http.Client
	tasks     sync.WaitGroup

	mu     sync.Mutex
	status Status             // guarded by mu
	ran    []command.Spec     // guarded by mu: what ran when the sandbox was frozen; nil while it is not
	cancel context.CancelFunc // guarded by mu: of the export that runs; nil without
	closed bool               // guarded by mu
}

// New returns the archives of a sandbox whose agent has a version. It
// unpacks files below root, unless that is empty. EndSessions ends the shells that
// people have open.
func New(version, root string, processes *process.Table, endSessions func(), vars *environ.Variables) *Exporter {
	return &Exporter{
		version:   version,
		root:      root,
		processes: processes,
		sessions:  endSessions,
		vars:      vars,
		status:    Status{State: "active"},
		client: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, DisableCompression: true},
		},
	}
}

// Frozen reports whether nothing may change the sandbox.
func (x *Exporter) Frozen() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status.State != "active"
}

// Running reports whether an export runs.
func (x *Exporter) Running() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cancel != nil
}

// enter sets the state of the sandbox.
func (x *Exporter) enter(state string, stopped []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.status.State, x.status.StoppedProcesses = state, stopped
	x.status.Since, x.status.Reason = time.Now().UTC().Format(time.RFC3339), "export"
}

// Close ends an export that runs and waits for it.
func (x *Exporter) Close() {
	x.mu.Lock()
	x.closed = true
	if x.cancel != nil {
		x.cancel()
	}
	x.mu.Unlock()
	x.tasks.Wait()
}

// Check adds the mistakes of a request.
func (in *Request) Check(p *doze.Problems) {
	if !in.DryRun {
		in.Target.Check(p)
	}
	if len(in.Excludes) > excludesMax {
		p.Add("excludes", "has %d paths; at most %d are allowed", len(in.Excludes), excludesMax)
	}
	if t := in.StopTimeout; t != nil && (*t < 0 || *t > int(stopTimeoutMax/time.Second)) {
		p.Add("stopTimeoutSeconds", "must be 0 to %d", int(stopTimeoutMax/time.Second))
	}
	switch info, err := os.Stat(in.Image); {
	case in.Image == "":
		p.Missing("imageMountPoint")
	case !filepath.IsAbs(in.Image) || err != nil || !info.IsDir():
		p.Add("imageMountPoint", "is %q, which is not an absolute path of a directory", mistake.Clip(in.Image))
	}
}

// Export archives what is different from the image. A real one freezes the sandbox
// first, and leaves it frozen: an archived sandbox ends next.
func (x *Exporter) Export(w http.ResponseWriter, r *http.Request, _ string) error {
	in, err := body.Decode[Request](w, r)
	if err != nil {
		return err
	}
	ctx, done, err := x.begin(r.Context(), in.Async)
	if err != nil {
		return err
	}
	if !in.Async {
		out, err := x.runExport(ctx, in)
		done(out, err)
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, out)
		}
		return err
	}
	begun := x.now().Export // the answer is how it began, however fast it ends
	x.tasks.Go(func() { done(x.runExport(ctx, in)) })
	httpx.WriteJSON(w, http.StatusAccepted, begun)
	return nil
}

// begin takes the right to export; done gives it back. An asynchronous one
// outlives the call.
func (x *Exporter) begin(ctx context.Context, async bool) (context.Context, func(Result, error), error) {
	if async {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cancel != nil || x.closed {
		cancel()
		return nil, nil, doze.Errorf(doze.Conflict, "an export is already running")
	}
	x.cancel = cancel
	x.status.Export = &Progress{State: "running", StartedAt: time.Now().UTC().Format(time.RFC3339)}
	return ctx, func(out Result, err error) {
		cancel()
		x.mu.Lock()
		defer x.mu.Unlock()
		x.cancel = nil
		p := *x.status.Export
		p.State, p.FinishedAt, p.Size, p.Uploaded = "succeeded", time.Now().UTC().Format(time.RFC3339), out.Size, out.Uploaded
		if err != nil {
			p.State, p.Error = "failed", doze.Public(err).Message
		}
		x.status.Export = &p // answers may still have the old one
	}, nil
}

// now returns the status.
func (x *Exporter) now() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status
}

// runExport does what was asked for.
func (x *Exporter) runExport(ctx context.Context, in Request) (out Result, err error) {
	began := time.Now()
	var processes []byte
	if !in.DryRun {
		var commands []command.Spec
		if commands, out.StoppedProcesses, err = x.quiet(ctx, in.StopTimeout); err != nil {
			return out, err
		}
		if in.SaveProcesses == nil || *in.SaveProcesses {
			if processes, err = json.Marshal(commands); err != nil {
				return out, err
			}
		}
	}
	changes, err := archive.Scan(ctx, "/", in.Image, in.Excludes)
	if err != nil {
		return out, err
	}
	pack, err := archive.New("/", changes, in.Excludes, processes, x.version, began)
	if err != nil {
		return out, err
	}
	out.Manifest, out.Size = pack.Manifest, pack.Size
	if in.DryRun {
		out.Changes = changes
	} else {
		if err := in.Send(ctx, x.client, pack); err != nil {
			return out, err
		}
		out.Uploaded = true
	}
	out.Duration = time.Since(began).Round(time.Millisecond).String()
	return out, nil
}

// quiet freezes the sandbox and ends everything in it, if need be by force after
// that many seconds. It returns what ran when the sandbox was frozen, also if
// that was earlier, and the names of what ended now. The error is Timeout if ctx
// ended while something still ran.
func (x *Exporter) quiet(ctx context.Context, seconds *int) (ran []command.Spec, ended []string, err error) {
	x.enter("quiescing", nil)
	ran = x.remember(x.processes.Freeze())
	wait := stopTimeout
	if seconds != nil {
		wait = time.Duration(*seconds) * time.Second
	}
	grace, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended = x.processes.Dismiss(grace, x.sessions)
	x.processes.Await(grace)
	if !x.processes.KillOrphans(ctx) {
		return ran, ended, doze.Errorf(doze.Timeout, "something in the sandbox does not end: try again")
	}
	x.enter("quiesced", ended)
	return ran, ended, nil
}

// remember returns what ran when the sandbox was frozen: now, unless it is
// frozen already.
func (x *Exporter) remember(now []command.Spec) []command.Spec {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ran == nil {
		x.ran = now
	}
	return x.ran
}

// Quiesce is called by the host before it takes the files of the sandbox. To
// ask twice is as good as once. The answer has no variables of the sandbox, since some
// are secrets. A process gets them again when it is started again.
func (x *Exporter) Quiesce(w http.ResponseWriter, r *http.Request, _ string) error {
	in, err := body.Decode[agentapi.Quiet](w, r)
	if err != nil {
		return err
	}
	all, _, err := x.quiet(r.Context(), in.StopTimeout)
	if err != nil {
		return err
	}
	ran := slices.Clone(all) // an export says all of it
	for i := range ran {
		ran[i].Env = x.vars.Given().Apart(ran[i].Env)
		if ran[i].Image != nil {
			ran[i].Command = "" // its name alone starts it again
		}
	}
	processes, err := json.Marshal(ran)
	if err != nil {
		return err
	}
	httpx.WriteJSON(w, http.StatusOK, agentapi.Quiesced{Processes: processes})
	return nil
}

// Unpack is called by the host with the files of a sandbox that was archived:
// this one shall have them.
func (x *Exporter) Unpack(w http.ResponseWriter, r *http.Request, _ string) error {
	if x.root == "" {
		return doze.Errorf(doze.Unprocessable, "this agent has no root to unpack files into")
	}
	if err := archive.Unpack(r.Context(), x.root, r.Body); err != nil {
		return err
	}
	httpx.WriteJSON(w, http.StatusOK, struct{}{})
	return nil
}

// Status says whether the sandbox is frozen, and how far the last export is.
func (x *Exporter) Status(*http.Request, string) (Status, error) {
	return x.now(), nil
}

// Resume lets the sandbox change again. What was stopped stays stopped.
func (x *Exporter) Resume(*http.Request, string) (Status, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cancel != nil {
		return Status{}, doze.Errorf(doze.Conflict, "an export is running; wait for its end")
	}
	x.processes.Thaw()
	x.ran = nil
	x.status = Status{State: "active", Export: x.status.Export}
	return x.status, nil
}
