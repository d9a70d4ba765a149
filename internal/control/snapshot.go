package control

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/store"
)

// snapshotPhases are the values that a status filter of snapshots may have.
var snapshotPhases = map[string][]string{
	"PENDING": {string(doze.SnapshotPending)}, "READY": {string(doze.SnapshotReady)}, "FAILED": {string(doze.SnapshotFailed)},
}

// snapshotLists are what callers may ask of the list of snapshots.
var snapshotLists = api.Listing{Phases: snapshotPhases, Limit: api.LimitDefault, Most: api.LimitMax}

// listSnapshots answers those of the workspace, in the form of listSandboxes.
func (s *Server) listSnapshots(ctx context.Context, r *http.Request) (api.List[doze.Snapshot], error) {
	return api.AnswerListing(ctx, r, snapshotLists, s.Store.ListSnapshots, func(n store.Snapshot) doze.Snapshot { return n.Snapshot })
}

// snapshotsOf answers those of a living sandbox.
func (s *Server) snapshotsOf(ctx context.Context, r *http.Request) ([]doze.Snapshot, error) {
	sb, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	all, err := s.Store.Snapshots(ctx, sb.UID)
	list := make([]doze.Snapshot, len(all))
	for i, n := range all {
		list[i] = n.Snapshot
	}
	return list, err
}

// oneSnapshot is the snapshot that a path names: of the sandbox in the path, if
// there is one.
func (s *Server) oneSnapshot(ctx context.Context, r *http.Request) (store.Snapshot, error) {
	uid := ""
	if name := r.PathValue("name"); name != "" {
		sb, err := s.living(ctx, name)
		if err != nil {
			return store.Snapshot{}, err
		}
		uid = sb.UID
	}
	return s.Store.Snapshot(ctx, api.Caller(ctx).Workspace, uid, r.PathValue("snapshot"))
}

func (s *Server) snapshot(ctx context.Context, r *http.Request) (doze.Snapshot, error) {
	n, err := s.oneSnapshot(ctx, r)
	return n.Snapshot, err
}

// createSnapshot answers when the snapshot is ready. The sandbox is named by
// the path or, without one there, by the body.
func (s *Server) createSnapshot(ctx context.Context, r *http.Request, body map[string]any) (doze.Snapshot, error) {
	var in doze.SnapshotRequest
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	if name := r.PathValue("name"); name != "" {
		in.Source = doze.SnapshotSource{Name: name, Kind: doze.KindSandbox}
	}
	if in.Source.Name == "" {
		p.Add("source.name", "is required: name the sandbox")
	}
	if in.Source.Kind != "" && in.Source.Kind != doze.KindSandbox {
		p.Add("source.kind", "is %q; it must be %s", api.Clip(in.Source.Kind), doze.KindSandbox)
	}
	if in.Name != "" {
		doze.CheckName(&p, "name", in.Name)
	}
	if err := p.Err(); err != nil {
		return doze.Snapshot{}, err
	}
	sb, err := s.living(ctx, in.Source.Name)
	if err != nil {
		return doze.Snapshot{}, err
	}
	n, err := s.snap(ctx, sb, in.Name, false)
	return n.Snapshot, err
}

// snap takes a snapshot, perhaps for a fork. The record comes first, so that a
// crash leaves no files that nobody knows of.
func (s *Server) snap(ctx context.Context, found store.Sandbox, name string, passing bool) (n store.Snapshot, err error) {
	life, sb, release, err := s.occupy(ctx, found)
	if err != nil {
		return n, err
	}
	defer release()
	switch sb.Phase.Status() {
	case doze.Running.Status(), doze.Disabled.Status(), doze.Disabling.Status():
	default:
		return n, doze.Errorf(doze.Conflict, "the sandbox is %s: only one with memory has a snapshot", sb.Phase)
	}
	if len(sb.Spec.Volumes) > 0 {
		return n, doze.Errorf(doze.Conflict, "a snapshot would leave out the volumes of the sandbox: take one of a sandbox without")
	}
	if name == "" {
		name = "snapshot-" + strings.ToLower(rand.Text())[:10]
	}
	n = store.Snapshot{UID: sb.UID, Authority: sb.Authority, Passing: passing}
	bequeath(&n, sb.Spec)
	n.ID, n.Name, n.Workspace, n.SandboxName = store.NewID(), name, sb.Metadata.Workspace, sb.Metadata.Name
	n.CreatedAt, n.CreatedBy = doze.Time{Time: time.Now()}, api.Caller(ctx).Sub
	n.Source = doze.SnapshotSource{Name: sb.Metadata.Name, Kind: doze.KindSandbox}
	if err := s.Store.InsertSnapshot(life, n); err != nil {
		return n, unlessDeleted(life, err)
	}
	bytes, err := s.Node.Snapshot(life, sb.Machine, n.ID)
	if err != nil {
		err = fleet.Tell(err, "the snapshot")
	} else {
		var ready store.Snapshot
		if ready, err = s.Store.FinishSnapshot(life, n.ID, bytes); err == nil {
			return ready, nil
		}
	}
	return n, errors.Join(unlessDeleted(life, err), s.discard(life, n.ID))
}

// machineOf is the machine that a sandbox has.
func machineOf(spec doze.SandboxSpec) doze.SnapshotSpec {
	r := spec.Runtime
	return doze.SnapshotSpec{
		Generation: doze.Generation, Image: r.Image, Memory: r.Memory, Storage: r.Storage, Ports: r.Ports, Region: spec.Region, Volumes: spec.Volumes,
	}
}

// setMachine gives a runtime the machine of a snapshot: the reverse of machineOf.
func setMachine(r *doze.Runtime, s doze.SnapshotSpec) {
	r.Image, r.Memory, r.Storage, r.Ports = s.Image, s.Memory, s.Storage, s.Ports
}

// bequeath records in n what a fork gets of a spec: everything but the values of
// secrets, and the moments that would come for both at once.
func bequeath(n *store.Snapshot, spec doze.SandboxSpec) {
	n.Spec, n.Heir = machineOf(spec), heir(spec)
	n.Heir.Network, n.Withheld = spec.Network.Heir()
}

// heir is what a fork gets of a spec besides its network.
func heir(spec doze.SandboxSpec) doze.SandboxSpec {
	spec.Enabled = nil
	spec.Runtime.Expires = ""
	spec.Runtime.Envs = slices.DeleteFunc(slices.Clone(spec.Runtime.Envs), func(e doze.Env) bool {
		if e.From() {
			from, err := doze.ParseValueSource(e.ValueFrom)
			return err != nil || from.Secret != nil
		}
		return e.Secret
	})
	if l := spec.Lifecycle; l != nil {
		spec.Lifecycle = &doze.Lifecycle{
			TerminatedRetention: l.TerminatedRetention,
			ExpirationPolicies: slices.DeleteFunc(slices.Clone(l.ExpirationPolicies), func(e doze.ExpirationPolicy) bool {
				return e.Type == doze.OnDate
			}),
		}
	}
	return spec
}

// discard removes a snapshot: first from all lists, then its files. What does
// not work is tried again by the reconcile loop.
func (s *Server) discard(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := s.Store.DropSnapshot(ctx, id); err != nil {
		return err
	}
	if err := s.clearSnapshot(ctx, id); err != nil {
		slog.WarnContext(ctx, "the files of a snapshot are removed later", "snapshot", id, "err", err)
		s.reconciling.Ring()
	}
	return nil
}

// clearSnapshot removes the files of a dropped snapshot.
func (s *Server) clearSnapshot(ctx context.Context, id string) error {
	if err := s.Node.DropSnapshot(ctx, id); err != nil {
		return err
	}
	return s.Store.ForgetSnapshot(ctx, id)
}

// deleteSnapshot removes a snapshot for the whole workspace. What was made of
// it lives on.
func (s *Server) deleteSnapshot(ctx context.Context, r *http.Request) (none httpx.Empty, err error) {
	n, err := s.oneSnapshot(ctx, r)
	if err != nil {
		return none, err
	}
	if n.Status == doze.SnapshotPending {
		return none, doze.Errorf(doze.Conflict, "the snapshot is still being made: delete it when that is over")
	}
	return none, s.discard(ctx, n.ID)
}

// recoverSnapshots compares the records with what the node has. What was being
// made when the platform stopped is complete there, or failed; what a fork took
// for itself that was cut short, and files of no record, are removed.
func (s *Server) recoverSnapshots(ctx context.Context) error {
	files, err := s.Node.Snapshots(ctx)
	away := errors.Is(err, fleet.ErrUnreachable) // what is not in files may be there
	if err != nil && !away {
		return err
	}
	all, err := s.Store.AllSnapshots(ctx)
	if err != nil {
		return err
	}
	for _, n := range all {
		bytes, there := files[n.ID]
		delete(files, n.ID)
		switch {
		case n.Passing:
			slog.WarnContext(ctx, "removing the snapshot of a fork that was cut short", "snapshot", n.ID, "sandbox", n.UID)
			err = s.discard(ctx, n.ID)
		case n.Status == doze.SnapshotPending && there:
			_, err = s.Store.FinishSnapshot(ctx, n.ID, bytes)
		case away && !there:
		case n.Status == doze.SnapshotPending:
			err = s.Store.FailSnapshot(ctx, n.ID, "the platform stopped while it was being made: take another one")
		case n.Status == doze.SnapshotReady && !there:
			slog.ErrorContext(ctx, "the files of a snapshot are gone", "snapshot", n.ID)
			err = s.Store.FailSnapshot(ctx, n.ID, "its files are gone from the disk of the platform")
		}
		if err != nil {
			return err
		}
	}
	for id := range files {
		slog.WarnContext(ctx, "removing the files of a snapshot that is not on record", "snapshot", id)
		if err := s.clearSnapshot(ctx, id); err != nil { // the next start tries again
			slog.ErrorContext(ctx, "they are not removed", "snapshot", id, "err", err)
		}
	}
	return nil
}
