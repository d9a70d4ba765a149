package build

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/store"
)

// aliveEvery is how often a reader of a log hears that the build goes on. Proxies end
// connections that are silent for a minute.
const aliveEvery = 15 * time.Second

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/builds", access.Admin, "List the builds of the workspace", api.Read((*Server).listBuilds)),
	api.POST("/builds", access.Admin, "Create a build of an image", api.Offer[doze.BuildRequest](UploadHeader, (*Server).createBuild).Revealing().
		About("The header X-Blaxel-Upload-Url of the answer, and its member uploadUrl, say where the files are to be put. The build begins when they are there.")),
	api.GET("/builds/{build}", access.Admin, "Read a build", api.Read((*Server).readBuild)),
	api.DELETE("/builds/{build}", access.Admin, "Cancel a build", api.Read((*Server).deleteBuild).
		About("It is 409 for a build that has ended.")),
	api.GET("/builds/{build}/logs", access.Admin, "Read the log of a build", api.Stream[doze.BuildEvent]((*Server).logs).Asks("follow").
		About("The last line has the status of a build that has ended.")),
	api.PUT("/builds/{build}/context", "", "Upload the files of a build", api.Read((*Server).upload).Takes(api.ZipType).Asks("token").
		About("The body is a zip, a tar or a tar.gz with the Dockerfile in it. The address is the credential, and is good once.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	return api.Section{
		Routes: api.Bind(s, rows),
		Schemas: openapi.Schemas{
			Members: map[string]openapi.Schema{
				"Build.status": api.Words(
					doze.BuildUploading, doze.BuildBuilding, doze.BuildDeploying, doze.BuildDeployed, doze.BuildBuilt, doze.BuildFailed, doze.BuildCancelled,
				),
				"Build.resourceType":      api.Words(doze.KindSandbox, "image"),
				"Build.position":          api.Text("in the queue; 1 is the next"),
				"Build.image":             api.Text("what spec.runtime.image of a sandbox takes"),
				"BuildRequest.name":       api.Text("of the image, with or without a tag"),
				"BuildRequest.dockerfile": api.Letters(doze.BuildPathMax),
				"BuildRequest.target":     api.Letters(doze.BuildPathMax),
				"BuildRequest.args":       {MaxProperties: doze.BuildArgsMax},
				"BuildRequest.secrets":    {MaxProperties: doze.BuildArgsMax},
				"BuildEvent.state":        api.Words(doze.StepWaiting, doze.StepStarted, doze.StepCached, doze.StepDone, doze.StepFailed, doze.StepCanceled),
				"BuildEvent.tookMs":       api.Text("in milliseconds"),
			},
			Needs: map[string][]string{"BuildRequest": {"name"}},
		},
	}
}

// find is the build of a path, if it is of the caller's workspace.
func (s *Server) find(ctx context.Context, r *http.Request) (store.Build, error) {
	b, err := s.Store.Build(ctx, r.PathValue("build"))
	if err == nil && b.Workspace != api.Caller(ctx).Workspace {
		err = doze.Errorf(doze.NotFound, "there is no such build")
	}
	return b, err
}

// view is a build as callers see it.
func (s *Server) view(b *store.Build) doze.Build {
	out := b.Build
	out.Status = statusOf(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.live[b.ID]; j != nil && !j.runs && b.Phase == store.BuildQueued {
		out.Position = s.positionLocked(j)
	}
	return out
}

func (s *Server) listBuilds(ctx context.Context, _ *http.Request) ([]doze.Build, error) {
	all, err := s.Store.Builds(ctx, api.Caller(ctx).Workspace)
	list := make([]doze.Build, len(all))
	for i := range all {
		list[i] = s.view(&all[i])
	}
	return list, err
}

func (s *Server) readBuild(ctx context.Context, r *http.Request) (doze.Build, error) {
	b, err := s.find(ctx, r)
	if err != nil {
		return doze.Build{}, err
	}
	return s.view(&b), nil
}

// createBuild offers an upload for an image of the workspace.
func (s *Server) createBuild(ctx context.Context, _ *http.Request, body map[string]any) (doze.Build, string, error) {
	var in doze.BuildRequest
	var wrong doze.Problems
	api.Decode(&in, body, "", &wrong)
	in.Check(&wrong)
	c := api.Caller(ctx)
	name, tag, err := s.Images().CheckBuild(ctx, c.Workspace, in.Name, &wrong)
	if err == nil {
		err = wrong.Err()
	}
	if err != nil {
		return doze.Build{}, "", err
	}
	b, err := s.Offer(ctx, Offer{ID: store.NewID(), Workspace: c.Workspace, Name: name, Tag: tag, By: c.Sub, Options: in})
	return b, b.UploadURL, err
}

// deleteBuild cancels a build, and answers it as it is then. It does not end with its
// caller: a client that is interrupted twice hangs up at once.
func (s *Server) deleteBuild(ctx context.Context, r *http.Request) (doze.Build, error) {
	ctx = context.WithoutCancel(ctx)
	b, err := s.find(ctx, r)
	if err != nil {
		return doze.Build{}, err
	}
	j := s.jobOf(b.ID)
	if j == nil {
		return doze.Build{}, doze.Errorf(doze.Conflict, "the build has ended: it is %s", b.Status)
	}
	if err := s.cancelBuild(ctx, j, "a caller cancelled the build", false); err != nil {
		return doze.Build{}, err
	}
	if err := s.tell(ctx, &b, "the build was cancelled: upload the files again to build"); err != nil {
		slog.WarnContext(ctx, "a sandbox does not say that its build was cancelled", "sandbox", b.UID, "err", err)
	}
	b, err = s.find(ctx, r)
	return s.view(&b), err
}

// Cancel cancels the build of an image that has not ended, and reports whether there was one.
func (s *Server) Cancel(ctx context.Context, t Target) (bool, error) {
	s.mu.Lock()
	j := s.targets[string(t)]
	s.mu.Unlock()
	if j == nil {
		return false, nil
	}
	return true, s.cancelBuild(ctx, j, "a caller deleted the image", true)
}

// Latest is the last build of an image of a workspace that is for no sandbox, or NotFound.
func (s *Server) Latest(ctx context.Context, workspace, name string) (doze.Build, error) {
	all, err := s.Store.BuildsOf(ctx, workspace, name)
	if err != nil {
		return doze.Build{}, err
	}
	i := slices.IndexFunc(all, func(b store.Build) bool { return b.UID == "" })
	if i < 0 {
		return doze.Build{}, doze.Errorf(doze.NotFound, "there is no build of %.80q", name)
	}
	return s.view(&all[i]), nil
}

// waits says what a build waits for.
func waits(position int) string {
	if position <= 1 {
		return "this build is the next"
	}
	return fmt.Sprintf("%d builds are before this one", position-1)
}

// logs streams the log of a build, to its end if the caller asks to follow it.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	b, err := s.find(ctx, r)
	if err != nil {
		return err
	}
	follow := api.Follow.In(r.URL.Query())
	w.Header().Set("Content-Type", api.NDJSONType)
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	file, at := s.file(b.ID, logKind), int64(0)
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		to, changed, ended := int64(-1), (<-chan struct{})(nil), true
		if j := s.jobOf(b.ID); j != nil {
			if to, changed, ended = j.log.state(); ended { // its last line is there
				to = -1
			}
		}
		var failed error
		if at, failed = copyLog(w, file, at, to); failed != nil {
			return s.broken(ctx, b.ID, failed)
		}
		if ended || !follow {
			return nil
		}
		if err := flush(); err != nil {
			return s.broken(ctx, b.ID, err)
		}
		select {
		case <-changed:
		case <-alive.C:
			raw, _ := json.Marshal(doze.BuildEvent{At: doze.Time{Time: time.Now()}}) // numbers and text always encode
			if _, err := w.Write(append(raw, '\n')); err != nil {
				return s.broken(ctx, b.ID, err)
			}
		case <-ctx.Done():
			return s.broken(ctx, b.ID, context.Cause(ctx))
		}
	}
}

// broken ends an answer that has begun, so that it does not look whole.
func (s *Server) broken(ctx context.Context, id string, err error) error {
	slog.DebugContext(ctx, "the log of a build was cut short", "build", id, "err", err)
	panic(http.ErrAbortHandler)
}

// Lines returns what the builds of a name said, for a query, of those for sandboxes or of
// those for images alone.
func (s *Server) Lines(ctx context.Context, workspace string, q *fleet.LogQuery, sandboxes bool) (lines []fleet.LogLine, err error) {
	all, err := s.Store.BuildsOf(ctx, workspace, q.Name)
	if err != nil {
		return nil, err
	}
	if q.OldestFirst {
		slices.Reverse(all)
	}
	for _, b := range all {
		if (b.UID != "") != sandboxes {
			continue
		}
		err := readLog(s.file(b.ID, logKind), func(e doze.BuildEvent) bool {
			for i, text := range splitLines(e.Plain()) {
				l := fleet.LogLine{
					LogPosition: fleet.LogPosition{At: e.At.UnixNano() + int64(i), Origin: "build/" + b.ID}, Severity: severityOf(&e), Text: text,
				}
				if q.Takes(l) {
					lines = append(lines, l)
				}
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		if len(lines) > q.Limit { // those of other builds come after these
			break
		}
	}
	return lines, nil
}

// splitLines are the lines of a text; none for an empty one.
func splitLines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}

func severityOf(e *doze.BuildEvent) string {
	if e.Failure != nil || e.State == doze.StepFailed {
		return doze.LogError
	}
	return doze.LogInfo
}
