package tenancy

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/store"
)

// quotaRequest is what an operator may set of the quotas of a workspace: limits
// by name. Null takes one back; what is left out stays.
type quotaRequest struct {
	Quotas limitChanges `json:"quotas"`
}

type limitChanges map[string]*int

// Schema says that null is a value.
func (limitChanges) Schema(func(reflect.Type) *openapi.Schema) *openapi.Schema {
	return &openapi.Schema{Type: "object", Values: &openapi.Schema{OneOf: []*openapi.Schema{
		{Type: "integer", Format: "int64", Minimum: new(0)}, {Type: "null", Description: "the default"},
	}}}
}

// limitChange is a change of limits that was checked: nil takes one back.
type limitChange map[string]*int64

// String names each of them, for the audit log.
func (c limitChange) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		text := "default"
		if most := c[name]; most != nil {
			text = strconv.FormatInt(*most, 10)
		}
		all = append(all, name+"="+text)
	}
	return strings.Join(all, " ")
}

// Load has limits enforced here, and recalls what was sent today.
func (s *Server) Load(ctx context.Context) error {
	all, err := s.Store.Limits(ctx)
	if err != nil {
		return err
	}
	for workspace, own := range all {
		s.Quotas.Set(workspace, own)
	}
	return s.Store.Egress(ctx, s.Quotas.Recall)
}

const (
	// egressLook is how often workspaces are compared with their quota of egress.
	// A connection that is open may exceed it by what passes in that time.
	egressLook = time.Second
	// egressNoted is how often what was counted is recorded: a crash loses that
	// much.
	egressNoted = time.Minute
	// endTimeout bounds the last record of it.
	endTimeout = 30 * time.Second
)

// meterEgress ends the connections of workspaces that have used up their quota
// of egress, and records what all have used, until ctx ends.
func (s *Server) meterEgress(ctx context.Context) {
	noted := time.Now()
	for never := bell.New(); never.Wait(ctx, egressLook); {
		if s.Quotas.Turn() && s.Enforce != nil {
			s.Enforce()
		}
		if time.Since(noted) >= egressNoted {
			noted = time.Now()
			s.noteEgress(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	s.noteEgress(ctx)
}

// noteEgress records what workspaces have sent and received today.
func (s *Server) noteEgress(ctx context.Context) {
	day, bytes := s.Quotas.Egress()
	if len(bytes) == 0 {
		return
	}
	if err := s.Store.SetEgress(ctx, day, bytes); err != nil && ctx.Err() == nil {
		slog.ErrorContext(ctx, "what workspaces sent and received is not recorded yet", "err", err)
	}
}

// limit puts the limits of a workspace in force; the records have them already.
func (s *Server) limit(ctx context.Context, workspace string, own doze.Limits) error {
	s.Quotas.Set(workspace, own)
	return s.Runtime.SetLimits(ctx, workspace, own)
}

// quotas answers those of the caller's workspace.
func (s *Server) quotas(ctx context.Context, _ *http.Request) ([]doze.QuotaStatus, error) {
	return s.statusOf(ctx, api.Caller(ctx).Workspace)
}

// quotasOf answers those of a workspace that the caller may enter; an operator may see
// all.
func (s *Server) quotasOf(ctx context.Context, r *http.Request) ([]doze.QuotaStatus, error) {
	w, err := s.governed(ctx, r)
	if err != nil {
		return nil, err
	}
	return s.statusOf(ctx, w.Name)
}

// governs lets operators pass. Others learn nothing of workspaces that they may not
// enter.
func (s *Server) governs(r *http.Request) error {
	if _, err := s.governed(r.Context(), r); err != nil {
		return err
	}
	return s.operator(r.Context())
}

// setQuotas changes limits of a workspace. What is over them by now stays as it
// is; there is no more of it.
func (s *Server) setQuotas(ctx context.Context, r *http.Request, body map[string]any) ([]doze.QuotaStatus, error) {
	w, err := s.governed(ctx, r)
	if err != nil {
		return nil, err
	}
	var p doze.Problems
	var in quotaRequest
	api.Decode(&in, body, "", &p)
	change, limits := limitChange{}, doze.Limits{}
	for name, most := range in.Quotas {
		change[name] = nil
		limits[name] = 0
		if q, ok := doze.QuotaOf(name); ok {
			limits[name] = q.Default // null is right for each that there is
		}
		if most != nil {
			limits[name] = int64(*most)
			change[name] = new(int64(*most))
		}
	}
	if len(p) == 0 {
		limits.Check(&p, "quotas.")
	}
	if len(p) == 0 && len(change) == 0 {
		p.Missing("quotas")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if limits[doze.QuotaEgress] > 0 && change[doze.QuotaEgress] != nil && s.Runtime.Unmetered() {
		return nil, doze.Errorf(doze.Unsupported, "quotas.%s cannot hold here: with --egress direct, sandboxes send past what counts; the operator may choose --egress open", doze.QuotaEgress)
	}
	// Of two changes at a time, the one that is recorded last is in force.
	s.governing.Lock()
	defer s.governing.Unlock()
	audit.Of(ctx).Detail = change.String()
	own, err := s.Store.SetLimits(ctx, w.Name, change)
	if err != nil {
		return nil, err
	}
	if err := s.limit(ctx, w.Name, own); err != nil {
		return nil, err
	}
	return s.statusOf(ctx, w.Name)
}

// governed is the workspace that a path names, by name or id: for an operator
// any, for others those that they may enter.
func (s *Server) governed(ctx context.Context, r *http.Request) (doze.Workspace, error) {
	if !api.Caller(ctx).Operates(s.Operator) {
		w, _, err := s.inWorkspace(ctx, r, "workspaces:get")
		return w, err
	}
	asked := r.PathValue("workspace")
	w, err := s.Store.Workspace(ctx, asked)
	if doze.Public(err).Kind != doze.NotFound {
		return w, err
	}
	all, err2 := s.Store.Workspaces(ctx)
	if err2 != nil {
		return w, err2
	}
	if i := slices.IndexFunc(all, func(w doze.Workspace) bool { return w.ID == asked }); i >= 0 {
		return all[i], nil
	}
	return w, err
}

// statusOf is every row of the table for a workspace.
func (s *Server) statusOf(ctx context.Context, workspace string) ([]doze.QuotaStatus, error) {
	sandboxes, memory, err := s.Runtime.Awake(ctx, workspace)
	if err != nil {
		return nil, err
	}
	now := map[string]int64{
		doze.QuotaSandboxesAwake: int64(sandboxes), doze.QuotaMemoryAwake: int64(memory),
		doze.QuotaConnections: s.Quotas.Open(workspace), doze.QuotaRequests: s.Quotas.Rate(workspace),
		doze.QuotaEgress: s.Quotas.EgressOf(workspace) >> 20,
	}
	for _, name := range store.Counted {
		n, err := s.Store.Used(ctx, workspace, name)
		if err != nil {
			return nil, err
		}
		now[name] = n
	}
	all := make([]doze.QuotaStatus, len(doze.Quotas))
	for i, q := range doze.Quotas {
		all[i] = doze.QuotaStatus{
			Name: q.Name, Unit: q.Unit, Used: now[q.Name], Limit: s.Quotas.Limit(workspace, q.Name),
			Default: doze.Limits(nil).Of(q.Name, s.Quotas.Defaults), Description: q.About,
		}
		if q.Name == doze.QuotaEgress && s.Runtime.Unmetered() {
			all[i].Description += "; unsupported here: with --egress direct not all of it is counted"
		}
	}
	return all, nil
}
