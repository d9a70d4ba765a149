package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/network"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/trace"
)

// forkSnapshot makes a new sandbox of a snapshot.
func (s *Server) forkSnapshot(ctx context.Context, r *http.Request, body map[string]any) (doze.ForkResponse, error) {
	ctx, waiting := trace.Arrive(ctx, time.Now(), r.Header.Get("Traceparent"))
	defer waiting.Leave()
	n, err := s.oneSnapshot(ctx, r)
	if err != nil {
		return doze.ForkResponse{}, err
	}
	var p doze.Problems
	in := forkRequest(body, &p)
	if in.SnapshotID != "" && in.SnapshotID != n.ID && in.SnapshotID != n.Name {
		p.Add("snapshotId", "is %q; the path names the snapshot %s", api.Clip(in.SnapshotID), n.ID)
	}
	return s.fork(ctx, n, in, &p)
}

// forkSandbox makes a new sandbox of one of the snapshots of another, or of a
// new one, which stays.
func (s *Server) forkSandbox(ctx context.Context, r *http.Request, body map[string]any) (doze.ForkResponse, error) {
	ctx, waiting := trace.Arrive(ctx, time.Now(), r.Header.Get("Traceparent"))
	defer waiting.Leave()
	sb, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return doze.ForkResponse{}, err
	}
	var p doze.Problems
	in := forkRequest(body, &p)
	if in.SnapshotID != "" {
		n, err := s.Store.Snapshot(ctx, sb.Metadata.Workspace, sb.UID, in.SnapshotID)
		if doze.Public(err).Kind == doze.NotFound {
			err = s.noSnapshot(ctx, sb, in, p, err)
		}
		if err != nil {
			return doze.ForkResponse{}, err
		}
		return s.fork(ctx, n, in, &p)
	}
	if len(sb.Spec.Volumes) > 0 {
		return doze.ForkResponse{}, doze.Errorf(doze.Conflict, "a fork would have no volumes, and %s has some: fork a sandbox without", sb.Metadata.Name)
	}
	// Everything that can be wrong is looked for before the sandbox has to
	// stand still.
	var want store.Snapshot
	bequeath(&want, sb.Spec)
	if _, err := s.forked(ctx, want, in, slices.Clone(p)); err != nil {
		return doze.ForkResponse{}, err
	}
	n, err := s.snap(ctx, sb, "", true)
	if err != nil {
		return doze.ForkResponse{}, err
	}
	out, err := s.fork(ctx, n, in, &p)
	if err != nil {
		return out, errors.Join(err, s.discard(ctx, n.ID))
	}
	s.stay(ctx, n.ID)
	return out, nil
}

// noSnapshot is the error for a fork of a snapshot that is missing: that, or all
// mistakes of the body with it.
func (s *Server) noSnapshot(ctx context.Context, sb store.Sandbox, in doze.ForkRequest, p doze.Problems, missing error) error {
	var n store.Snapshot
	bequeath(&n, sb.Spec)
	in.Memory = 0 // which would be right, nobody knows
	if _, err := s.forked(ctx, n, in, p); doze.Public(err).Kind == doze.Invalid {
		return doze.Errorf(doze.Invalid, "%s; snapshotId: %s", doze.Public(err).Message, doze.Public(missing).Message)
	}
	return missing
}

// stay keeps the snapshot that a fork took, for its caller is told of it.
func (s *Server) stay(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := s.Store.StaySnapshot(ctx, id); err != nil && doze.Public(err).Kind != doze.NotFound { // deleted just now
		slog.ErrorContext(ctx, "the next start of the platform removes the snapshot of a fork", "snapshot", id, "err", err)
	}
}

func forkRequest(body map[string]any, p *doze.Problems) (in doze.ForkRequest) {
	api.Decode(&in, body, "", p)
	return in
}

// fork makes a sandbox of a snapshot.
func (s *Server) fork(ctx context.Context, n store.Snapshot, in doze.ForkRequest, p *doze.Problems) (doze.ForkResponse, error) {
	out := doze.ForkResponse{Name: in.TargetName, Type: doze.KindSandbox, SnapshotID: n.ID}
	sb, err := s.forked(ctx, n, in, *p)
	if err != nil {
		return out, err
	}
	if n.Status != doze.SnapshotReady {
		return out, doze.Errorf(doze.Conflict, "the snapshot is %s: fork one that is %s", n.Status, doze.SnapshotReady)
	}
	_, err = s.create(ctx, sb, &n)
	if e := (taken{}); errors.As(err, &e) {
		err = s.conflict(ctx, sb.Metadata, err)
	}
	return out, err
}

// forked is the sandbox that a fork makes, or all mistakes in what its caller
// wants. A name that is in use is a Conflict.
func (s *Server) forked(ctx context.Context, n store.Snapshot, in doze.ForkRequest, p doze.Problems) (doze.Sandbox, error) {
	var lacking doze.Problems
	if in.TargetType == doze.KindApplication {
		lacking.Add("this platform", "has no applications: fork into a sandbox, with the targetType %s, and create a preview of it", doze.KindSandbox)
	}
	in.Check(&p, n.Spec)
	c := api.Caller(ctx)
	sb := doze.Sandbox{Metadata: doze.Metadata{Name: in.TargetName, Workspace: c.Workspace, CreatedBy: c.Sub, UpdatedBy: c.Sub}, Spec: n.Heir}
	if n.Withheld > 0 {
		sb.Events = []doze.Event{{Message: fmt.Sprintf("routing rules with secrets are not inherited: the source has %d, set those that the fork needs", n.Withheld)}}
	}
	sb.Spec.Region = n.Spec.Region
	setMachine(&sb.Spec.Runtime, n.Spec)
	sb.Spec.Runtime.Envs = inherit(n.Heir.Runtime.Envs, unmask(nil, in.Envs, "envs", &p))
	sb.Default(s.Regions[0])
	doze.CheckEnvs(&p, "envs", sb.Spec.Runtime.Envs)
	s.siblings.Check(&p, "targetName", "/sandboxes/{}", in.TargetName)
	if err := s.checkReferences(ctx, c.Workspace, "envs", sb.Spec.Runtime.Envs, &p); err != nil {
		return sb, err
	}
	if err := api.Verdict(p, lacking); err != nil {
		return sb, err
	}
	// What is wrong now came with the snapshot.
	s.check(&sb, &p)
	if err := network.Check(ctx, s.Store, &sb, &p); err != nil {
		return sb, err
	}
	if err := p.Err(); err != nil {
		return sb, err
	}
	other, err := s.Store.SandboxByName(ctx, c.Workspace, in.TargetName)
	switch {
	case err == nil && !other.Phase.Ended():
		return sb, s.conflict(ctx, sb.Metadata, nil)
	case err != nil && doze.Public(err).Kind != doze.NotFound:
		return sb, err
	}
	return sb, nil
}

// inherit are the variables of a fork: those of its source but for the ones
// that its caller sets.
func inherit(source, set []doze.Env) []doze.Env {
	own := slices.DeleteFunc(slices.Clone(source), func(e doze.Env) bool {
		return slices.ContainsFunc(set, func(o doze.Env) bool { return o.Name == e.Name })
	})
	return append(own, set...)
}

// restoreSnapshot puts a sandbox back to one of its snapshots. The machine of
// the snapshot runs before the one before it is given up: if it cannot,
// nothing has changed.
func (s *Server) restoreSnapshot(ctx context.Context, r *http.Request) (out doze.RestoreResponse, err error) {
	n, err := s.oneSnapshot(ctx, r)
	if err != nil {
		return out, err
	}
	found, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return out, err
	}
	life, sb, release, err := s.occupy(ctx, found)
	if err != nil {
		return out, err
	}
	defer s.reconciling.Ring() // of the two machines one is left over
	defer release()
	if n.Status != doze.SnapshotReady {
		return out, doze.Errorf(doze.Conflict, "the snapshot is %s: restore one that is %s", n.Status, doze.SnapshotReady)
	}
	if sb.Phase.Status() != doze.Running.Status() && sb.Phase != doze.Failed {
		return out, doze.Errorf(doze.Conflict, "the sandbox is %s: enable or unarchive it first", sb.Phase)
	}
	if !sb.Spec.IsEnabled() { // it failed, and was disabled after that
		return out, doze.Errorf(doze.Conflict, "the sandbox is not enabled: set spec.enabled to true first")
	}
	want := sb
	setMachine(&want.Spec.Runtime, n.Spec)
	want.Metadata.UpdatedAt, want.Metadata.UpdatedBy = doze.Time{Time: time.Now()}, api.Caller(ctx).Sub
	if err := s.replace(life, sb, want, n); err != nil {
		return out, unlessDeleted(life, err)
	}
	return doze.RestoreResponse{Name: sb.Metadata.Name, SnapshotID: n.ID}, nil
}

// replace gives a sandbox a machine out of a snapshot. Preconditions: the turn
// of sb is held.
func (s *Server) replace(ctx context.Context, sb, want store.Sandbox, n store.Snapshot) error {
	want.Machine = store.NewID()
	o, err := s.order(ctx, want)
	if err != nil {
		return err
	}
	o.From = n.ID
	// Until it is the sandbox's, it is a leftover that we have the turn of.
	_, release, err := s.locks.Take(ctx, machineLock+want.Machine)
	if err != nil {
		return err
	}
	defer release()
	if err := s.Store.Reserve(ctx, want.Machine); err != nil {
		return err
	}
	if err := s.claim(ctx, want, want.Machine, sb.Machine); err != nil {
		return err
	}
	if err := s.Node.Create(ctx, o); err != nil {
		return fleet.Tell(err, "the start from the snapshot")
	}
	now, err := s.Store.Apply(ctx, sb.UID, store.Step{
		On: doze.Restored, Message: "the sandbox is restored from the snapshot " + n.Name, At: time.Now(),
		Revision: sb.Revision, Write: &want, Machine: want.Machine,
	})
	if err != nil {
		return err
	}
	s.putUpstream(ctx, now)
	return nil
}
