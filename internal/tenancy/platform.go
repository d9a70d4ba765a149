package tenancy

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/audit"
)

// operator is an error for a caller who does not operate the platform.
func (s *Server) operator(ctx context.Context) error { return api.Operator(ctx, s.Operator) }

// operates is operator for the table of routes.
func (s *Server) operates(r *http.Request) error { return s.operator(r.Context()) }

// listPlatformUsers answers the users of all workspaces, oldest first.
func (s *Server) listPlatformUsers(ctx context.Context, _ *http.Request) ([]doze.User, error) {
	if err := s.operator(ctx); err != nil {
		return nil, err
	}
	all, err := s.Store.Users(ctx)
	users := make([]doze.User, len(all))
	for i, u := range all {
		users[i] = u.User
	}
	return users, err
}

// rightsRequest is what an operator may change of a user.
type rightsRequest struct {
	WorkspaceCreator bool `json:"workspaceCreator"`
}

// updatePlatformUser changes what a user may do on the platform. One such change
// of a user is made at a time, so that the record and what is in memory agree.
func (s *Server) updatePlatformUser(ctx context.Context, r *http.Request, body map[string]any) (doze.User, error) {
	name := strings.ToLower(r.PathValue("user"))
	u, err := s.Store.User(ctx, name)
	if err != nil {
		return doze.User{}, err
	}
	life, release, err := s.locks.Take(ctx, "member/"+u.Sub)
	if err != nil {
		return doze.User{}, err
	}
	defer release()
	if u, err = s.Store.User(life, u.Sub); err != nil {
		return doze.User{}, err
	}
	in := rightsRequest{u.WorkspaceCreator}
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	if err := p.Err(); err != nil {
		return doze.User{}, err
	}
	u.WorkspaceCreator = in.WorkspaceCreator
	audit.Of(ctx).Detail = "workspaceCreator=" + strconv.FormatBool(in.WorkspaceCreator)
	if err := s.Store.UpdateUser(life, u.User); err != nil {
		return doze.User{}, err
	}
	s.Credentials.Entitle(u.Sub, u.WorkspaceCreator)
	return u.User, nil
}
