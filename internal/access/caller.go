// Package access proves who calls and what they may do: it makes and checks
// API keys, tokens and passwords, and maps scopes to permissions. It stores
// nothing and serves no route.
package access

import (
	"net/http"
	"slices"
	"strings"

	"github.com/dozehq/doze"
)

// Caller is who sent a request, and where.
type Caller struct {
	Sub       string            // stable identity: user or service account
	SubType   string            // user or service_account
	Workspace string            // where the request is, one of Roles; empty is nowhere
	Chosen    bool              // the request names it
	Roles     map[string]string // in each workspace that it may enter; not to be changed
	Scopes    []string          // of the credential: resource:action, or admin
	Key       string            // id of the API key or grant, for the log
	Founder   bool              // may create workspaces, by a right that an operator gave
}

// May reports whether c may do in its workspace what scope allows: the
// credential holds it, and the role does not forbid it.
func (c Caller) May(scope string) bool {
	if !c.Holds(scope) {
		return false
	}
	switch c.Roles[c.Workspace] {
	case doze.RoleAdmin:
		return true
	case doze.RoleMember:
		return !slices.Contains(adminScopes, scope) && Known(scope)
	}
	return false
}

// Holds reports whether the credential of c holds scope, whatever its role: for
// what is about the caller alone.
func (c Caller) Holds(scope string) bool {
	return slices.Contains(c.Scopes, Admin) || slices.Contains(c.Scopes, scope)
}

// In is c in another workspace, or false if it may not enter it.
func (c Caller) In(workspace string) (Caller, bool) {
	_, ok := c.Roles[workspace]
	c.Workspace = workspace
	return c, ok
}

// Operates reports whether c is an operator: an admin of the first workspace,
// wherever the request is.
func (c Caller) Operates(first string) bool {
	return c.Holds(Admin) && c.Roles[first] == doze.RoleAdmin
}

// Granted are the scopes that c can hand on.
func (c Caller) Granted() []string {
	if c.May(Admin) {
		return []string{Admin}
	}
	all := c.Scopes
	if slices.Contains(all, Admin) {
		all = Scopes()
	}
	return slices.DeleteFunc(slices.Clone(all), func(scope string) bool { return !c.May(scope) })
}

// Token returns the credential of a request: x-blaxel-authorization if
// present, otherwise Authorization, each in the form "Bearer <token>". Public
// clients send either; both surfaces take both.
func Token(r *http.Request) (string, error) {
	for _, name := range []string{"X-Blaxel-Authorization", "Authorization"} {
		v := r.Header.Get(name)
		if v == "" {
			continue
		}
		scheme, token, ok := strings.Cut(v, " ")
		if !ok || !strings.EqualFold(scheme, "Bearer") || strings.TrimSpace(token) == "" {
			return "", doze.Errorf(doze.Unauthenticated, "the %s header must be: Bearer <API key or access token>", strings.ToLower(name))
		}
		return strings.TrimSpace(token), nil
	}
	return "", doze.Errorf(doze.Unauthenticated, "this call needs the header Authorization: Bearer <API key or access token>")
}
