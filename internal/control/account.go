package control

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"doze"
	"doze/internal/access"
	"doze/internal/httpx"
	"doze/internal/store"
)

const (
	// keyNameMax bounds the name of an API key, as display names are.
	keyNameMax = doze.DisplayNameMax
	// scopesMax is above the number of scopes that exist (spec section 5).
	scopesMax = 64
	// keysMax bounds the API keys of a workspace: all are held in memory.
	keysMax = 1000
	// firstSub is who the key of the first start belongs to.
	firstSub = "admin"
)

// apiKey is an API key as we answer it. Scopes is our addition.
type apiKey struct {
	doze.APIKey
	Scopes []string `json:"scopes"`
}

// LoadKeys reads the API keys of st for the checks that need no I/O.
func LoadKeys(ctx context.Context, st *store.Store) (*access.Keys, error) {
	return access.LoadKeys(ctx, func(ctx context.Context) ([]access.Key, error) {
		records, err := st.APIKeys(ctx, "")
		keys := make([]access.Key, len(records))
		for i, k := range records {
			keys[i] = keyOf(k)
		}
		return keys, err
	})
}

func keyOf(k store.APIKey) access.Key {
	return access.Key{
		ID: k.ID, Workspace: k.Workspace, Sub: k.Sub, SubType: k.SubType,
		Scopes: k.Scopes, Hash: k.Hash, Expires: k.Expires,
	}
}

// Bootstrap makes a fresh database usable: it creates the workspace and an
// admin key, gives the key to keep before it is recorded, and returns it. If a workspace
// with a key exists, it does nothing and returns false.
func (s *Server) Bootstrap(ctx context.Context, workspace string, keep func(access.Secret) error) (key access.Secret, created bool, err error) {
	var p doze.Problems
	doze.CheckName(&p, "the workspace", workspace)
	if err := p.Err(); err != nil {
		return key, false, err
	}
	all, err := s.Store.Workspaces(ctx)
	if err != nil {
		return key, false, err
	}
	now := time.Now()
	if len(all) == 0 {
		all = []doze.Workspace{{
			ID: store.NewID(), Name: workspace, Region: s.Region, Status: "ready",
			CreatedAt: doze.Time{Time: now}, CreatedBy: firstSub,
		}}
		if err := s.Store.InsertWorkspace(ctx, all[0]); err != nil {
			return key, false, err
		}
	}
	// A crash between the two inserts, or the deletion of the last key, leaves
	// a platform that nobody can enter.
	keys, err := s.Store.APIKeys(ctx, "")
	if err != nil || len(keys) > 0 {
		return key, false, err
	}
	c := access.Caller{Sub: firstSub, SubType: "user", Workspace: all[0].Name, Scopes: []string{access.Admin}}
	key, _, err = s.addKey(ctx, c, store.APIKey{APIKey: doze.APIKey{Name: "first"}, Scopes: c.Scopes}, now, keep)
	return key, err == nil, err
}

// addKey makes, records and lets in a key for c.
func (s *Server) addKey(ctx context.Context, c access.Caller, k store.APIKey, now time.Time, keep func(access.Secret) error) (access.Secret, store.APIKey, error) {
	secret, id, hash := access.NewSecret()
	if err := keep(secret); err != nil {
		return secret, k, fmt.Errorf("keep the key: %w", err)
	}
	k.ID, k.Hash, k.Workspace = id, hash, c.Workspace
	k.Sub, k.SubType, k.CreatedBy, k.UpdatedBy = c.Sub, c.SubType, c.Sub, c.Sub
	k.CreatedAt, k.UpdatedAt = doze.Time{Time: now}, doze.Time{Time: now}
	// Nobody knows the secret yet. Added afterwards, a deletion in between
	// would be forgotten.
	s.Keys.Add(keyOf(k))
	if err := s.Store.InsertAPIKey(ctx, k); err != nil {
		s.Keys.Remove(id)
		return secret, k, err
	}
	return secret, k, nil
}

func (s *Server) listAPIKeys(ctx context.Context, _ *http.Request) ([]apiKey, error) {
	all, err := s.Store.APIKeys(ctx, callerOf(ctx).Workspace)
	keys := make([]apiKey, len(all))
	for i, k := range all {
		keys[i] = apiKey{k.APIKey, k.Scopes}
	}
	return keys, err
}

// createAPIKey makes a key with the caller's scopes, or with some of them.
func (s *Server) createAPIKey(ctx context.Context, _ *http.Request, body map[string]any) (apiKey, error) {
	c, now := callerOf(ctx), time.Now()
	in := struct {
		Name      string   `json:"name"`
		ExpiresIn string   `json:"expires_in"`
		Scopes    []string `json:"scopes"`
	}{Name: "key", Scopes: c.Scopes}
	var p doze.Problems
	decode(&in, body, "", &p)
	if len(in.Name) > keyNameMax {
		p.Add("name", "is %d bytes long; at most %d are allowed", len(in.Name), keyNameMax)
	}
	k := store.APIKey{APIKey: doze.APIKey{Name: in.Name, ExpiresIn: in.ExpiresIn}, Scopes: in.Scopes}
	if in.ExpiresIn != "" {
		d, err := doze.ParseDuration(in.ExpiresIn)
		if err != nil {
			p.Add("expires_in", "%v", err)
		}
		k.Expires = now.Add(d)
	}
	if len(in.Scopes) == 0 || len(in.Scopes) > scopesMax {
		p.Add("scopes", "has %d entries; it must have 1 to %d, or be left out", len(in.Scopes), scopesMax)
	}
	if err := p.Err(); err != nil {
		return apiKey{}, err
	}
	if lacking := slices.IndexFunc(in.Scopes, func(scope string) bool { return !c.May(scope) }); lacking >= 0 {
		return apiKey{}, doze.Errorf(doze.Forbidden, "you lack the scope %q and cannot give it to a key", clip(in.Scopes[lacking]))
	}
	all, err := s.Store.APIKeys(ctx, c.Workspace)
	if err != nil {
		return apiKey{}, err
	}
	if len(all) >= keysMax {
		return apiKey{}, doze.Errorf(doze.Exhausted, "the workspace has %d API keys, which is the limit: delete one first", len(all))
	}
	secret, k, err := s.addKey(ctx, c, k, now, func(access.Secret) error { return nil })
	if err != nil {
		return apiKey{}, err
	}
	k.Key = secret.Reveal() // shown here, and never again
	return apiKey{k.APIKey, k.Scopes}, nil
}

func (s *Server) deleteAPIKey(ctx context.Context, r *http.Request) (httpx.None, error) {
	c, id := callerOf(ctx), r.PathValue("id")
	k, err := s.Store.APIKey(ctx, c.Workspace, id)
	if err != nil {
		return httpx.None{}, err
	}
	if slices.ContainsFunc(k.Scopes, func(scope string) bool { return !c.May(scope) }) {
		return httpx.None{}, doze.Errorf(doze.Forbidden, "the API key holds scopes that you lack")
	}
	if err := s.Store.DeleteAPIKey(ctx, c.Workspace, id); err != nil {
		return httpx.None{}, err
	}
	s.Keys.Remove(id)
	return httpx.None{}, nil
}

func (s *Server) listWorkspaces(ctx context.Context, _ *http.Request) ([]doze.Workspace, error) {
	w, err := s.Store.Workspace(ctx, callerOf(ctx).Workspace)
	if err != nil {
		return nil, fmt.Errorf("the caller's workspace: %w", err)
	}
	return []doze.Workspace{w}, nil
}

// workspace answers the caller's own workspace, by its name or id.
func (s *Server) workspace(ctx context.Context, r *http.Request) (doze.Workspace, error) {
	w, err := s.Store.Workspace(ctx, callerOf(ctx).Workspace)
	if asked := r.PathValue("workspace"); err == nil && asked != w.Name && asked != w.ID {
		return doze.Workspace{}, doze.Errorf(doze.NotFound, "there is no such workspace")
	}
	return w, err
}
