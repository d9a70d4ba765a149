package build

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

// errCancelled ends the work on a build whose record says that it has ended.
var errCancelled = doze.Errorf(doze.Conflict, "the build was cancelled")

// final is the end of a build that no further attempt changes.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Run orders the builds whose turn it is, and ends the offers that nobody used, until ctx
// ends.
func (s *Server) Run(ctx context.Context) error {
	var builds sync.WaitGroup
	defer builds.Wait()
	for {
		wait := s.expire(ctx, time.Now())
		for _, j := range s.begin(time.Now()) {
			life, cancel := context.WithCancelCause(ctx)
			s.mu.Lock()
			_, lives := s.live[j.id]
			j.cancel = cancel
			s.mu.Unlock()
			if !lives { // it was cancelled just now
				cancel(errCancelled)
			}
			builds.Go(func() {
				defer cancel(nil)
				s.work(ctx, life, j)
			})
		}
		if !s.ring.Wait(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

// expire ends the offers that nobody used in time, forgets failures that were shown for
// long enough, and returns how long nothing is due.
func (s *Server) expire(ctx context.Context, now time.Time) time.Duration {
	next := now.Add(lookAtLeast)
	due := func(at time.Time) bool {
		if at.After(now) {
			next = earlier(next, at)
			return false
		}
		return true
	}
	var over []*job
	s.mu.Lock()
	maps.DeleteFunc(s.failed, func(_ string, until time.Time) bool { return due(until) })
	for _, j := range s.live {
		switch {
		case j.record.Phase != store.BuildOffered:
			if !j.retry.IsZero() {
				due(j.retry)
			}
		case !j.taking && due(j.record.Until.Time):
			over = append(over, j)
		}
	}
	s.mu.Unlock()
	for _, j := range over {
		err := doze.Errorf(doze.Timeout, "nobody uploaded the files within %s: ask for another address", doze.BuildUploadTime)
		if !s.fail(ctx, j, err) {
			next = earlier(next, now.Add(retryAfter))
		}
	}
	return max(next.Sub(now), 0)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// begin takes the builds whose turn it is.
func (s *Server) begin(now time.Time) (all []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.total < s.Parallel {
		j := choose(s.waitingLocked(now), s.running, s.last, ownMax)
		if j == nil {
			break
		}
		workspace := j.workspace
		j.retry, j.runs = time.Time{}, true
		s.last[workspace] = now
		s.running[workspace]++
		s.total++
		all = append(all, j)
	}
	return all
}

// waitingLocked are the builds that wait for their turn, and may have it now.
// Preconditions: mu is held.
func (s *Server) waitingLocked(now time.Time) (all []*job) {
	for _, j := range s.live {
		if !j.runs && j.record.Phase != store.BuildOffered && !j.retry.After(now) {
			all = append(all, j)
		}
	}
	return all
}

// choose picks the build whose turn is next. The workspace with the fewest builds that run
// comes first, then the workspace whose last turn is the longest ago. Of its builds it is
// the oldest. Nil if each workspace has as many as it may.
func choose(waiting []*job, running map[string]int, last map[string]time.Time, most int) (best *job) {
	for _, j := range waiting {
		if running[j.workspace] >= most {
			continue
		}
		if best == nil || before(j, best, running, last) {
			best = j
		}
	}
	return best
}

func before(a, b *job, running map[string]int, last map[string]time.Time) bool {
	x, y := a.workspace, b.workspace
	return cmp.Or(
		cmp.Compare(running[x], running[y]),
		last[x].Compare(last[y]),
		a.record.Queued.Compare(b.record.Queued.Time),
		cmp.Compare(a.id, b.id),
	) < 0
}

// positionLocked is the place of a build in the queue: 1 is the next, 0 is no place.
// Preconditions: mu is held.
func (s *Server) positionLocked(j *job) int {
	waiting := s.waitingLocked(j.retry)
	running, last := maps.Clone(s.running), maps.Clone(s.last)
	for at, now := 1, time.Now(); len(waiting) > 0; at++ {
		next := choose(waiting, running, last, len(s.live)+ownMax)
		if next == j {
			return at
		}
		workspace := next.workspace
		running[workspace]++
		last[workspace] = now
		for i := range waiting {
			if waiting[i] == next {
				waiting[i] = waiting[len(waiting)-1]
				waiting = waiting[:len(waiting)-1]
				break
			}
		}
	}
	return 0
}

// work does what is left of a build, and frees its place. ctx ends with the process, life
// with the build as well.
func (s *Server) work(ctx, life context.Context, j *job) {
	err := s.advance(life, j)
	switch {
	case err == nil, errors.Is(context.Cause(life), errCancelled): // its record says how it ended
	case ctx.Err() != nil: // the next start goes on with it
		s.interrupted(ctx, j)
	case s.again(life, j, err):
	default:
		if !s.fail(ctx, j, err) {
			s.mu.Lock()
			j.retry = time.Now().Add(retryAfter)
			s.mu.Unlock()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	workspace := j.workspace
	if s.running[workspace]--; s.running[workspace] == 0 {
		delete(s.running, workspace)
	}
	s.total--
	j.runs, j.cancel = false, nil
	s.ring.Ring()
}

// interrupted takes back that a node was asked for a build: the process ends in its middle.
func (s *Server) interrupted(ctx context.Context, j *job) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, err := s.change(ctx, j, func(b *store.Build) error {
		b.Attempts = max(b.Attempts-1, 0)
		return nil
	})
	if err != nil {
		slog.WarnContext(ctx, "an interrupted build counts as an attempt", "build", j.id, "err", err)
	}
}

// again has a build that its node did not end tried again soon, and reports whether.
func (s *Server) again(ctx context.Context, j *job, err error) bool {
	if _, is := errors.AsType[final](err); is {
		return false
	}
	away := errors.Is(err, fleet.ErrUnreachable) || errors.Is(err, fleet.ErrStopping)
	if !away && doze.Public(err).Kind != doze.Unavailable {
		return false
	}
	_, changed := s.change(ctx, j, func(b *store.Build) error {
		if time.Since(b.Queued.Time) > waitMax {
			return final{err}
		}
		if away {
			b.Attempts = max(b.Attempts-1, 0) // it may not have been asked
		}
		return nil
	})
	if changed != nil {
		return false
	}
	slog.WarnContext(ctx, "a build is tried again", "build", j.id, "workspace", j.workspace, "err", err)
	j.log.say("the build begins again: " + doze.Public(err).Message)
	s.mu.Lock()
	j.retry = time.Now().Add(retryAfter)
	s.mu.Unlock()
	return true
}

// change writes a change of the record of a build that has not ended.
func (s *Server) change(ctx context.Context, j *job, fn func(*store.Build) error) (store.Build, error) {
	b, err := s.Store.ChangeBuild(ctx, j.id, fn)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		j.record = b
	}
	return b, err
}

// advance leads a build to its end.
func (s *Server) advance(ctx context.Context, j *job) error {
	b := s.recordOf(j)
	if b.Phase != store.BuildDeploying {
		var err error
		if b, err = s.build(ctx, j); err != nil {
			return err
		}
	}
	if b.UID == "" {
		return s.end(ctx, j, doze.BuildBuilt, nil)
	}
	if err := s.Sandboxes().Deploy(ctx, &b); err != nil {
		if ctx.Err() != nil {
			return err
		}
		e := doze.Public(err)
		return final{doze.Wrap(err, e.Kind, "the image %s is built, but its sandbox does not run: %s", b.Image, e.Message)}
	}
	return s.end(ctx, j, doze.BuildDeployed, nil)
}

func (s *Server) recordOf(j *job) store.Build {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.record
}

// build has the image made, and gives it its name.
func (s *Server) build(ctx context.Context, j *job) (b store.Build, err error) {
	b, err = s.change(ctx, j, func(b *store.Build) error {
		if b.Attempts >= attemptsMax {
			return final{doze.Errorf(doze.Unavailable, "the builder ended %d times during this build: it may need more memory than --build-memory-mb gives", b.Attempts)}
		}
		b.Phase = store.BuildRunning
		b.Attempts++
		if b.StartedAt.IsZero() {
			b.StartedAt = doze.Time{Time: time.Now()}
		}
		return nil
	})
	if err != nil {
		return b, err
	}
	order, err := s.order(ctx, &b)
	if err != nil {
		return b, err
	}
	archive, err := os.Open(s.file(b.ID, archiveKind))
	if err != nil {
		return b, final{doze.Wrap(err, doze.Unavailable, "the uploaded files are gone: upload them again")}
	}
	built, err := s.Node.Build(ctx, order, archive, func(e fleet.BuildEvent) { j.log.append(eventOf(e)) })
	if closed := archive.Close(); closed != nil {
		slog.WarnContext(ctx, "an archive was not closed", "build", b.ID, "err", closed)
	}
	if err != nil {
		return b, err
	}
	if err := s.Images().Tag(ctx, &b, built); err != nil {
		if released := s.Node.ReleaseImage(context.WithoutCancel(ctx), built.Ref); released != nil {
			slog.WarnContext(ctx, "an image without a record stays on the node until its next start", "image", built.Ref, "err", released)
		}
		return b, final{err}
	}
	if b.UID != "" {
		s.awaitReader(ctx, j, b.Queued.Time)
	}
	return s.change(ctx, j, func(b *store.Build) error {
		b.Phase = store.BuildDeploying
		b.Image, b.Digest, b.Size = doze.BuiltImage(b.Name, b.Tag), built.Digest, built.Bytes
		return nil
	})
}

// order is what a node gets to build.
func (s *Server) order(ctx context.Context, b *store.Build) (o fleet.BuildOrder, err error) {
	w, err := s.Store.Workspace(ctx, b.Workspace)
	if err != nil {
		return o, err
	}
	o = fleet.BuildOrder{
		ID: b.ID, Workspace: w.Name, WorkspaceID: w.ID, Dockerfile: b.Dockerfile, Target: b.Target, Args: b.Args,
		Secrets: b.Hidden.Secrets, NoCache: b.NoCache, Network: new(doze.Network),
	}
	o.Bases, o.Logins, err = s.Images().Materials(ctx, b.Workspace)
	return o, err
}

// awaitReader waits until somebody has read that a build which waited since a moment is
// BUILDING, or could have.
func (s *Server) awaitReader(ctx context.Context, j *job, since time.Time) {
	timer := time.NewTimer(time.Until(since.Add(seenAfter)))
	defer timer.Stop()
	select {
	case <-j.seen:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// fail ends a build for a reason, and tells what it was for. It reports whether the
// records say so.
func (s *Server) fail(ctx context.Context, j *job, reason error) bool {
	f := failureOf(reason)
	if doze.Public(reason).Kind == doze.Internal {
		slog.ErrorContext(ctx, "a build failed for a reason of ours", "build", j.id, "workspace", j.workspace, "err", reason)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	b := s.recordOf(j)
	if err := s.end(ctx, j, doze.BuildFailed, f); err != nil {
		if doze.Public(err).Kind == doze.Conflict { // it has ended otherwise
			return true
		}
		slog.ErrorContext(ctx, "the end of a build is not recorded yet", "build", j.id, "err", err)
		return false
	}
	// The record comes first: a build that another one took the place of tells nobody.
	for again := bell.New(); ; {
		err := s.tell(ctx, &b, "the build failed: "+f.Brief(briefMax))
		if err == nil {
			return true
		}
		slog.ErrorContext(ctx, "a sandbox does not say yet that its build failed", "sandbox", b.UID, "err", err)
		if !again.Wait(ctx, time.Second) {
			return true // the next start finds a sandbox without a build
		}
	}
}

// tell tells the sandbox of a build, if there is one, that it gets no image.
func (s *Server) tell(ctx context.Context, b *store.Build, why string) error {
	if b.UID == "" {
		return nil
	}
	err := s.Sandboxes().Failed(ctx, b.UID, why)
	if doze.Public(err).Kind == doze.NotFound { // it ended, or it is about to
		return nil
	}
	return err
}

// end records how a build ended, and removes its archive. An end that is recorded already
// is a Conflict.
func (s *Server) end(ctx context.Context, j *job, status string, f *doze.BuildFailure) error {
	now := time.Now()
	b, err := s.change(ctx, j, func(b *store.Build) error {
		b.Phase, b.Status, b.Failure, b.EndedAt = store.BuildEnded, status, f, doze.Time{Time: now}
		return nil
	})
	if err != nil {
		return err
	}
	s.ended(ctx, j, &b, doze.BuildEvent{Status: status, Image: b.Image, Failure: f})
	outcome, detail := doze.AuditDone, ""
	if f != nil {
		outcome, detail = doze.AuditFailed, f.Message
	}
	s.Audit.Acted(b.Workspace, "builds.end", "builds", b.Name, outcome, detail)
	slog.InfoContext(ctx, "a build ended", "build", b.ID, "workspace", b.Workspace, "status", status, "took", now.Sub(b.CreatedAt.Time))
	return nil
}

// cancelBuild ends a build because nobody wants it any more. If its sandbox may be getting its
// machine, that is a Conflict, unless the caller has the turn of the sandbox.
func (s *Server) cancelBuild(ctx context.Context, j *job, why string, turn bool) error {
	now := time.Now()
	b, err := s.change(ctx, j, func(b *store.Build) error {
		if b.Phase == store.BuildDeploying && b.UID != "" && !turn {
			return doze.Errorf(doze.Conflict, "the image is built and its sandbox is being deployed: wait for that, or delete the sandbox")
		}
		b.Phase, b.Status, b.EndedAt = store.BuildEnded, doze.BuildCancelled, doze.Time{Time: now}
		b.Failure = &doze.BuildFailure{Message: why}
		return nil
	})
	if err != nil {
		return err
	}
	s.ended(ctx, j, &b, doze.BuildEvent{Status: b.Status, Failure: b.Failure})
	return nil
}

// ended forgets a build whose record says that it has ended: last is the end of its log.
func (s *Server) ended(ctx context.Context, j *job, b *store.Build, last doze.BuildEvent) {
	j.log.append(last)
	s.mu.Lock()
	if b.Status == doze.BuildFailed {
		s.failed[targetOf(b)] = time.Now().Add(failedFor)
	}
	s.endLocked(j, errCancelled)
	s.mu.Unlock()
	s.remove(ctx, b.ID, archiveKind, partKind)
}

// Forsake cancels the build for a target that is gone, if there is one. It does not tell the
// target: what deploys it notices.
func (s *Server) Forsake(ctx context.Context, t Target, why string) {
	s.mu.Lock()
	j := s.targets[string(t)]
	s.mu.Unlock()
	if j == nil {
		return
	}
	if err := s.cancelBuild(ctx, j, why, true); err != nil && doze.Public(err).Kind != doze.Conflict {
		slog.WarnContext(ctx, "a build goes on for what is gone", "build", j.id, "err", err)
	}
}

// eventOf is an event of a node as the log has it.
func eventOf(e fleet.BuildEvent) doze.BuildEvent {
	out := doze.BuildEvent{
		At: doze.Time{Time: e.At}, Step: e.Step, Steps: e.Steps, Stage: e.Stage, Name: e.Name, Line: e.Line, Vertex: e.Vertex,
		State: e.State, Stream: e.Stream, Text: e.Text, TookMs: e.Took.Milliseconds(),
	}
	if e.Progress != nil {
		out.Current, out.Total = e.Progress.Current, e.Progress.Total
		out.Text = "" // readers take a text for output
	}
	return out
}

const (
	// outputMax bounds the lines that a failure repeats.
	outputMax = 20
	// briefMax bounds the text of a failure in an event, in bytes.
	briefMax = 900
)

// failureOf is the end of a build as callers see it.
func failureOf(err error) *doze.BuildFailure {
	e := doze.Public(err)
	at, failed := fleet.BuildFailureOf(err)
	if _, ours := errors.AsType[final](err); !failed && !ours && e.Kind != doze.Timeout { // which says how long
		e = doze.Public(fleet.Tell(err, "the build"))
	}
	return &doze.BuildFailure{
		Message: e.Message, Step: at.Step, Line: at.Line, Command: at.Command, Code: at.Code, Output: at.Output[max(0, len(at.Output)-outputMax):],
	}
}
