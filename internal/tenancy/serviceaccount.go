package tenancy

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/store"
)

const (
	descriptionMax = 1 << 10
	// accountsMax bounds the service accounts of a workspace: all are held in
	// memory.
	accountsMax = 1000
	// clientsMax bounds the programs that a workspace registers.
	clientsMax = 100

	accountLock = "accounts/"
)

func (s *Server) listServiceAccounts(ctx context.Context, _ *http.Request) ([]doze.ServiceAccount, error) {
	all, err := s.Store.ServiceAccounts(ctx, api.Caller(ctx).Workspace)
	list := make([]doze.ServiceAccount, len(all))
	for i, a := range all {
		list[i] = a.ServiceAccount
	}
	return list, err
}

func checkAccount(p *doze.Problems, name, description string) {
	if name == "" || len(name) > doze.DisplayNameMax {
		p.Add("name", "must have 1 to %d bytes", doze.DisplayNameMax)
	}
	if len(description) > descriptionMax {
		p.Add("description", "is %d bytes long; at most %d are allowed", len(description), descriptionMax)
	}
}

// accountRequest is what a caller may set of an account.
type accountRequest struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Scopes      []string `json:"scopes"`
}

// read writes a body onto what in is without it. It reports every mistake, and
// scopes that the caller lacks.
func (in *accountRequest) read(c access.Caller, body map[string]any) error {
	var p doze.Problems
	api.Decode(in, body, "", &p)
	checkAccount(&p, in.Name, in.Description)
	checkScopes(&p, in.Scopes)
	return api.VerdictAs(doze.Forbidden, p, lacks(c, in.Scopes, "you lack and cannot give away"))
}

// createServiceAccount makes an account with the caller's scopes, or with some
// of them.
func (s *Server) createServiceAccount(ctx context.Context, _ *http.Request, body map[string]any) (doze.ServiceAccount, error) {
	c, now := api.Caller(ctx), doze.Time{Time: time.Now()}
	in := accountRequest{Scopes: c.Granted()}
	if err := in.read(c, body); err != nil {
		return doze.ServiceAccount{}, err
	}
	all, err := s.Store.ServiceAccounts(ctx, c.Workspace)
	if err == nil && len(all) >= accountsMax {
		err = doze.Errorf(doze.Exhausted, "the workspace has %d service accounts, which is the limit: delete one first", len(all))
	}
	if err != nil {
		return doze.ServiceAccount{}, err
	}
	id := store.NewID()
	secret := access.NewCode(access.ClientPrefix, id)
	a := store.ServiceAccount{
		ServiceAccount: doze.ServiceAccount{
			ClientID: id, Name: in.Name, Description: in.Description, Scopes: in.Scopes, CreatedAt: now, UpdatedAt: now,
		},
		Workspace: c.Workspace, Hash: access.HashCode(secret),
	}
	// Nobody knows the secret yet. Set afterwards, a change in between would be
	// forgotten.
	s.Credentials.Set(serviceOf(a))
	if err := s.Store.InsertServiceAccount(ctx, a); err != nil {
		s.Credentials.Forget(id)
		return doze.ServiceAccount{}, err
	}
	a.Secret = secret // shown here, and never again
	return a.ServiceAccount, nil
}

func (s *Server) serviceAccount(ctx context.Context, r *http.Request) (store.ServiceAccount, error) {
	return s.Store.ServiceAccount(ctx, api.Caller(ctx).Workspace, r.PathValue("account"))
}

// updateServiceAccount changes an account. Its scopes bound those of its keys and
// tokens from then on. One such change is made at a time, so that the record and
// what is in memory agree.
func (s *Server) updateServiceAccount(ctx context.Context, r *http.Request, body map[string]any) (doze.ServiceAccount, error) {
	life, release, err := s.locks.Take(ctx, accountLock+r.PathValue("account"))
	if err != nil {
		return doze.ServiceAccount{}, err
	}
	defer release()
	a, err := s.serviceAccount(life, r)
	if err != nil {
		return doze.ServiceAccount{}, err
	}
	in := accountRequest{a.Name, a.Description, a.Scopes}
	var p doze.Problems
	api.Echoes(body, in, a.ServiceAccount, &p)
	if err := cmp.Or(in.read(api.Caller(ctx), body), p.Err()); err != nil {
		return doze.ServiceAccount{}, err
	}
	a.Name, a.Description, a.Scopes, a.UpdatedAt = in.Name, in.Description, in.Scopes, doze.Time{Time: time.Now()}
	if err := s.Store.UpdateServiceAccount(life, a); err != nil {
		return doze.ServiceAccount{}, err
	}
	s.Credentials.Limit(a.ClientID, a.Scopes)
	return a.ServiceAccount, nil
}

// deleteServiceAccount removes an account; its keys and tokens are void at
// once.
func (s *Server) deleteServiceAccount(ctx context.Context, r *http.Request) (doze.ServiceAccount, error) {
	a, keys, err := s.Store.DeleteServiceAccount(ctx, api.Caller(ctx).Workspace, r.PathValue("account"))
	if err != nil {
		return doze.ServiceAccount{}, err
	}
	s.Credentials.Forget(a.ClientID)
	for _, id := range keys {
		s.Credentials.RemoveKey(id)
	}
	return a.ServiceAccount, nil
}

func (s *Server) listServiceKeys(ctx context.Context, r *http.Request) ([]apiKey, error) {
	a, err := s.serviceAccount(ctx, r)
	if err != nil {
		return nil, err
	}
	return s.keysOf(ctx, func(k store.APIKey) bool { return k.Sub == a.ClientID })
}

// createServiceKey makes a key of a service account, with its scopes.
func (s *Server) createServiceKey(ctx context.Context, r *http.Request, body map[string]any) (apiKey, error) {
	a, err := s.serviceAccount(ctx, r)
	if err != nil {
		return apiKey{}, err
	}
	owner := access.Caller{Sub: a.ClientID, SubType: doze.SubServiceAccount, Workspace: a.Workspace, Roles: serviceOf(a).Roles, Scopes: a.Scopes}
	return s.makeKey(ctx, owner, a.Scopes, body)
}

func (s *Server) deleteServiceKey(ctx context.Context, r *http.Request) (httpx.None, error) {
	a, err := s.serviceAccount(ctx, r)
	if err != nil {
		return httpx.None{}, err
	}
	return s.dropKey(ctx, r.PathValue("key"), func(k store.APIKey) bool { return k.Sub == a.ClientID })
}

func (s *Server) listOAuthClients(ctx context.Context, _ *http.Request) ([]doze.OAuthClient, error) {
	all, err := s.Store.OAuthClients(ctx, api.Caller(ctx).Workspace)
	if all == nil {
		all = []doze.OAuthClient{}
	}
	return all, err
}

// clientRequest is a program that registers.
type clientRequest struct {
	Name         string   `json:"client_name"`
	RedirectURIs []string `json:"redirect_uris"`
}

// createOAuthClient registers a program that users may let act for them.
func (s *Server) createOAuthClient(ctx context.Context, _ *http.Request, body map[string]any) (doze.OAuthClient, error) {
	c := api.Caller(ctx)
	var in clientRequest
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	if in.Name == "" || len(in.Name) > doze.DisplayNameMax {
		p.Add("client_name", "must have 1 to %d bytes", doze.DisplayNameMax)
	}
	s.OAuth.CheckRedirects(&p, "redirect_uris", in.RedirectURIs)
	if err := p.Err(); err != nil {
		return doze.OAuthClient{}, err
	}
	all, err := s.Store.OAuthClients(ctx, c.Workspace)
	if err == nil && len(all) >= clientsMax {
		err = doze.Errorf(doze.Exhausted, "the workspace has %d clients, which is the limit: delete one first", len(all))
	}
	if err != nil {
		return doze.OAuthClient{}, err
	}
	client := doze.OAuthClient{ClientID: store.NewID(), Name: in.Name, RedirectURIs: in.RedirectURIs, CreatedAt: doze.Time{Time: time.Now()}}
	return client, s.Store.InsertOAuthClient(ctx, c.Workspace, client)
}

func (s *Server) deleteOAuthClient(ctx context.Context, r *http.Request) (doze.OAuthClient, error) {
	return s.Store.DeleteOAuthClient(ctx, api.Caller(ctx).Workspace, r.PathValue("client"))
}
