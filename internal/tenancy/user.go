package tenancy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/store"
)

const (
	// inviteLife is how long somebody has to answer.
	inviteLife   = 7 * 24 * time.Hour
	invitePrefix = "dzi_" // of the token in an invitation
	// invitesMax bounds the open invitations of a workspace.
	invitesMax = 1000
)

// listUsers answers the members of the workspace.
func (s *Server) listUsers(ctx context.Context, _ *http.Request) ([]doze.User, error) {
	members, err := s.Store.Members(ctx, api.Caller(ctx).Workspace)
	if err != nil {
		return nil, err
	}
	users := make([]doze.User, 0, len(members))
	for _, m := range members {
		u, err := s.Store.User(ctx, m.Sub)
		if err != nil {
			return nil, err
		}
		users = append(users, memberOf(u, m.Role))
	}
	slices.SortFunc(users, func(a, b doze.User) int { return strings.Compare(a.Email, b.Email) })
	return users, nil
}

func memberOf(u store.User, role string) doze.User {
	u.Role, u.Accepted = role, true
	return u.User
}

// place changes the role of a user in a workspace in the records, with change,
// and then in memory. One such change of a user is made at a time, so that the
// two agree. The empty role is none.
func (s *Server) place(ctx context.Context, sub, workspace, role string, change func(context.Context) error) error {
	life, release, err := s.locks.Take(ctx, "member/"+sub)
	if err != nil {
		return err
	}
	defer release()
	if err := change(life); err != nil {
		return err
	}
	s.Credentials.Join(sub, workspace, role)
	return nil
}

func checkRole(p *doze.Problems, role string) {
	if role != doze.RoleAdmin && role != doze.RoleMember {
		p.Add("role", "must be %s or %s", doze.RoleAdmin, doze.RoleMember)
	}
}

// inviteRequest says who is invited, and as what.
type inviteRequest struct {
	Email string `json:"email"`
	Role  string `json:"role"`
}

// inviteUser invites somebody into the workspace. The token in the answer is
// what they need if they have no account yet: hand it to them.
func (s *Server) inviteUser(ctx context.Context, _ *http.Request, body map[string]any) (doze.Invitation, error) {
	c, now := api.Caller(ctx), time.Now()
	in := inviteRequest{Role: doze.RoleMember}
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	in.Email = strings.ToLower(strings.TrimSpace(in.Email))
	doze.CheckEmail(&p, "email", in.Email)
	checkRole(&p, in.Role)
	if err := p.Err(); err != nil {
		return doze.Invitation{}, err
	}
	if in.Role == doze.RoleAdmin && !c.May(access.Admin) {
		return doze.Invitation{}, doze.Errorf(doze.Forbidden, "only an admin can invite an admin")
	}
	if u, err := s.Store.User(ctx, in.Email); err == nil {
		members, err := s.Store.Members(ctx, c.Workspace)
		for _, m := range members {
			if m.Sub == u.Sub {
				return doze.Invitation{}, doze.Errorf(doze.Conflict, "%s is a member already", in.Email)
			}
		}
		if err != nil {
			return doze.Invitation{}, err
		}
	}
	all, err := s.Store.Invitations(ctx, c.Workspace, now)
	if err == nil && len(all) >= invitesMax {
		err = doze.Errorf(doze.Exhausted, "the workspace has %d open invitations, which is the limit", len(all))
	}
	if err != nil {
		return doze.Invitation{}, err
	}
	id := store.NewID()
	token := access.NewCode(invitePrefix, id)
	i := store.Invitation{
		ID: id, Hash: access.HashCode(token),
		Invitation: doze.Invitation{
			Email: in.Email, Role: in.Role, Workspace: c.Workspace, InvitedBy: c.Sub, CreatedBy: c.Sub,
			CreatedAt: doze.Time{Time: now}, ExpiresAt: doze.Time{Time: now.Add(inviteLife)},
		},
	}
	if err := s.Store.PutInvitation(ctx, i); err != nil {
		return doze.Invitation{}, err
	}
	i.Token = token
	return i.Invitation, nil
}

func (s *Server) listInvitations(ctx context.Context, _ *http.Request) ([]doze.Invitation, error) {
	all, err := s.Store.Invitations(ctx, api.Caller(ctx).Workspace, time.Now())
	list := make([]doze.Invitation, len(all))
	for i, inv := range all {
		list[i] = inv.Invitation
	}
	return list, err
}

// member is the member of the workspace that a path names by sub or address.
func (s *Server) member(ctx context.Context, r *http.Request) (u store.User, role string, err error) {
	missing := doze.Errorf(doze.NotFound, "there is no such user in the workspace")
	u, err = s.Store.User(ctx, strings.ToLower(r.PathValue("user")))
	if doze.Public(err).Kind == doze.NotFound {
		return u, "", missing
	}
	if err != nil {
		return u, "", err
	}
	members, err := s.Store.Members(ctx, api.Caller(ctx).Workspace)
	for _, m := range members {
		if m.Sub == u.Sub {
			return u, m.Role, err
		}
	}
	if err == nil {
		err = missing
	}
	return u, "", err
}

// roleRequest is what a caller may change of a member.
type roleRequest struct {
	Role string `json:"role"`
}

// updateUser changes the role of a member.
func (s *Server) updateUser(ctx context.Context, r *http.Request, body map[string]any) (doze.User, error) {
	c := api.Caller(ctx)
	u, role, err := s.member(ctx, r)
	if err != nil {
		return doze.User{}, err
	}
	in := roleRequest{role}
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	api.Echoes(body, in, memberOf(u, role), &p)
	checkRole(&p, in.Role)
	if err := p.Err(); err != nil {
		return doze.User{}, err
	}
	if !c.May(access.Admin) && in.Role != role {
		return doze.User{}, doze.Errorf(doze.Forbidden, "only an admin can change roles")
	}
	err = s.place(ctx, u.Sub, c.Workspace, in.Role, func(ctx context.Context) error {
		return s.Store.SetRole(ctx, store.Member{Workspace: c.Workspace, Sub: u.Sub, Role: in.Role})
	})
	return memberOf(u, in.Role), err
}

// removeUser takes a member out of the workspace, or an invitation back.
func (s *Server) removeUser(ctx context.Context, r *http.Request) (httpx.None, error) {
	c := api.Caller(ctx)
	u, _, err := s.member(ctx, r)
	if doze.Public(err).Kind == doze.NotFound {
		if s.Store.DeleteInvitation(ctx, c.Workspace, strings.ToLower(r.PathValue("user"))) == nil {
			return httpx.None{}, nil
		}
	}
	if err != nil {
		return httpx.None{}, err
	}
	return httpx.None{}, s.expel(ctx, c.Workspace, u.Sub)
}

// acceptRequest is the body of a user that accepts an invitation.
type acceptRequest struct {
	Token      string `json:"token"`
	Password   string `json:"password"`
	GivenName  string `json:"given_name"`
	FamilyName string `json:"family_name"`
}

// acceptInvitation makes the bearer of an invitation's token a user with a
// password, and a member. Nobody else needs to be logged in for it.
func (s *Server) acceptInvitation(ctx context.Context, _ *http.Request, body map[string]any) (doze.User, error) {
	var in acceptRequest
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	checkToken(&p, in.Token)
	doze.CheckPassword(&p, "password", in.Password)
	checkPerson(&p, "given_name", in.GivenName)
	checkPerson(&p, "family_name", in.FamilyName)
	if err := p.Err(); err != nil {
		return doze.User{}, err
	}
	i, err := s.invitation(ctx, in.Token)
	if err != nil {
		return doze.User{}, err
	}
	hash, err := access.HashPassword(ctx, in.Password)
	if err != nil {
		return doze.User{}, err
	}
	u := store.User{
		User:     doze.User{Sub: store.NewID(), Email: i.Email, EmailVerified: false, GivenName: in.GivenName, FamilyName: in.FamilyName},
		Password: hash, Created: doze.Time{Time: time.Now()},
	}
	if err := s.Store.AcceptInvitation(ctx, i, u.Sub, &u); err != nil {
		return doze.User{}, err
	}
	s.Credentials.Set(access.Principal{Sub: u.Sub, Type: doze.SubUser, Roles: map[string]string{i.Workspace: i.Role}})
	return memberOf(u, i.Role), nil
}

// declineRequest has the token of an invitation.
type declineRequest struct {
	Token string `json:"token"`
}

// declineInvitation makes an invitation void.
func (s *Server) declineInvitation(ctx context.Context, _ *http.Request, body map[string]any) (httpx.None, error) {
	var in declineRequest
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	checkToken(&p, in.Token)
	if err := p.Err(); err != nil {
		return httpx.None{}, err
	}
	i, err := s.invitation(ctx, in.Token)
	if err != nil {
		return httpx.None{}, err
	}
	return httpx.None{}, s.Store.DeleteInvitation(ctx, i.Workspace, i.Email)
}

// checkToken adds that there is no token of an invitation.
func checkToken(p *doze.Problems, token string) {
	if token == "" {
		p.Missing("token")
	}
}

// invitation is the one of a token.
func (s *Server) invitation(ctx context.Context, token string) (store.Invitation, error) {
	wrong := doze.Errorf(doze.NotFound, "the invitation is unknown, used or over: ask for another one")
	id, ok := access.CodeID(invitePrefix, token)
	if !ok {
		return store.Invitation{}, wrong
	}
	i, err := s.Store.Invitation(ctx, id, time.Now())
	if doze.Public(err).Kind == doze.NotFound || err == nil && !access.SameCode(i.Hash, token) {
		return store.Invitation{}, wrong
	}
	return i, err
}

// joinWorkspace and refuseWorkspace answer the invitation of a user who has an
// account.
func (s *Server) joinWorkspace(ctx context.Context, r *http.Request) (doze.Workspace, error) {
	i, u, err := s.invited(ctx, r, "workspaces:accept")
	if err != nil {
		return doze.Workspace{}, err
	}
	err = s.place(ctx, u.Sub, i.Workspace, i.Role, func(ctx context.Context) error {
		return s.Store.AcceptInvitation(ctx, i, u.Sub, nil)
	})
	if err != nil {
		return doze.Workspace{}, err
	}
	return s.Store.Workspace(ctx, i.Workspace)
}

func (s *Server) refuseWorkspace(ctx context.Context, r *http.Request) (httpx.None, error) {
	i, _, err := s.invited(ctx, r, "workspaces:decline")
	if err != nil {
		return httpx.None{}, err
	}
	return httpx.None{}, s.Store.DeleteInvitation(ctx, i.Workspace, i.Email)
}

// invited is the caller's invitation into the workspace that a path names.
func (s *Server) invited(ctx context.Context, r *http.Request, scope string) (i store.Invitation, u store.User, err error) {
	c := api.Caller(ctx)
	if !c.Holds(scope) {
		return i, u, doze.Errorf(doze.Forbidden, "this call needs the scope %s", scope)
	}
	if c.SubType != doze.SubUser {
		return i, u, doze.Errorf(doze.NotFound, "there is no such invitation, or it is over")
	}
	if u, err = s.Store.User(ctx, c.Sub); err != nil {
		return i, u, err
	}
	i, err = s.Store.InvitationOf(ctx, r.PathValue("workspace"), u.Email, time.Now())
	return i, u, err
}

// passwordRequest is a password and the one before.
type passwordRequest struct {
	Old      string `json:"old_password"`
	Password string `json:"password"`
}

// setPassword changes the caller's own password, and revokes all of their tokens. The
// caller must send the old password, if there is one. The first password requires admin
// scope.
func (s *Server) setPassword(ctx context.Context, r *http.Request, body map[string]any) (httpx.None, error) {
	c := api.Caller(ctx)
	var in passwordRequest
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	doze.CheckPassword(&p, "password", in.Password)
	if err := p.Err(); err != nil {
		return httpx.None{}, err
	}
	if c.SubType != doze.SubUser {
		return httpx.None{}, doze.Errorf(doze.Forbidden, "a service account has no password")
	}
	u, err := s.Store.User(ctx, c.Sub)
	if err != nil {
		return httpx.None{}, err
	}
	if u.Password != "" {
		err := s.OAuth.CheckPassword(ctx, u, httpx.SourceNetwork(httpx.Source(r)), in.Old)
		if doze.Public(err).Kind == doze.Unauthenticated { // which the credential of this call is not
			err = doze.Errorf(doze.Invalid, "old_password is wrong")
		}
		if err != nil {
			return httpx.None{}, err
		}
	} else if !c.May(access.Admin) {
		return httpx.None{}, doze.Errorf(doze.Forbidden, "the first password needs the scope %s", access.Admin)
	}
	hash, err := access.HashPassword(ctx, in.Password)
	if err != nil {
		return httpx.None{}, err
	}
	if err := s.Store.RevokeGrants(ctx, u.Sub); err != nil {
		return httpx.None{}, err
	}
	epoch, err := s.Store.SetPassword(ctx, u.Sub, hash)
	if err != nil {
		return httpx.None{}, err
	}
	s.Credentials.Renew(u.Sub, epoch)
	return httpx.None{}, nil
}
