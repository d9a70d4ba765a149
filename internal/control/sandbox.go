package control

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/store"
)

// sandbox answers one sandbox: the living one of a name, or the one that ended
// last while its record is kept.
func (s *Server) sandbox(ctx context.Context, r *http.Request) (doze.Sandbox, error) {
	reveal, err := api.Reveals(ctx, r)
	if err != nil {
		return doze.Sandbox{}, err
	}
	sb, err := s.Store.SandboxByName(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err == nil {
		sb, err = s.afterEnd(ctx, sb)
	}
	if err != nil {
		return doze.Sandbox{}, err
	}
	if reveal {
		return s.bare(sb, s.learn(ctx, learnTimeout, sb)), nil
	}
	return s.show(ctx, sb), nil
}

func (s *Server) sandboxByExternalID(ctx context.Context, r *http.Request) (doze.Sandbox, error) {
	sb, err := s.Store.LatestByExternalID(ctx, api.Caller(ctx).Workspace, r.PathValue("externalId"))
	if err != nil {
		return doze.Sandbox{}, err
	}
	return s.show(ctx, sb), nil
}

// deleteSandbox answers the record as it is being deleted. To delete it twice
// is no error; a terminated one is gone.
func (s *Server) deleteSandbox(ctx context.Context, r *http.Request) (doze.Sandbox, error) {
	sb, err := s.Store.SandboxByName(ctx, api.Caller(ctx).Workspace, r.PathValue("name"))
	if err != nil {
		return doze.Sandbox{}, err
	}
	gone := doze.Errorf(doze.NotFound, "there is no sandbox %q", api.Clip(r.PathValue("name")))
	if sb.Phase == doze.Terminated {
		return doze.Sandbox{}, gone
	}
	sb, err = s.end(ctx, sb, "a caller deleted the sandbox")
	if doze.Public(err).Kind == doze.Conflict { // every other phase can be deleted: it ended just now
		err = gone
	}
	if err != nil {
		return doze.Sandbox{}, err
	}
	return s.view(sb, s.glance(ctx, sb)), nil
}

// answer reads a record again, for a caller who changed it.
func (s *Server) answer(ctx context.Context, uid string) (doze.Sandbox, error) {
	sb, err := s.Store.Sandbox(ctx, uid)
	if err != nil {
		return doze.Sandbox{}, err
	}
	return s.view(sb, s.glance(ctx, sb)), nil
}

// show is view with what its agent knows of the use of the sandbox.
func (s *Server) show(ctx context.Context, sb store.Sandbox) doze.Sandbox {
	return s.view(sb, s.learn(ctx, learnTimeout, sb))
}

// view is a sandbox as callers see it, with its secrets masked.
func (s *Server) view(sb store.Sandbox, by seen) doze.Sandbox {
	out := s.bare(sb, by)
	out.Spec.Runtime.Envs = slices.Clone(out.Spec.Runtime.Envs)
	for i := range out.Spec.Runtime.Envs {
		if e := &out.Spec.Runtime.Envs[i]; e.Secret && !e.From() && e.Value != nil {
			e.Value = new(doze.MaskedValue)
		}
	}
	return out
}

// bare is a sandbox as admins may see it.
func (s *Server) bare(sb store.Sandbox, by seen) doze.Sandbox {
	now := time.Now()
	out := doze.Sandbox{Metadata: sb.Metadata, Spec: sb.Spec}
	out.Metadata.URL, out.Metadata.Plan = s.URL(sb.Metadata.Workspace, sb.Metadata.Name), doze.Plan
	used := s.lastUsed(sb, by, now)
	out.Observed = doze.Observed{
		Archive: sb.Archive, Events: sb.Events, LastUsedAt: doze.Time{Time: used}, NodeGeneration: doze.Generation, Origin: sb.Origin,
		Status: sb.Phase.Status(), State: sb.Phase.State(),
	}
	// Between the phases of one status the node moves on its own, ahead of
	// what it reported.
	st, ok := by[sb.Machine]
	if ok && st.Phase.Status() == sb.Phase.Status() {
		out.State = st.Phase.State()
	}
	out.Entrypoint = st.Entrypoint
	// A build of another image does not change what runs: only what there is to see.
	if status, building := s.Builds.Shown(build.SandboxTarget(sb.UID)); building && sb.Phase.Status() == doze.Running.Status() {
		out.Status = status
	}
	if st.Setback != nil {
		out.Recovery = &doze.Recovery{At: doze.Time{Time: st.Setback.At}, CheckpointAt: doze.Time{Time: st.Setback.Checkpoint}}
	}
	if at, _ := sb.Spec.Deadline(sb.Metadata.CreatedAt.Time, used, true); !at.IsZero() && !sb.Phase.Ended() {
		left := max(int64((at.Sub(now)+time.Second-1)/time.Second), 0)
		out.ExpiresIn = &left
	}
	return out
}

// deadline is when control has to look at a sandbox that was last used at used.
func deadline(sb store.Sandbox, used time.Time) time.Time {
	at, _ := sb.Spec.Deadline(sb.Metadata.CreatedAt.Time, used, true)
	return at
}

// checkLasts adds that a sandbox that was created and last used then would have
// ended already: nobody means that, and there is a DELETE.
func checkLasts(spec *doze.SandboxSpec, created, used time.Time, p *doze.Problems) {
	var over []string
	spec.EachDeadline(created, used, true, func(at time.Time, why string) {
		if !at.After(time.Now()) {
			over = append(over, why)
		}
	})
	if len(over) > 0 {
		p.Add("spec", "is of a sandbox that has ended already: %s", strings.Join(over, ", and "))
	}
}

// decodeSandbox writes a body onto a sandbox. The members that only we set are
// not read, whatever their types.
func decodeSandbox(m *doze.Metadata, spec *doze.SandboxSpec, body map[string]any, p *doze.Problems) {
	api.DecodeMetadata(m, body, p)
	given := api.Member(body, "spec", p)
	api.Decode(spec, given, "spec", p)
	api.Knows(reflect.TypeFor[doze.Network](), given["network"], "spec.network", p)
}

// sandboxPhases are the phases behind each value that a status filter may have,
// and behind those that clients know besides.
var sandboxPhases = func() map[string][]string {
	all := map[string][]string{}
	for _, p := range doze.Phases() {
		all[p.Status()] = append(all[p.Status()], p.String())
	}
	return api.StatusesWith(all)
}()

func (s *Server) listSandboxes(ctx context.Context, r *http.Request) (api.List[doze.Sandbox], error) {
	var by seen
	list := func(ctx context.Context, q listing.Query, now time.Time) (listing.Page[store.Sandbox], error) {
		page, err := s.Store.List(ctx, q, now)
		by = s.learn(ctx, learnAllTimeout, page.Records...)
		return page, err
	}
	return api.AnswerPage(ctx, r, sandboxPhases, list, func(sb store.Sandbox) doze.Sandbox { return s.view(sb, by) })
}
