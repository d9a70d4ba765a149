package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/network"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/trace"
)

const (
	// createTimeout bounds a create, of which the pull of a large image over a
	// slow line is the longest part. It goes on when its caller goes away.
	createTimeout = 10 * time.Minute
	// endTimeout bounds the writes that end a change that did not work, which
	// may be why: its own time was over.
	endTimeout = 30 * time.Second
	// namesTried is how many names we generate; two equal ones of 50 random
	// bits are already unlikely.
	namesTried = 3
)

// createSandbox answers when the sandbox is deployed. With upload=true it answers at once, with
// an address: the sandbox is deployed when an image is built of the files that are put there.
func (s *Server) createSandbox(ctx context.Context, r *http.Request, body map[string]any) (doze.Sandbox, string, error) {
	ctx, waiting := trace.Arrive(ctx, time.Now(), r.Header.Get("Traceparent"))
	defer waiting.Leave()
	c := api.Caller(ctx)
	p := api.Mistakes(ctx)
	sound := len(p) == 0
	var sb doze.Sandbox
	decodeSandbox(&sb.Metadata, &sb.Spec, body, &p)
	sb.Metadata.Workspace = c.Workspace
	sb.Metadata.CreatedBy, sb.Metadata.UpdatedBy = c.Sub, c.Sub

	uploads := asksUpload(r)
	var lacking doze.Problems
	if uploads {
		if err := s.Builds.Available(ctx); err != nil {
			if doze.Public(err).Kind != doze.Unsupported {
				return doze.Sandbox{}, "", err
			}
			lacking = doze.Problems{doze.Public(err).Message}
		}
	}
	reuse := api.CreateIfNotExist.In(r.URL.Query()) && sound && len(lacking) == 0
	if reuse && sb.Metadata.Name != "" {
		found, ok, err := s.reuse(ctx, sb.Metadata)
		if err != nil || ok {
			return found, "", err
		}
	}
	p = append(p, api.Strangers(ctx)...)
	generated := sb.Metadata.Name == ""
	if generated {
		sb.Metadata.Name = newName()
	}
	if uploads && sb.Spec.Runtime.Image != "" {
		p.Add("spec.runtime.image", "must be left out of a request with upload=true: the build makes the image")
	}
	sb.Spec.Region = api.RegionOf(sb.Spec.Region, s.Regions[0])
	sb.Spec.Runtime.Envs = unmask(nil, sb.Spec.Runtime.Envs, "spec.runtime.envs", &p)
	sb.Default(s.Regions[0])
	now := time.Now()
	checkLasts(&sb.Spec, now, now, &p)
	s.checkMemory(sb.Spec.Runtime.Memory, &p)
	s.check(&sb, &p)
	api.CheckRegion(&p, "spec.region", sb.Spec.Region, s.Regions)
	s.siblings.Check(&p, "metadata.name", "/sandboxes/{}", sb.Metadata.Name)
	err := cmp.Or(s.checkVolumes(ctx, &sb, &p), network.Check(ctx, s.Store, &sb, &p), s.checkReferences(ctx, c.Workspace, "spec.runtime.envs", sb.Spec.Runtime.Envs, &p))
	if err != nil {
		return doze.Sandbox{}, "", err
	}
	if err = verdictOn(&sb.Spec, p, lacking); uploads {
		if err == nil {
			err = Builds{s}.checkBuild(ctx, sb.Metadata)
		}
	} else {
		err = s.Images.Check(ctx, c.Workspace, "spec.runtime.image", sb.Spec.Runtime.Image, err)
	}
	if err == nil {
		err = s.sealRouting(&sb)
	}
	if err != nil {
		return doze.Sandbox{}, "", err
	}
	if text := warning(s.node.Load(), nil, sb.Spec.Network); text != "" {
		sb.Events = []doze.Event{{Message: text}}
	}
	for try := 1; ; try++ {
		var out doze.Sandbox
		var address string
		if uploads {
			out, address, err = Builds{s}.createBuilt(ctx, sb)
		} else {
			out, err = s.create(ctx, sb, nil)
		}
		if e := (taken{}); !errors.As(err, &e) {
			return out, address, err
		}
		switch {
		case generated && try < namesTried:
			sb.Metadata.Name = newName()
		case reuse:
			if found, ok, err := s.reuse(ctx, sb.Metadata); err != nil || ok {
				return found, "", err
			}
		default:
			return doze.Sandbox{}, "", s.conflict(ctx, sb.Metadata, err)
		}
	}
}

// taken is an insert that found its name in use.
type taken struct{ error }

func (t taken) Unwrap() error { return t.error }

// create records a sandbox and starts it, from a snapshot if there is one. Of
// concurrent callers with one name, one does; the others get a taken error.
func (s *Server) create(ctx context.Context, want doze.Sandbox, from *store.Snapshot) (doze.Sandbox, error) {
	sb, snapshot := recordOf(want), ""
	if from != nil {
		sb.Authority, snapshot = from.Authority, from.ID
		sb.Origin = &doze.Origin{SandboxName: from.SandboxName, SnapshotID: from.ID, SnapshotName: from.Name}
	}
	// The turn comes before the record, so that a caller that finds the record can
	// wait.
	life, release, err := s.take(ctx, sb.UID, 0)
	if err != nil {
		return doze.Sandbox{}, err
	}
	defer release()
	if sb, err = insert(life, s, sb, doze.Placed); err != nil {
		return doze.Sandbox{}, err
	}
	if sb, err = s.boot(life, sb, snapshot); err != nil {
		return doze.Sandbox{}, err
	}
	if !sb.Spec.IsEnabled() {
		if err := s.disable(life, sb, nil); err != nil {
			return doze.Sandbox{}, err
		}
	}
	return s.answer(life, sb.UID)
}

// recordOf is the record of a new sandbox.
func recordOf(want doze.Sandbox) store.Sandbox {
	now := time.Now()
	sb := store.Sandbox{UID: store.NewID(), Metadata: want.Metadata, Spec: want.Spec, Events: want.Events, LastUsed: now}
	sb.Authority = sb.UID
	sb.Metadata.CreatedAt, sb.Metadata.UpdatedAt = doze.Time{Time: now}, doze.Time{Time: now}
	sb.Deadline = deadline(sb, now)
	return sb
}

// insert records a new sandbox in the phase after a step. A name in use is a taken error.
// Preconditions: its turn is held.
func insert(ctx context.Context, s *Server, sb store.Sandbox, on doze.Trigger) (store.Sandbox, error) {
	// In one transaction: of many creates at once each waits for those before it.
	sb, err := s.Store.InsertSandbox(ctx, sb, on)
	if err != nil {
		if e := doze.Public(err); e.Kind == doze.Conflict && e.Name == "" { // or it is a volume that is taken
			err = taken{err}
		}
		return sb, err
	}
	s.expiry.by(sb.Deadline)
	return sb, nil
}

// take waits for the turn of a sandbox as long as its caller does. The context
// that it returns does not end with the caller: what is begun is completed.
// Besides the time of a create it has that of the end of a machine before.
func (s *Server) take(ctx context.Context, uid string, before time.Duration) (context.Context, func(), error) {
	held, release, err := s.locks.Take(ctx, uid)
	if err != nil {
		return nil, nil, doze.Wrap(err, doze.Timeout, "another change of the sandbox takes too long")
	}
	life, cancel := context.WithTimeout(held, createTimeout+before)
	return life, func() {
		deleted := errors.Is(context.Cause(life), errDeleted)
		cancel()
		release()
		if deleted {
			s.reconciling.Ring() // it found the lock taken
		}
	}, nil
}

// boot gives a sandbox in the phase starting its machine, from a snapshot if it
// is named. If that does not work, the record fails; one that never ran goes,
// unless it is our fault.
func (s *Server) boot(ctx context.Context, sb store.Sandbox, from string) (store.Sandbox, error) {
	o, err := s.order(ctx, sb)
	o.From = from
	if err != nil {
		return sb, s.unboot(ctx, sb, from, err)
	}
	err = s.Node.Create(ctx, o)
	if err == nil {
		defer s.published.begin(ctx, sb.Machine)()
		// A delete before the upstream is there makes the step fail. A delete after
		// the step removes the upstream.
		s.Directory.Put(upstreamOf(sb))
		booted, err := s.Store.Apply(ctx, sb.UID, store.Step{On: doze.Booted, At: time.Now()})
		if err == nil {
			s.Images.Note(ctx, sb)
			return booted, nil
		}
		s.drop(sb)
		return sb, s.unboot(ctx, sb, from, err)
	}
	return sb, s.unboot(ctx, sb, from, fleet.Tell(err, "the start of the sandbox"))
}

// unboot ends a start, perhaps from a snapshot, that err ended, and returns what
// its caller hears.
func (s *Server) unboot(ctx context.Context, sb store.Sandbox, from string, err error) error {
	if errors.Is(context.Cause(ctx), errDeleted) {
		return errDeleted
	}
	if sb.Machine != sb.UID && stopped(ctx, err) {
		return err // the next start goes on with it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	defer s.reconciling.Ring() // its machine is a leftover

	public := doze.Public(err)
	var err2 error
	if sb.Machine == sb.UID && (public.Kind != doze.Internal || from != "") {
		// Its caller hears what to do, perhaps to try again, for which the name
		// must be free. There is nothing more to see, nor of any fork.
		err2 = s.Store.Remove(ctx, sb.UID)
	} else {
		sb, err2 = s.Store.Apply(ctx, sb.UID, store.Step{
			On: doze.Broke, Message: public.Message, At: time.Now(), Machine: store.NewID(),
		})
		if err2 == nil {
			s.putUpstream(ctx, sb)
		}
	}
	if err2 != nil {
		slog.ErrorContext(ctx, "a failed start is not recorded yet", "sandbox", sb.UID, "err", err2)
	}
	return err
}

// reuse returns the sandbox of a name for createIfNotExist, or false if the
// name is free. It waits for a start in progress; a failed sandbox it deletes.
func (s *Server) reuse(ctx context.Context, m doze.Metadata) (doze.Sandbox, bool, error) {
	for {
		sb, err := s.Store.SandboxByName(ctx, m.Workspace, m.Name)
		if doze.Public(err).Kind == doze.NotFound {
			return doze.Sandbox{}, false, nil
		}
		if err != nil {
			return doze.Sandbox{}, false, err
		}
		switch sb.Phase {
		case doze.Deleting, doze.Terminated:
			return doze.Sandbox{}, false, nil
		case doze.Failed:
			_, err := s.end(ctx, sb, "a new sandbox takes the place of the failed one")
			return doze.Sandbox{}, false, err
		case doze.Pending, doze.Starting:
			life, release, err := s.take(ctx, sb.UID, 0)
			if err != nil {
				return doze.Sandbox{}, false, err
			}
			err = s.resume(life, sb.UID) // does nothing if the start was completed
			release()
			if err != nil {
				return doze.Sandbox{}, false, err
			}
		default:
			return s.show(ctx, sb), true, nil
		}
	}
}

// conflict is the error for a name in use, in the form that clients look for.
func (s *Server) conflict(ctx context.Context, m doze.Metadata, err error) error {
	e := &doze.Error{
		Kind: doze.Conflict, Name: doze.NameSandboxExists, Err: err,
		Message: "the sandbox " + m.Name + " already exists",
		Fields:  map[string]any{"status_code": doze.Conflict.Status(), "sandbox_name": m.Name, "workspace": m.Workspace},
	}
	sb, err := s.Store.SandboxByName(ctx, m.Workspace, m.Name)
	switch {
	case err != nil: // it was deleted meanwhile: the caller may try again
	case sb.Phase.Status() == doze.Starting.Status():
		e.Fields["reason"] = "CREATION_IN_PROGRESS"
	case sb.Phase == doze.Failed:
		e.Message += " and is failed: delete it, or create with createIfNotExist=true"
	}
	return e
}

// newName makes the name of a sandbox whose caller gave none.
func newName() string { return "sandbox-" + strings.ToLower(rand.Text())[:10] }

// claim has a fresh machine of a sandbox count as awake, which takes the place of
// the one before, and fails if the workspace may not have it awake.
func (s *Server) claim(ctx context.Context, sb store.Sandbox, fresh, before string) error {
	o := orderOf(sb)
	o.UID = fresh
	return s.Node.Claim(ctx, o, before)
}
