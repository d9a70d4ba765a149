package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/dozehq/doze/internal/fleet"
)

const (
	// readyTimeout bounds the start of the program, and its first answer after a wake.
	readyTimeout = 60 * time.Second
	// tidyTimeout bounds the removal of what a build leaves in its machine. The next build
	// removes the rest.
	tidyTimeout = 10 * time.Second
	// busyPause is how long a build waits when the program has as many as it may.
	busyPause = 100 * time.Millisecond
	// cacheShare is the part of a builder's disk that the cache may take after a build:
	// the rest is for the next one.
	cacheShare = 0.6
	// answerMax bounds what is read of the output of the program, and outputMax what of its
	// end is in the log, in bytes.
	answerMax, outputMax = 1 << 20, 4 << 10
	// processName is that of the program, for the agent.
	processName = "doze-builder"
)

// Build implements [fleet.Builder].
func (r *Room) Build(ctx context.Context, o fleet.BuildOrder, archive io.Reader, emit func(fleet.BuildEvent)) (fleet.Built, error) {
	if !buildapi.ValidID(o.ID) || o.WorkspaceID == "" {
		return fleet.Built{}, doze.Errorf(doze.Internal, "the order of the build %.40q names no build or no workspace", o.ID)
	}
	root, err := r.o.Root(ctx)
	if err != nil {
		return fleet.Built{}, err
	}
	b, err := r.enter(ctx, o.WorkspaceID)
	if err != nil {
		return fleet.Built{}, err
	}
	defer r.leave(b)
	ctx, cancel := within(ctx, b.life)
	defer cancel()
	if o.WorkspaceID != Platform {
		leave, err := r.queue.enter(ctx, o.WorkspaceID, func(place, running int) {
			emit(fleet.BuildEvent{
				At: time.Now(), State: fleet.BuildWaiting, Name: "wait for a turn",
				Text: fmt.Sprintf("place %d of the queue; builds under way on this node: %d", place, running),
			})
		})
		if err != nil {
			return fleet.Built{}, err
		}
		defer leave()
	}
	limit := r.o.Timeout
	if o.Timeout > 0 {
		limit = min(limit, o.Timeout)
	}
	ctx, stop := context.WithTimeoutCause(ctx, limit, doze.Errorf(doze.Timeout, "the build took longer than %v: have its steps do less, or ask the operator for a longer --build-timeout", limit))
	defer stop()
	begin := time.Now()
	built, err := r.build(ctx, b, order{BuildOrder: o, root: root}, &source{from: archive}, emit)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		slog.InfoContext(ctx, "a build made nothing", "build", o.ID, "workspace", o.Workspace, "took", time.Since(begin), "err", err)
		return fleet.Built{}, err
	}
	slog.InfoContext(ctx, "built an image", "build", o.ID, "workspace", o.Workspace, "image", built.Ref, "bytes", built.Bytes, "took", time.Since(begin))
	return built, nil
}

// within returns a context that ends with another one, too, and with its cause.
func within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { end(context.Cause(life)) })
	return ctx, func() { stop(); end(nil) }
}

// order is what is to be built, and on which root file system.
type order struct {
	fleet.BuildOrder

	root string
}

// source is the archive of a build. It remembers that it could not be read: that is no
// fault of the builder.
type source struct {
	from  io.Reader
	cause atomic.Pointer[error] // a request reads in a goroutine of its own
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	n, err := s.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.cause.Store(&err)
	}
	return n, err
}

// err is why the archive could not be read, or nil.
func (s *source) err() error {
	if cause := s.cause.Load(); cause != nil {
		return *cause
	}
	return nil
}

// build is Build of an order whose turn has come.
func (r *Room) build(ctx context.Context, b *bench, o order, archive *source, emit func(fleet.BuildEvent)) (_ fleet.Built, err error) {
	var asks buildapi.Client
	var release func()
	err = doingLong(quietMost, "start the builder", emit, func(*task) error {
		asks, release, err = r.open(ctx, b, o)
		return err
	})
	if err != nil {
		return fleet.Built{}, err
	}
	defer release()
	defer r.close(ctx, b, asks, o.ID)
	err = doingLong(quietMost, "unpack the files of the build", emit, func(t *task) error {
		_, err := asks.PutContext(ctx, o.ID, t.counts(archive))
		return err
	})
	if err != nil {
		if unread := archive.err(); unread != nil {
			return fleet.Built{}, fmt.Errorf("read the archive: %w", unread)
		}
		return fleet.Built{}, r.failure(err)
	}
	in := buildapi.Build{
		ID: o.ID, Context: o.ID, Dockerfile: o.Dockerfile, Target: o.Target, Args: o.Args, Secrets: o.Secrets, NoCache: o.NoCache,
		Logins: loginsOf(o.Logins), CacheBytes: int64(cacheShare * float64(r.o.size(o.WorkspaceID).Disk.Bytes())),
	}
	var bases []fleet.Base
	if in.Names, bases, err = r.supply(ctx, asks, o, emit); err != nil {
		return fleet.Built{}, err
	}
	if err := in.Check(); err != nil {
		return fleet.Built{}, fleet.BuildFailed(err.Error(), fleet.BuildFailure{})
	}
	begin := time.Now()
	err = run(ctx, asks, in, emit)
	if failed, ok := errors.AsType[*buildapi.FailedError](err); ok && failed.Failure.Reason == buildapi.FailedStep {
		return fleet.Built{}, r.failed(failed.Failure, refusals(r.o.Machines.Egress(b.uid), begin))
	}
	if err != nil {
		return fleet.Built{}, r.failure(err)
	}
	return r.fetch(ctx, asks, o.ID, in.Names, bases, emit)
}

// run has the program build. A build that was canceled takes a moment to end there.
func run(ctx context.Context, asks buildapi.Client, in buildapi.Build, emit func(fleet.BuildEvent)) error {
	for {
		_, err := asks.Build(ctx, in, func(e buildapi.Event) { tell(e, emit) })
		refused, ok := errors.AsType[*buildapi.RefusalError](err)
		if !ok || refused.Status != http.StatusTooManyRequests {
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// loginsOf is logins as the program has them.
func loginsOf(all map[string]fleet.Login) map[string]buildapi.Login {
	logins := map[string]buildapi.Login{}
	for host, l := range all {
		logins[host] = buildapi.Login{User: l.Username, Password: l.Password}
	}
	return logins
}

// tell hands on an event of the program, unless it only says that the program lives.
func tell(e buildapi.Event, emit func(fleet.BuildEvent)) {
	out := fleet.BuildEvent{
		At: e.At, Step: e.Step, Steps: e.Steps, Stage: e.Stage, Name: e.Name, Line: e.Line, Vertex: e.Vertex,
		State: e.State, Stream: e.Stream, Text: e.Text, Took: e.Took,
	}
	if e.Progress != nil {
		out.Progress = &fleet.BuildProgress{Current: e.Progress.Current, Total: e.Progress.Total}
	}
	if e.State != "" || e.Stream != "" || e.Text != "" || e.Progress != nil {
		emit(out)
	}
}

// supply brings images into the machine that a Dockerfile names: those of the platform, of
// the workspace, and of registries with a mirror. It returns the digests that they have
// there by their names. All others come from registries, which the machine
// reaches itself, under the rules of the workspace.
func (r *Room) supply(ctx context.Context, asks buildapi.Client, o order, emit func(fleet.BuildEvent)) (names map[string]string, bases []fleet.Base, err error) {
	planned, err := asks.Plan(ctx, o.ID, buildapi.Plan{Dockerfile: o.Dockerfile, Target: o.Target, Args: o.Args})
	if err != nil {
		return nil, nil, r.failure(err)
	}
	names = map[string]string{}
	for _, name := range planned.Images {
		base, own := o.Bases[name]
		if !own {
			if err := r.o.Images.CheckPlatform(name); err != nil {
				return nil, nil, fleet.BuildFailed(doze.Public(err).Message, fleet.BuildFailure{})
			}
			base = fleet.Base{Ref: name}
			if !r.o.Images.Platform(name) {
				ref, mirrored, err := r.mirrored(ctx, name, o, emit)
				if err != nil {
					return nil, nil, err
				}
				if !mirrored {
					continue
				}
				base.Ref = ref
			}
		}
		digest, err := r.supplyOne(ctx, asks, name, base, emit)
		if err != nil {
			return nil, nil, err
		}
		names[name] = digest
		bases = append(bases, base)
	}
	return names, bases, nil
}

// mirrored returns what the mirror of its registry has now for a name, and whether there is
// one. With a login for the registry, the build pulls from there: a mirror gets no
// credentials.
func (r *Room) mirrored(ctx context.Context, name string, o order, emit func(fleet.BuildEvent)) (pinned string, ok bool, err error) {
	ref, registry, ok := r.o.Images.Mirrored(name)
	if _, own := o.Logins[registry]; !ok || own {
		return "", false, nil
	}
	err = doingLong(quietMost, "pull the image "+name+" from a mirror", emit, func(*task) error {
		pinned, err = r.o.Images.Pin(ctx, ref)
		return err
	})
	if err != nil {
		return "", false, baseFailure(name, err)
	}
	return pinned, true, nil
}

// supplyOne brings one image into the machine, unless that has it.
func (r *Room) supplyOne(ctx context.Context, asks buildapi.Client, name string, base fleet.Base, emit func(fleet.BuildEvent)) (digest string, err error) {
	err = doingLong(quietMost, "prepare the image "+name, emit, func(*task) error {
		digest, err = r.o.Images.Ensure(ctx, base)
		return err
	})
	if err != nil {
		return "", baseFailure(name, err)
	}
	has, err := asks.HasImage(ctx, digest)
	if err != nil || has {
		return digest, r.failure(err)
	}
	return digest, doing("load the image "+name, emit, func(t *task) error {
		out := newExport(ctx, r.o.Images, base)
		err := asks.PutImage(ctx, digest, t.counts(out))
		unread := out.end()
		switch {
		case err == nil: // a builder that has it by now reads nothing of it
			return nil
		case unread != nil && !errors.Is(unread, errClosed):
			return baseFailure(name, unread)
		default:
			return r.failure(err)
		}
	})
}

// fetch makes an image of what was built.
func (r *Room) fetch(ctx context.Context, asks buildapi.Client, id string, names map[string]string, bases []fleet.Base, emit func(fleet.BuildEvent)) (built fleet.Built, err error) {
	err = doing("import the image", emit, func(t *task) error {
		without := slices.Sorted(maps.Values(names))
		layout, err := asks.Result(ctx, id, slices.Compact(without)...)
		if err != nil {
			return r.failure(err)
		}
		defer func() { _ = layout.Close() }() // it was read
		archive := &source{from: layout}
		built, err = r.o.Images.Import(ctx, id, t.counts(archive), bases)
		if unread := archive.err(); err != nil && unread != nil {
			return r.failure(unread)
		}
		return err
	})
	return built, err
}

// open has the machine of a bench run and its program answer. The machine stays awake
// until release is called. One that is of an older release, or that cannot build any more, is
// replaced, unless another build uses it.
func (r *Room) open(ctx context.Context, b *bench, o order) (asks buildapi.Client, release func(), err error) {
	leave, err := b.take(ctx)
	if err != nil {
		return asks, nil, err
	}
	defer leave()
	for fresh := false; ; fresh = true {
		if err := r.machine(ctx, b, o, fresh); err != nil {
			return asks, nil, err
		}
		asks, release, err = r.reach(ctx, b, o)
		switch {
		case err == nil:
			return asks, r.stay(b, o.ID, release), nil
		case fresh || ctx.Err() != nil || !broken(err) || r.inUse(b):
			return asks, nil, r.failure(err)
		}
		slog.WarnContext(ctx, "a builder does not answer and is replaced, its cache is lost", "machine", b.uid, "err", err)
	}
}

// stay takes note of a build that uses the machine until the function that it returns is
// called.
func (r *Room) stay(b *bench, id string, release func()) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.inside[id] = true
	return func() {
		release()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(b.inside, id)
	}
}

// inUse reports whether a build uses the machine.
func (r *Room) inUse(b *bench) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(b.inside) > 0
}

// broken reports whether an error is one that a new machine may help against. A node
// without memory, or one that stops, says Unavailable.
func broken(err error) bool {
	switch doze.Public(err).Kind { //nolint:exhaustive // the others are of a node that cannot help now
	case doze.Exhausted, doze.Unavailable, doze.Unprocessable:
		return false
	}
	return true
}

// machine has a machine that fits be there, and a new one in any case if fresh is set.
// Preconditions: the turn is held.
func (r *Room) machine(ctx context.Context, b *bench, o order, fresh bool) error {
	m, made := r.o.Machines.All()[b.uid]
	if made && !fresh && (r.inUse(b) || m.usable() && m.Root == o.root && m.Memory == r.o.size(b.workspace).Memory.Bytes() && r.known(b).Began) {
		return r.o.Machines.SetNetwork(ctx, b.uid, o.Network)
	}
	if err := r.discard(ctx, b); err != nil {
		return err
	}
	rec := record{WorkspaceID: b.workspace, Token: newToken(), LastUsed: time.Now()}
	if err := r.save(b, rec); err != nil {
		return err
	}
	err := r.o.Machines.Create(ctx, fleet.Order{
		UID: b.uid, Name: "builder", Workspace: o.Workspace, Memory: r.o.size(b.workspace).Memory, Network: o.Network, Authority: b.uid,
	}, o.root)
	if err != nil {
		return errors.Join(err, r.discard(context.WithoutCancel(ctx), b))
	}
	return nil
}

// reach wakes the machine of a bench and waits for its program, which it starts in a new
// machine. Preconditions: the turn is held.
func (r *Room) reach(ctx context.Context, b *bench, o order) (asks buildapi.Client, release func(), err error) {
	hold, err := r.o.Machines.Hold(ctx, b.uid)
	if err != nil {
		return asks, nil, err
	}
	defer func() {
		if err != nil {
			hold()
		}
	}()
	rec := r.known(b)
	asks = buildapi.Client{Transport: r.o.Machines.Transport(b.uid, buildapi.Port), Token: rec.Token}
	slow := doze.Errorf(doze.Timeout, "the builder of the workspace does not answer")
	bounded, cancel := context.WithTimeoutCause(ctx, readyTimeout, slow)
	defer cancel()
	if !rec.Began {
		if err := r.start(bounded, b, rec.Token); err != nil {
			return asks, nil, err
		}
	}
	if _, err := asks.Ready(bounded); err != nil {
		slog.WarnContext(ctx, "the program of a builder does not answer", "machine", b.uid, "err", err, "output", r.output(ctx, b))
		return asks, nil, err
	}
	left := r.leftOf(b, rec)
	for _, id := range left {
		if err := errors.Join(asks.DropContext(bounded, id), asks.DropResult(bounded, id)); err != nil {
			return asks, nil, err
		}
	}
	rec.Began = true
	rec.Open = append(slices.DeleteFunc(slices.Clone(rec.Open), func(id string) bool { return slices.Contains(left, id) }), o.ID)
	return asks, hold, r.save(b, rec)
}

// leftOf returns the builds that have ended and may have left something in the machine. They
// are of a process before, or could not be tidied.
func (r *Room) leftOf(b *bench, rec record) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(rec.Open), func(id string) bool { return b.inside[id] })
}

// start starts the program in a new machine. Its agent starts it again whenever it ends.
func (r *Room) start(ctx context.Context, b *bench, token string) error {
	agent := agentapi.Client{Transport: r.o.Machines.Transport(b.uid, doze.AgentPort)}
	err := agent.StartProcess(ctx, map[string]any{
		"name": processName, "command": strings.Join(command(r.o.size(b.workspace).Disk), " "),
		"env":              map[string]string{buildapi.TokenVariable: token},
		"restartOnFailure": true, "maxRestarts": -1,
	})
	if err != nil {
		return fmt.Errorf("start the program of the builder: %w", err)
	}
	return nil
}

// output returns the end of what the program printed, for the log.
func (r *Room) output(ctx context.Context, b *bench) string {
	ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://builder/process/"+processName+"/logs", nil)
	if err != nil {
		return err.Error()
	}
	resp, err := r.o.Machines.Transport(b.uid, doze.AgentPort).RoundTrip(ask)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-outputMax):])
}

// close removes what a build has in its machine, and takes note of its end.
func (r *Room) close(ctx context.Context, b *bench, asks buildapi.Client, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	untidy := errors.Join(asks.DropContext(ctx, id), asks.DropResult(ctx, id))
	status, unknown := asks.Status(ctx)
	if err := errors.Join(untidy, unknown); err != nil { // the next build removes it
		slog.DebugContext(ctx, "a builder is not tidy", "machine", b.uid, "err", err)
	}
	leave, err := b.take(ctx)
	if err != nil {
		return
	}
	defer leave()
	rec := r.known(b)
	if rec.Token != asks.Token {
		return // that machine is gone
	}
	rec.LastUsed = time.Now()
	if untidy == nil {
		rec.Open = slices.DeleteFunc(slices.Clone(rec.Open), func(open string) bool { return open == id })
	}
	if unknown == nil {
		rec.CacheBytes = status.CacheBytes
	}
	if err := r.save(b, rec); err != nil {
		slog.WarnContext(ctx, "the end of a build is not on record", "machine", b.uid, "err", err)
	}
}

// baseFailure is the error of a build whose Dockerfile begins with an image that cannot be
// had.
func baseFailure(name string, err error) error {
	e := doze.Public(err)
	switch e.Kind { //nolint:exhaustive // the others are ours, or of the moment
	case doze.Invalid, doze.NotFound, doze.TooLarge:
		return fleet.BuildFailed(fmt.Sprintf("the image %s: %s", name, e.Message), fleet.BuildFailure{})
	}
	return fmt.Errorf("the image %s: %w", name, err)
}

// failure is what a caller hears of an error of the program, or of the way to it.
func (r *Room) failure(err error) error {
	if err == nil {
		return nil
	}
	if failed, ok := errors.AsType[*buildapi.FailedError](err); ok {
		return r.failed(failed.Failure, "")
	}
	if refused, ok := errors.AsType[*buildapi.RefusalError](err); ok {
		return r.refused(refused)
	}
	if errors.Is(err, fleet.ErrStopping) {
		return fleet.ErrStopping
	}
	if e, ok := errors.AsType[*doze.Error](err); ok && e.Kind != doze.Unavailable && e.Kind != doze.Internal {
		return err
	}
	return doze.Wrap(err, doze.Unavailable,
		"the builder ended, or could not be reached, in the middle of the build: build again. A step that takes all of its %d MB of memory can be the reason (--build-memory-mb)", r.o.Size.Memory)
}

// refusals is a clause about what the network refused a builder since a build began: the
// commands of its steps often say no more than "403". Builds beside it may have caused some.
func refusals(s doze.EgressSummary, begin time.Time) string {
	var text strings.Builder
	n := 0
	for _, d := range s.Destinations {
		if d.Verdict != doze.EgressDenied || d.LastAt.Before(begin) {
			continue
		}
		if n++; n > refusalsMax {
			text.WriteString(" and others")
			break
		}
		fmt.Fprintf(&text, "; the network refused %s while it ran: %s", d.Host, cmp.Or(d.Reason, d.Rule))
	}
	return text.String()
}

// refusalsMax bounds the refusals that an error names.
const refusalsMax = 3

// failed is the error of a build that the program says failed. A clause about the network
// may follow.
func (r *Room) failed(f buildapi.Failure, network string) error {
	where := fleet.BuildFailure{Step: f.Step, Line: f.Line, Command: f.Name, Code: f.Code, Output: f.Tail}
	switch f.Reason {
	case buildapi.FailedStep, buildapi.FailedDockerfile, buildapi.FailedBase, buildapi.FailedDisk, buildapi.FailedOutput:
		return fleet.BuildFailed(clause(&f)+network, where)
	case buildapi.FailedCanceled:
		return doze.Errorf(doze.Unavailable, "the build was canceled: build again")
	case buildapi.FailedInternal:
	}
	return doze.Errorf(doze.Unavailable, "the builder of the workspace failed: %s: build again", f.Message)
}

// clause is the message of a failure without its place, which the fields of the error have.
func clause(f *buildapi.Failure) string {
	if f.Reason == buildapi.FailedStep && f.Code != 0 {
		return fmt.Sprintf("the command failed with exit code %d", f.Code)
	}
	return strings.TrimPrefix(f.Message, fmt.Sprintf("line %d of the Dockerfile: ", f.Line))
}

// refused is the error of a call that the program refused.
func (r *Room) refused(e *buildapi.RefusalError) error {
	switch e.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusInsufficientStorage:
		return fleet.BuildFailed(e.Text, fleet.BuildFailure{})
	}
	return doze.Wrap(e, doze.Unavailable, "the builder of the workspace failed: build again")
}
