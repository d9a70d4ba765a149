package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/dozehq/doze/internal/buildapi"
	controlapi "github.com/moby/buildkit/api/services/control"
	"github.com/moby/buildkit/client"
	dockerfile "github.com/moby/buildkit/frontend/dockerfile/builder"
	gwclient "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/identity"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/secrets/secretsprovider"
	"github.com/moby/buildkit/solver/pb"
	"github.com/opencontainers/go-digest"
	"github.com/tonistiigi/fsutil"

	"github.com/dozehq/doze/builder/progress"
	"github.com/dozehq/doze/builder/recipe"
)

const (
	// frontendName is BuildKit's word for Dockerfiles.
	frontendName = "dockerfile.v0"
	// buildOption tells our frontend which build it works for.
	buildOption = "doze:build"
	// putStore is the store in which BuildKit finds images that were put.
	putStore = "doze"
	// agentContext has the stand-in for the agent of clients.
	agentContext = "doze-agent"
	// tickEvery is how often a build tells how much of an image is unpacked.
	tickEvery = 500 * time.Millisecond
	// defaultDockerfile is the name of a Dockerfile whose order has none.
	defaultDockerfile = "Dockerfile"
)

// entitlements are what a Dockerfile may ask for besides. The network of the machine is that
// of every step; --security=insecure would end the border between steps and the builder.
var entitlements = []string{"network.host"}

// standIn is what clients copy in place of their agent. The platform mounts an agent of its
// own, and starts it.
const standIn = "#!/bin/sh\n# The agent runs already: the platform starts it in every sandbox.\nexit 0\n"

// ErrBuilding means that a build with the same id runs.
var ErrBuilding = errors.New("a build with this id runs already")

// Order is a build, with the directory of its context.
type Order struct {
	buildapi.Build
	Dir string
}

// Build builds, and calls emit for what happens. Emit must not block for long.
func (e *Engine) Build(ctx context.Context, o Order, emit func(buildapi.Event)) (*buildapi.Result, *buildapi.Failure) {
	rec := progress.New(emit, secretsOf(&o.Build))
	rec.Unpacks(func(layer digest.Digest) (int64, int64) { return e.unpacked(ctx, layer) })
	if err := e.enter(o.ID, rec); err != nil {
		return nil, rec.Failure(err)
	}
	defer e.leave(o.ID)
	release, err := e.use(o.Names)
	if err != nil {
		return nil, rec.Failure(err)
	}
	defer release()
	if _, err := e.makeRoom(ctx); err != nil {
		return nil, rec.Failure(err)
	}
	e.noteImages(ctx)
	result, err := e.solve(ctx, o, rec)
	if err != nil && ctx.Err() != nil { // whatever BuildKit makes of it
		err = fmt.Errorf("%w: %w", context.Canceled, err)
	}
	if err != nil {
		return nil, rec.Failure(err)
	}
	return result, nil
}

// secretsOf are the texts that no event may have.
func secretsOf(b *buildapi.Build) (all []string) {
	for _, value := range b.Secrets {
		all = append(all, value)
	}
	for _, l := range b.Logins {
		all = append(all, l.Password)
	}
	return all
}

// enter notes a build.
func (e *Engine) enter(id string, rec *progress.Recorder) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.builds[id] != nil {
		return ErrBuilding
	}
	e.builds[id] = rec
	return nil
}

// leave forgets it.
func (e *Engine) leave(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.builds, id)
}

// solve has BuildKit build, and holds the result.
func (e *Engine) solve(ctx context.Context, o Order, rec *progress.Recorder) (*buildapi.Result, error) {
	opt, err := e.options(o, rec)
	if err != nil {
		return nil, err
	}
	solving, end := context.WithCancelCause(ctx)
	defer end(nil)
	status := make(chan *client.SolveStatus)
	told := make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(tickEvery)
		defer tick.Stop()
		for {
			select {
			case s, more := <-status: // until BuildKit closes it
				if !more {
					return
				}
				if err := rec.Take(s); err != nil {
					end(err)
				}
			case now := <-tick.C:
				rec.Tick(now)
			}
		}
	}()
	forget := e.expect(opt.Ref, o.ID)
	_, err = e.client.Solve(solving, nil, opt, status)
	<-told
	rec.Finish(err == nil)
	result := forget()
	if cause := context.Cause(solving); errors.Is(cause, progress.ErrOutput) {
		err = cause
	}
	if err == nil && result == nil {
		err = errors.New("the build made no image")
	}
	if err != nil {
		result = nil
		if dropErr := e.DropResult(context.WithoutCancel(ctx), o.ID); dropErr != nil { // it may have been held
			e.log.WarnContext(ctx, "cannot delete half a result", "build", o.ID, "err", dropErr)
		}
	}
	// The history has the output of the steps, with their secrets.
	_, forgetErr := e.client.ControlClient().UpdateBuildHistory(context.WithoutCancel(ctx), &controlapi.UpdateBuildHistoryRequest{Ref: opt.Ref, Delete: true})
	if forgetErr != nil && !errdefs.IsNotFound(forgetErr) {
		e.log.WarnContext(ctx, "cannot forget a build", "err", forgetErr)
	}
	return result, err
}

// resultsDir has a file for each result, with the digest of its manifest.
func (e *Engine) resultsDir() string { return filepath.Join(e.dir, "results") }

// resultFile is that file.
func (e *Engine) resultFile(id string) string { return filepath.Join(e.resultsDir(), id) }

// agentDir has the stand-in for the agent.
func (e *Engine) agentDir() string { return filepath.Join(e.dir, "agent") }

// makeAgent writes it.
func (e *Engine) makeAgent() error {
	if err := os.MkdirAll(e.agentDir(), 0o755); err != nil { //nolint:gosec // a directory of images
		return err
	}
	file := filepath.Join(e.agentDir(), "sandbox-api")
	if err := os.WriteFile(file, []byte(standIn), 0o755); err != nil { //nolint:gosec // a program of images
		return err
	}
	return os.Chtimes(file, time.Unix(0, 0), time.Unix(0, 0)) // the same in each image
}

// options are what BuildKit's client is told.
func (e *Engine) options(o Order, rec *progress.Recorder) (client.SolveOpt, error) {
	files, err := fsutil.NewFS(o.Dir)
	if err != nil {
		return client.SolveOpt{}, err
	}
	agent, err := fsutil.NewFS(e.agentDir())
	if err != nil {
		return client.SolveOpt{}, err
	}
	attrs, err := e.attributes(o, rec)
	if err != nil {
		return client.SolveOpt{}, err
	}
	secrets := map[string][]byte{}
	for id, value := range o.Secrets {
		secrets[id] = []byte(value)
	}
	return client.SolveOpt{
		Ref: identity.NewID(), // an id of ours may come again
		// Each context is new to BuildKit. It would take a file for the one of an earlier context
		// that has the same size and time, as files of archives often have.
		SharedKey:     identity.NewID(),
		Frontend:      frontendName,
		FrontendAttrs: attrs,
		LocalMounts:   map[string]fsutil.FS{"context": files, "dockerfile": files, agentContext: agent},
		OCIStores:     map[string]content.Store{putStore: e.content},
		Session:       []session.Attachable{secretsprovider.FromMap(secrets), logins(o.Logins)},
		Exports: []client.ExportEntry{{Type: client.ExporterImage, Attrs: map[string]string{
			"compression": "uncompressed", "force-compression": "true", "oci-mediatypes": "true", "push": "false",
		}}},
		AllowedEntitlements: entitlements,
	}, nil
}

// attributes are the options of the frontend. Rec is told of those that have no effect.
func (e *Engine) attributes(o Order, rec *progress.Recorder) (map[string]string, error) {
	name := o.Dockerfile
	if name == "" {
		name = defaultDockerfile
	}
	attrs := map[string]string{
		"filename":  name,
		buildOption: o.ID,
		// With a command line, BuildKit does not look for a frontend in a registry, whatever
		// "# syntax=" says.
		"cmdline": "doze",
	}
	if o.Target != "" {
		attrs["target"] = o.Target
	}
	if o.NoCache {
		attrs["no-cache"] = ""
	}
	for key, value := range o.Args {
		attrs["build-arg:"+key] = value
	}
	for key, value := range o.Labels {
		attrs["label:"+key] = value
	}
	e.mu.Lock()
	for written, key := range o.Names {
		if img := e.images[key]; img != nil {
			attrs[contextOption(written)] = "oci-layout://" + putStore + "@" + img.Manifest.String()
		}
	}
	e.mu.Unlock()
	text, err := Dockerfile(o.Dir, o.Dockerfile)
	if err != nil {
		return nil, err
	}
	rec.Ignored(func(name string) string { return ignoredBy(o.Dir, o.Dockerfile, name) })
	needs, err := recipe.Read(text, o.Target, o.Args)
	if m, ok := errors.AsType[*recipe.MistakeError](err); ok && !m.Limit {
		return attrs, nil // BuildKit says it with the line
	}
	if err != nil {
		return nil, err
	}
	if len(needs.Unused) > 0 {
		rec.Warn("no ARG of the Dockerfile names these build arguments, which have no effect: " + strings.Join(needs.Unused, ", "))
	}
	for _, b := range needs.Bases {
		_, put := attrs[contextOption(b.Image)]
		rec.Base(b.Image, b.Stage, b.Steps, b.Line, put)
	}
	for _, name := range needs.Provided {
		attrs[contextOption(name)] = "local:" + agentContext
	}
	return attrs, nil
}

// contextOption is the option that gives an image another source.
func contextOption(name string) string { return "context:" + progress.ContextName(name) }

// Dockerfile reads the Dockerfile of a context. Errors that are the user's are
// *[recipe.MistakeError].
func Dockerfile(dir, name string) ([]byte, error) {
	if name == "" {
		name = defaultDockerfile
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	st, err := root.Stat(name)
	switch {
	case err != nil:
		return nil, &recipe.MistakeError{Text: fmt.Sprintf("failed to read dockerfile: the archive has no file %.200q", name)}
	case !st.Mode().IsRegular():
		return nil, &recipe.MistakeError{Text: fmt.Sprintf("failed to read dockerfile: %.200q is no file", name)}
	case st.Size() > buildapi.DockerfileMax:
		return nil, &recipe.MistakeError{Text: fmt.Sprintf("failed to read dockerfile: it has %d bytes, more than %d", st.Size(), buildapi.DockerfileMax)}
	}
	return root.ReadFile(name)
}

// frontend is BuildKit's own for Dockerfiles. It tells the recorder of the build where each
// step is in the Dockerfile.
func (e *Engine) frontend(ctx context.Context, c gwclient.Client) (*gwclient.Result, error) {
	e.mu.Lock()
	rec := e.builds[c.BuildOpts().Opts[buildOption]]
	e.mu.Unlock()
	if rec == nil {
		return dockerfile.Build(ctx, c)
	}
	return dockerfile.Build(ctx, placing{c, rec})
}

// placing is a client of BuildKit that looks at what it solves.
type placing struct {
	gwclient.Client
	rec *progress.Recorder
}

// Solve implements [gwclient.Client].
func (p placing) Solve(ctx context.Context, req gwclient.SolveRequest) (*gwclient.Result, error) {
	place(req.Definition, p.rec)
	return p.Client.Solve(ctx, req)
}

// place reads the lines of the Dockerfile in a definition.
func place(def *pb.Definition, rec *progress.Recorder) {
	if def == nil || def.Source == nil {
		return
	}
	for vertex, locations := range def.Source.Locations {
		for _, l := range locations.Locations {
			if len(l.Ranges) > 0 && l.Ranges[0].Start != nil {
				rec.Place(digest.Digest(vertex), int(l.Ranges[0].Start.Line))
				break
			}
		}
	}
}
