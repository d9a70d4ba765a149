package access

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
)

// Principal is a user or a service account, as a check needs it.
type Principal struct {
	Sub   string
	Type  string            // user or service_account
	Epoch int64             // tokens of an earlier one are void
	Roles map[string]string // by workspace

	Founder bool // may create workspaces

	// Scopes are the most that each credential of a service account may do; nil
	// is no bound. It is not to be changed.
	Scopes []string
}

// bound are those of scopes that p lets its credentials have now.
func (p Principal) bound(scopes []string) []string {
	switch {
	case p.Scopes == nil || slices.Contains(p.Scopes, Admin):
		return scopes
	case slices.Contains(scopes, Admin):
		return p.Scopes
	}
	return slices.DeleteFunc(slices.Clone(scopes), func(scope string) bool { return !slices.Contains(p.Scopes, scope) })
}

// Credentials knows everybody who may call, in memory: a check needs no I/O,
// and what is taken away is gone at once. It is safe for concurrent use.
type Credentials struct {
	Keys    *Keys
	Tokens  *Tokens
	Tickets *Tickets

	mu         sync.RWMutex
	principals map[string]Principal // guarded by mu; by sub
	revoked    map[string]time.Time // guarded by mu; by grant, until its tokens are over
	onLess     func()               // guarded by mu
	told       Told                 // guarded by mu

	// verifier checks tokens where Tokens, which signs them, is not.
	verifier atomic.Pointer[Tokens]
}

// NewCredentials returns the credentials of nobody yet.
func NewCredentials(k *Keys, t *Tokens) *Credentials {
	return &Credentials{Keys: k, Tokens: t, Tickets: NewTickets(), principals: map[string]Principal{}, revoked: map[string]time.Time{}, onLess: func() {}, told: Told{}.complete()}
}

// OnLess has fn called whenever somebody may do less than before. It must not
// block.
func (c *Credentials) OnLess(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onLess = fn
}

// change makes a change and tells that somebody may do less.
func (c *Credentials) change(fn func()) {
	c.mu.Lock()
	fn()
	tell := c.onLess
	c.mu.Unlock()
	tell()
}

// putLocked makes p known, and tells. Callers hold mu.
func (c *Credentials) putLocked(p Principal) {
	c.principals[p.Sub] = p
	c.told.Principals(p.Sub, p)
}

// Set makes p known as it is now.
func (c *Credentials) Set(p Principal) {
	p.Roles = maps.Clone(p.Roles)
	c.change(func() { c.putLocked(p) })
}

// Join gives a user a role in a workspace; the empty role takes it away.
func (c *Credentials) Join(sub, workspace, role string) {
	c.change(func() {
		p, ok := c.principals[sub]
		if !ok {
			return
		}
		p.Roles = maps.Clone(p.Roles) // callers hold the one before
		if p.Roles == nil {
			p.Roles = map[string]string{}
		}
		p.Roles[workspace] = role
		if role == "" {
			delete(p.Roles, workspace)
		}
		c.putLocked(p)
	})
}

// Close takes a workspace away from everybody.
func (c *Credentials) Close(workspace string) {
	c.mu.RLock()
	all := slices.Collect(maps.Keys(c.principals))
	c.mu.RUnlock()
	for _, sub := range all {
		c.Join(sub, workspace, "")
	}
}

// Forget makes every key and token of a sub void.
func (c *Credentials) Forget(sub string) {
	c.change(func() {
		delete(c.principals, sub)
		c.told.Principals(sub, nil)
	})
}

// Renew makes every token of a user void that is of an earlier epoch.
func (c *Credentials) Renew(sub string, epoch int64) {
	c.change(func() {
		if p, ok := c.principals[sub]; ok {
			p.Epoch = epoch
			c.putLocked(p)
		}
	})
}

// Entitle says whether a user may create workspaces.
func (c *Credentials) Entitle(sub string, founder bool) {
	c.change(func() {
		if p, ok := c.principals[sub]; ok {
			p.Founder = founder
			c.putLocked(p)
		}
	})
}

// Limit gives a service account other scopes, which bound those of all its keys
// and tokens.
func (c *Credentials) Limit(sub string, scopes []string) {
	c.change(func() {
		if p, ok := c.principals[sub]; ok {
			p.Scopes = slices.Clone(scopes)
			c.putLocked(p)
		}
	})
}

// RemoveKey keeps an API key out from now on.
func (c *Credentials) RemoveKey(id string) { c.change(func() { c.Keys.Remove(id) }) }

// Revoke makes every token of a grant void.
func (c *Credentials) Revoke(grant string, now time.Time) {
	c.change(func() {
		for over, until := range c.revoked {
			if now.After(until) {
				delete(c.revoked, over)
				c.told.Revoked(over, nil)
			}
		}
		c.revoked[grant] = now.Add(TokenLife)
		c.told.Revoked(grant, c.revoked[grant])
	})
}

// StrangerError is that of a credential which is good, and does not open the
// workspace that a request names. It is for the log: Caller may do nothing by it.
type StrangerError struct {
	Caller Caller // where the credential is bound to
	err    error
}

func (e *StrangerError) Error() string { return e.err.Error() }

func (e *StrangerError) Unwrap() error { return e.err }

// Authenticate returns who sent r and where. A missing, wrong, expired or
// revoked credential is Unauthenticated. The header x-blaxel-workspace or the
// query parameter workspace chooses the workspace; one that the caller may not
// enter is Forbidden, by a [StrangerError].
func (c *Credentials) Authenticate(r *http.Request) (Caller, error) {
	text, err := Token(r)
	if err != nil {
		return Caller{}, err
	}
	caller, err := c.Identify(text, time.Now())
	if err != nil {
		return Caller{}, err
	}
	for _, asked := range []string{r.Header.Get("X-Blaxel-Workspace"), r.URL.Query().Get("workspace")} {
		if asked == "" {
			continue
		}
		in, ok := caller.In(asked)
		if !ok {
			return Caller{}, &StrangerError{
				Caller: caller,
				err:    doze.Errorf(doze.Forbidden, "the credential has no access to the requested workspace"),
			}
		}
		caller = in
		caller.Chosen = true
	}
	return caller, nil
}

// Identify returns whose credential text is. The caller is in the workspace that the
// credential is bound to. An API key is bound to the workspace that it was made in, and
// a token to the one that its user agreed in. If the owner left that workspace, the
// caller is nowhere and may do nothing.
func (c *Credentials) Identify(text string, now time.Time) (Caller, error) {
	if looksSigned(text) {
		return c.identifyToken(text, now)
	}
	key, err := c.Keys.check(text, now)
	if err != nil {
		return Caller{}, err
	}
	p, ok := c.principal(key.Sub)
	if !ok {
		return Caller{}, errWrongKey
	}
	return Caller{
		Sub: p.Sub, SubType: p.Type, Workspace: home(key.Workspace, p.Roles), Roles: p.Roles, Scopes: p.bound(key.Scopes), Key: key.ID,
		Founder: p.Founder,
	}, nil
}

func (c *Credentials) identifyToken(text string, now time.Time) (Caller, error) {
	tokens := cmp.Or(c.Tokens, c.verifier.Load())
	if tokens == nil {
		return Caller{}, errWrongToken
	}
	claims, err := tokens.Verify(text, now)
	if err != nil {
		return Caller{}, err
	}
	p, ok := c.principal(claims.Sub)
	if !ok || p.Type != claims.SubType || claims.Epoch < p.Epoch || c.isRevoked(claims.Grant) {
		return Caller{}, errWrongToken
	}
	return Caller{
		Sub: p.Sub, SubType: p.Type, Workspace: home(claims.Workspace, p.Roles), Roles: p.Roles,
		Scopes: p.bound(strings.Fields(claims.Scope)), Key: claims.ID, Founder: p.Founder,
	}, nil
}

func (c *Credentials) principal(sub string) (Principal, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	p, ok := c.principals[sub]
	return p, ok
}

func (c *Credentials) isRevoked(grant string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, is := c.revoked[grant]
	return is && grant != ""
}

// home is the workspace of a request that names none: the one that its credential is
// bound to. It is empty if the credential is bound to none, or if the owner left that
// workspace. No other workspace of the owner takes its place.
func home(bound string, roles map[string]string) string {
	if _, member := roles[bound]; !member {
		return ""
	}
	return bound
}

// Home is the workspace that a credential is bound to if it names none: the first by
// name of those that the user is in now. It is empty if the user is in none.
func (c *Credentials) Home(sub string) string {
	p, _ := c.principal(sub)
	if len(p.Roles) == 0 {
		return ""
	}
	return slices.Min(slices.Collect(maps.Keys(p.Roles)))
}
