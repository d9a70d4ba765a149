package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/store"
)

// workspacesMax bounds the workspaces of a platform: all memberships are held
// in memory.
const workspacesMax = 10_000

// workspacesOwned bounds those that one account creates that is no operator.
const workspacesOwned = 100

// reservedNames would be taken for a part of an address or for us.
var (
	reservedNames = []string{"account", "admin", "api", "blaxel", "default", "doze", "localhost", "www"}
	versionForm   = regexp.MustCompile(`^v[0-9]`)
)

func (s *Server) listWorkspaces(ctx context.Context, r *http.Request) ([]doze.Workspace, error) {
	c := api.Caller(ctx)
	all, err := s.Store.Workspaces(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(w doze.Workspace) bool {
		in, ok := c.In(w.Name)
		return !ok || !in.May("workspaces:list")
	})
	return api.Labelled(r, all, func(w doze.Workspace) map[string]string { return w.Labels })
}

// inWorkspace is the workspace that a path names, by name or id, and the
// caller in it. One that the caller may not enter does not exist.
func (s *Server) inWorkspace(ctx context.Context, r *http.Request, scope string) (doze.Workspace, access.Caller, error) {
	c, asked := api.Caller(ctx), r.PathValue("workspace")
	for _, name := range slices.Sorted(maps.Keys(c.Roles)) {
		w, err := s.Store.Workspace(ctx, name)
		if err != nil {
			return doze.Workspace{}, c, fmt.Errorf("a workspace of the caller: %w", err)
		}
		if asked != w.Name && asked != w.ID {
			continue
		}
		c, _ = c.In(name)
		if !c.May(scope) {
			return doze.Workspace{}, c, doze.Errorf(doze.Forbidden, "this call needs the scope %s in the workspace %s", scope, name)
		}
		return w, c, nil
	}
	return doze.Workspace{}, c, doze.Errorf(doze.NotFound, "there is no such workspace")
}

func (s *Server) workspace(ctx context.Context, r *http.Request) (doze.Workspace, error) {
	w, c, err := s.inWorkspace(ctx, r, "workspaces:get")
	if err != nil || !api.CountResources.In(r.URL.Query()) {
		return w, err
	}
	n, err := s.Store.Count(ctx, c.Workspace)
	w.Resources = map[string]int{"sandboxes": n}
	return w, err
}

// workspaceRequest is what a caller may set of a workspace.
type workspaceRequest struct {
	Name        string            `json:"name"`
	DisplayName string            `json:"displayName"`
	Region      string            `json:"region"`
	Labels      map[string]string `json:"labels"`
}

func (s *Server) checkWorkspace(in *workspaceRequest, p *doze.Problems) {
	m := doze.Metadata{Name: in.Name, DisplayName: in.DisplayName, Labels: in.Labels}
	m.CheckIn(p, "")
}

// founder lets callers pass who may create workspaces.
func (s *Server) founder(ctx context.Context) error {
	switch c := api.Caller(ctx); {
	case c.SubType != doze.SubUser:
		return doze.Errorf(doze.Forbidden, "a service account lives in one workspace: create others as a user")
	case !c.Operates(s.Operator) && !c.Founder:
		return doze.Errorf(doze.Forbidden, "workspaces are created by administrators of the workspace %s, and by users to whom they give the right", s.Operator)
	}
	return nil
}

// createWorkspace makes a workspace of which the caller is the admin.
func (s *Server) createWorkspace(ctx context.Context, _ *http.Request, body map[string]any) (doze.Workspace, error) {
	c, now := api.Caller(ctx), doze.Time{Time: time.Now()}
	var p doze.Problems
	var in workspaceRequest
	api.Decode(&in, body, "", &p)
	in.Region = api.RegionOf(in.Region, s.Regions[0])
	s.checkWorkspace(&in, &p)
	api.CheckRegion(&p, "region", in.Region, s.Regions)
	if reason := s.refused(in.Name); reason != "" {
		p.Add("name", "%q is reserved", in.Name)
	}
	if err := p.Err(); err != nil {
		return doze.Workspace{}, err
	}
	if err := s.founder(ctx); err != nil {
		return doze.Workspace{}, err
	}
	all, err := s.Store.Workspaces(ctx)
	if err == nil && len(all) >= workspacesMax {
		err = doze.Errorf(doze.Exhausted, "the platform has %d workspaces, which is the limit", len(all))
	}
	if err != nil {
		return doze.Workspace{}, err
	}
	own := 0
	for _, w := range all {
		if w.CreatedBy == c.Sub {
			own++
		}
	}
	if own >= workspacesOwned && !c.Operates(s.Operator) {
		return doze.Workspace{}, doze.Errorf(doze.Exhausted, "you have created %d workspaces, which is the limit: delete one first", own)
	}
	w := doze.Workspace{
		ID: store.NewID(), Name: in.Name, DisplayName: in.DisplayName, Region: in.Region, Labels: in.Labels, Status: "ready",
		CreatedAt: now, CreatedBy: c.Sub, UpdatedAt: now, UpdatedBy: c.Sub,
	}
	if err := s.Store.InsertWorkspace(ctx, w, store.Member{Workspace: w.Name, Sub: c.Sub, Role: doze.RoleAdmin}); err != nil {
		return doze.Workspace{}, err
	}
	s.Credentials.Join(c.Sub, w.Name, doze.RoleAdmin)
	return w, nil
}

func (s *Server) updateWorkspace(ctx context.Context, r *http.Request, body map[string]any) (doze.Workspace, error) {
	w, c, err := s.inWorkspace(ctx, r, "workspaces:update")
	if err != nil {
		return w, err
	}
	var p doze.Problems
	in := workspaceRequest{w.Name, w.DisplayName, w.Region, maps.Clone(w.Labels)}
	api.Decode(&in, body, "", &p)
	api.Echoes(body, in, w, &p)
	if in.Name == "" {
		in.Name = w.Name
	}
	if in.Name != w.Name {
		p.Add("name", "cannot be changed: create another workspace")
	}
	s.checkWorkspace(&in, &p)
	api.SameRegion(&p, "region", in.Region, w.Region, "workspace")
	if err := p.Err(); err != nil {
		return w, err
	}
	w.DisplayName, w.Labels = in.DisplayName, in.Labels
	w.UpdatedAt, w.UpdatedBy = doze.Time{Time: time.Now()}, c.Sub
	return w, s.Store.UpdateWorkspace(ctx, w)
}

// deleteWorkspace removes a workspace without sandboxes, and everybody's way
// into it.
func (s *Server) deleteWorkspace(ctx context.Context, r *http.Request) (doze.Workspace, error) {
	w, c, err := s.inWorkspace(ctx, r, "workspaces:delete")
	if err != nil {
		return w, err
	}
	accounts, err := s.Store.ServiceAccounts(ctx, c.Workspace)
	if err != nil {
		return w, err
	}
	keys, err := s.Store.DeleteWorkspace(ctx, w.Name)
	if err != nil {
		return w, err
	}
	for _, id := range keys {
		s.Credentials.RemoveKey(id)
	}
	for _, a := range accounts {
		s.Credentials.Forget(a.ClientID)
	}
	s.Credentials.Close(w.Name)
	if err := s.Runtime.DropLogs(ctx, w.Name); err != nil { // nobody can read them any more, and they end with their time
		slog.WarnContext(ctx, "the logs of a workspace that was deleted are left", "workspace", w.Name, "err", err)
	}
	if err := s.DropBuilds(ctx, w); err != nil {
		slog.WarnContext(ctx, "the builder of a workspace that was deleted is left until it was unused for long", "workspace", w.Name, "err", err)
	}
	return w, s.limit(ctx, w.Name, nil)
}

// leaveWorkspace takes the caller out of a workspace.
func (s *Server) leaveWorkspace(ctx context.Context, r *http.Request) (doze.Workspace, error) {
	w, c, err := s.inWorkspace(ctx, r, "workspaces:leave")
	if err != nil {
		return w, err
	}
	return w, s.expel(ctx, w.Name, c.Sub)
}

// expel takes a user out of a workspace.
func (s *Server) expel(ctx context.Context, workspace, sub string) error {
	return s.place(ctx, sub, workspace, "", func(ctx context.Context) error {
		return s.Store.RemoveMember(ctx, workspace, sub)
	})
}

// refused is why nobody may have a name, or empty.
func (s *Server) refused(name string) string {
	switch {
	case slices.Contains(reservedNames, name), s.siblings.Have("/workspaces/{}", name):
		return "forbidden_reserved"
	case versionForm.MatchString(name):
		return "forbidden_v_prefix"
	}
	return ""
}

// nameRequest asks about a name.
type nameRequest struct {
	Name string `json:"name"`
}

// availability says whether a name is free, and why not; bare, that alone.
type availability struct {
	Available bool   `json:"available"`
	Message   string `json:"message"`
	Reason    string `json:"reason,omitempty"`
	bare      bool
}

// MarshalJSON writes an object, or a boolean.
func (a availability) MarshalJSON() ([]byte, error) {
	if a.bare {
		return json.Marshal(a.Available)
	}
	type object availability
	return json.Marshal(object(a))
}

// Schema says that of the two forms.
func (availability) Schema(of func(reflect.Type) *openapi.Schema) *openapi.Schema {
	type reasonedAvailability availability
	return &openapi.Schema{OneOf: []*openapi.Schema{{Type: "boolean"}, of(reflect.TypeFor[reasonedAvailability]())}}
}

// workspaceAvailability answers whether a name is free.
func (s *Server) workspaceAvailability(ctx context.Context, r *http.Request, body map[string]any) (out availability, err error) {
	p := api.Mistakes(ctx)
	var in nameRequest
	api.Decode(&in, body, "", &p)
	doze.CheckName(&p, "name", in.Name)
	if err := p.Err(); err != nil {
		return out, err
	}
	reason, message := s.refused(in.Name), "the name is free"
	if reason != "" {
		message = "the name is reserved"
	} else if _, err := s.Store.Workspace(ctx, in.Name); err == nil {
		reason, message = "taken", "the name is taken"
	} else if doze.Public(err).Kind != doze.NotFound {
		return out, err
	}
	return availability{reason == "", message, reason, !api.WithReason.In(r.URL.Query())}, nil
}

// checkPerson bounds the names of a person.
func checkPerson(p *doze.Problems, field, name string) {
	if n := utf8.RuneCountInString(name); n > doze.PersonMax {
		p.Add(field, "is %d characters long; at most %d are allowed", n, doze.PersonMax)
	}
}
