package tenancy

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/store"
)

const (
	// keyNameMax bounds the name of an API key, as display names are.
	keyNameMax = doze.DisplayNameMax
	// scopesMax is above the number of scopes that exist (spec section 5).
	scopesMax = 128
	// keysOwned bounds those of one member who is no admin, so that ten of them
	// are needed to leave the others none.
	keysOwned = 100
	// firstSub is who the key of the first start belongs to, and the name with
	// which they log in.
	firstSub = "admin"
	// signSetting is the sealed key that signs tokens.
	signSetting = "token_key"
)

// apiKey is an API key as we answer it. Scopes is our addition.
type apiKey struct {
	doze.APIKey
	Scopes []string `json:"scopes"`
}

// LoadCredentials reads everybody who may call for the checks that need no
// I/O. The issuer of tokens is the base URL of the control API.
func LoadCredentials(ctx context.Context, st *store.Store, issuer string) (*access.Credentials, error) {
	keys, err := access.LoadKeys(ctx, func(ctx context.Context) ([]access.Key, error) {
		records, err := st.APIKeys(ctx, "")
		keys := make([]access.Key, len(records))
		for i, k := range records {
			keys[i] = keyOf(k)
		}
		return keys, err
	})
	if err != nil {
		return nil, err
	}
	key, err := signingKey(ctx, st)
	if err != nil {
		return nil, fmt.Errorf("load the key that signs tokens: %w", err)
	}
	tokens, err := access.NewTokens(issuer, key)
	if err != nil {
		return nil, err
	}
	c := access.NewCredentials(keys, tokens)
	return c, loadPrincipals(ctx, st, c)
}

// signingKey is the key that signs tokens, made at the first start.
func signingKey(ctx context.Context, st *store.Store) (ed25519.PrivateKey, error) {
	seed, err := st.SealedSetting(ctx, signSetting)
	if err != nil {
		return nil, err
	}
	if len(seed) == 0 {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, err
		}
		return key, st.SetSealedSetting(ctx, signSetting, key.Seed())
	}
	if len(seed) != ed25519.SeedSize {
		return nil, errors.New("it is damaged")
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

func loadPrincipals(ctx context.Context, st *store.Store, c *access.Credentials) error {
	users, err := st.Users(ctx)
	if err != nil {
		return err
	}
	for _, u := range users {
		c.Set(access.Principal{Sub: u.Sub, Type: doze.SubUser, Epoch: u.Epoch, Founder: u.WorkspaceCreator})
	}
	members, err := st.Members(ctx, "")
	if err != nil {
		return err
	}
	for _, m := range members {
		c.Join(m.Sub, m.Workspace, m.Role)
	}
	accounts, err := st.ServiceAccounts(ctx, "")
	if err != nil {
		return err
	}
	for _, a := range accounts {
		c.Set(serviceOf(a))
	}
	now := time.Now()
	revoked, err := st.RevokedGrants(ctx, now)
	for _, g := range revoked {
		c.Revoke(g.ID, now)
	}
	return err
}

func serviceOf(a store.ServiceAccount) access.Principal {
	return access.Principal{
		Sub: a.ClientID, Type: doze.SubServiceAccount, Roles: map[string]string{a.Workspace: doze.RoleAdmin}, Scopes: a.Scopes,
	}
}

func keyOf(k store.APIKey) access.Key {
	return access.Key{
		ID: k.ID, Workspace: k.Workspace, Sub: k.Sub, SubType: k.SubType,
		Scopes: k.Scopes, Hash: k.Hash, Expires: k.Expires,
	}
}

// Bootstrap makes a fresh database usable: it creates the workspace, its admin
// and a key of theirs, gives the key to save before it is recorded, and returns
// it. If there is a key, it does nothing and returns false.
func (s *Server) Bootstrap(ctx context.Context, workspace string, save func(access.Secret) error) (key access.Secret, created bool, err error) {
	var p doze.Problems
	doze.CheckName(&p, "the workspace", workspace)
	if err := p.Err(); err != nil {
		return key, false, err
	}
	now := time.Now()
	if err := s.firstUser(ctx, now); err != nil {
		return key, false, err
	}
	all, err := s.Store.Workspaces(ctx)
	if err != nil {
		return key, false, err
	}
	if len(all) == 0 {
		all = []doze.Workspace{{
			ID: store.NewID(), Name: workspace, Region: s.Regions[0], Status: "ready",
			CreatedAt: doze.Time{Time: now}, CreatedBy: firstSub,
		}}
		m := store.Member{Workspace: workspace, Sub: firstSub, Role: doze.RoleAdmin}
		if err := s.Store.InsertWorkspace(ctx, all[0], m); err != nil {
			return key, false, err
		}
		s.Credentials.Join(m.Sub, m.Workspace, m.Role)
	}
	// A crash between the inserts, or the deletion of the last key, leaves a
	// platform that nobody can enter.
	keys, err := s.Store.APIKeys(ctx, "")
	if err != nil || len(keys) > 0 {
		return key, false, err
	}
	m := store.Member{Workspace: all[0].Name, Sub: firstSub, Role: doze.RoleAdmin}
	if err := s.Store.SetMember(ctx, m); err != nil {
		return key, false, err
	}
	s.Credentials.Join(m.Sub, m.Workspace, m.Role)
	owner := access.Caller{Sub: firstSub, SubType: doze.SubUser, Workspace: all[0].Name}
	key, _, err = s.addKey(ctx, owner, store.APIKey{APIKey: doze.APIKey{Name: "first"}, Scopes: []string{access.Admin}}, now, save)
	return key, err == nil, err
}

// firstUser adds the user of the first key, if there is none.
func (s *Server) firstUser(ctx context.Context, now time.Time) error {
	_, err := s.Store.User(ctx, firstSub)
	if err == nil || doze.Public(err).Kind != doze.NotFound {
		return err
	}
	u := store.User{User: doze.User{Sub: firstSub, Email: firstSub}, Created: doze.Time{Time: now}}
	if err := s.Store.InsertUser(ctx, u); err != nil {
		return err
	}
	s.Credentials.Set(access.Principal{Sub: u.Sub, Type: doze.SubUser})
	return nil
}

// addKey makes, records and lets in a key of owner.
func (s *Server) addKey(ctx context.Context, owner access.Caller, k store.APIKey, now time.Time, save func(access.Secret) error) (access.Secret, store.APIKey, error) {
	secret, id, hash := access.NewSecret()
	if err := save(secret); err != nil {
		return secret, k, fmt.Errorf("save the key: %w", err)
	}
	k.ID, k.Hash, k.Workspace = id, hash, owner.Workspace
	k.Sub, k.SubType = owner.Sub, owner.SubType
	if k.CreatedBy == "" {
		k.CreatedBy = owner.Sub
	}
	k.UpdatedBy = k.CreatedBy
	k.CreatedAt, k.UpdatedAt = doze.Time{Time: now}, doze.Time{Time: now}
	// Nobody knows the secret yet. Added afterwards, a deletion in between
	// would be forgotten.
	s.Credentials.Keys.Add(keyOf(k))
	if err := s.Store.InsertAPIKey(ctx, k); err != nil {
		s.Credentials.RemoveKey(id)
		return secret, k, err
	}
	return secret, k, nil
}

func (s *Server) listAPIKeys(ctx context.Context, _ *http.Request) ([]apiKey, error) {
	return s.keysOf(ctx, callersKey(ctx))
}

// callersKey tells the keys that a caller may see and delete: their own, and all
// of the workspace if they may do everything in it.
func callersKey(ctx context.Context) func(store.APIKey) bool {
	c := api.Caller(ctx)
	return func(k store.APIKey) bool { return k.Sub == c.Sub || c.May(access.Admin) }
}

// keysOf are the keys of the caller's workspace for which is holds, without
// their secrets.
func (s *Server) keysOf(ctx context.Context, is func(store.APIKey) bool) ([]apiKey, error) {
	all, err := s.Store.APIKeys(ctx, api.Caller(ctx).Workspace)
	keys, used := []apiKey{}, s.Credentials.Keys.Used(time.Time{})
	for _, k := range all {
		if is(k) {
			k.LastUsedAt = doze.Time{Time: k.LastUsed}
			if at := used[k.ID]; at.After(k.LastUsed) { // the record lags
				k.LastUsedAt = doze.Time{Time: at}
			}
			keys = append(keys, apiKey{k.APIKey, k.Scopes})
		}
	}
	return keys, err
}

// createAPIKey makes a key with the caller's scopes, or with some of them.
func (s *Server) createAPIKey(ctx context.Context, _ *http.Request, body map[string]any) (apiKey, error) {
	c := api.Caller(ctx)
	return s.makeKey(ctx, c, c.Granted(), body)
}

// keyRequest is what a caller may set of a key.
type keyRequest struct {
	Name      string   `json:"name"`
	ExpiresIn string   `json:"expires_in"` // a Duration
	Scopes    []string `json:"scopes"`
}

// makeKey makes a key of owner, by default with all of scopes.
func (s *Server) makeKey(ctx context.Context, owner access.Caller, scopes []string, body map[string]any) (apiKey, error) {
	c, now := api.Caller(ctx), time.Now()
	in := keyRequest{Name: "key", Scopes: scopes}
	var p doze.Problems
	api.Decode(&in, body, "", &p)
	if len(in.Name) > keyNameMax {
		p.Add("name", "is %d bytes long; at most %d are allowed", len(in.Name), keyNameMax)
	}
	k := store.APIKey{APIKey: doze.APIKey{Name: in.Name, ExpiresIn: in.ExpiresIn, CreatedBy: c.Sub}, Scopes: in.Scopes}
	if in.ExpiresIn != "" {
		d, err := doze.ParseDuration(in.ExpiresIn)
		if err != nil {
			p.Add("expires_in", "%v", err)
		}
		k.Expires = now.Add(d)
	}
	checkScopes(&p, in.Scopes)
	lacking := lacks(c, in.Scopes, "you lack and cannot give away")
	if owner.Sub != c.Sub {
		lacking = append(lacking, lacks(owner, in.Scopes, "the service account lacks")...)
	}
	if err := api.VerdictAs(doze.Forbidden, p, lacking); err != nil {
		return apiKey{}, err
	}
	all, err := s.Store.APIKeys(ctx, c.Workspace)
	if err != nil {
		return apiKey{}, err
	}
	own := 0
	for _, k := range all {
		if k.Sub == owner.Sub {
			own++
		}
	}
	if own >= keysOwned && !c.May(access.Admin) {
		return apiKey{}, doze.Errorf(doze.Exhausted, "you have %d API keys in the workspace, which is the limit of a member: delete one first", own)
	}
	secret, k, err := s.addKey(ctx, owner, k, now, func(access.Secret) error { return nil })
	if err != nil {
		return apiKey{}, err
	}
	k.Key = secret.Reveal() // shown here, and never again
	return apiKey{k.APIKey, k.Scopes}, nil
}

func checkScopes(p *doze.Problems, scopes []string) {
	if len(scopes) == 0 || len(scopes) > scopesMax {
		p.Add("scopes", "has %d entries; it must have 1 to %d, or be left out", len(scopes), scopesMax)
	}
	for _, scope := range scopes {
		if !access.Known(scope) {
			p.Add("scopes", "has the unknown scope %q", api.Clip(scope))
		}
	}
}

// lacks are those of scopes that c does not have, and what that means.
func lacks(c access.Caller, scopes []string, means string) (p doze.Problems) {
	for _, scope := range scopes {
		if access.Known(scope) && !c.May(scope) {
			p.Add("scopes", "has %q, which %s", scope, means)
		}
	}
	return p
}

func (s *Server) deleteAPIKey(ctx context.Context, r *http.Request) (httpx.None, error) {
	return s.dropKey(ctx, r.PathValue("id"), callersKey(ctx))
}

// dropKey deletes a key of the caller's workspace for which is holds.
func (s *Server) dropKey(ctx context.Context, id string, is func(store.APIKey) bool) (httpx.None, error) {
	c := api.Caller(ctx)
	k, err := s.Store.APIKey(ctx, c.Workspace, id)
	if err == nil && !is(k) {
		err = doze.Errorf(doze.NotFound, "there is no such API key")
	}
	if err != nil {
		return httpx.None{}, err
	}
	if slices.ContainsFunc(k.Scopes, func(scope string) bool { return !c.May(scope) }) {
		return httpx.None{}, doze.Errorf(doze.Forbidden, "the API key holds scopes that you lack")
	}
	if err := s.Store.DeleteAPIKey(ctx, c.Workspace, id); err != nil {
		return httpx.None{}, err
	}
	s.Credentials.RemoveKey(id)
	return httpx.None{}, nil
}

// keysNoted is how old the recorded last use of an API key may be.
const keysNoted = time.Minute

// noteKeys records when API keys were last used.
func (s *Server) noteKeys(ctx context.Context) {
	var noted time.Time
	for never := bell.New(); never.Wait(ctx, keysNoted); {
		now := time.Now()
		used := s.Credentials.Keys.Used(noted)
		if len(used) == 0 {
			continue
		}
		if err := s.Store.TouchAPIKeys(ctx, used); err == nil {
			noted = now.Add(-access.UsedStep) // a use that is a moment older may come yet
		} else if ctx.Err() == nil {
			slog.WarnContext(ctx, "the last use of API keys is not recorded", "err", err)
		}
	}
}
