// Package access proves who calls and what they may do: it makes and checks
// API keys and maps scopes to permissions. It stores nothing and serves no
// route.
package access

import (
	"net/http"
	"slices"
	"strings"

	"doze"
)

// Admin is the scope that includes every other (spec section 5).
const Admin = "admin"

// Caller is who sent a request.
type Caller struct {
	Sub       string   // stable identity: user or service account
	SubType   string   // user or service_account
	Workspace string   // the only workspace it may enter
	Scopes    []string // resource:action, or admin
	Key       string   // id of the API key, for the log
}

// May reports whether c holds scope.
func (c Caller) May(scope string) bool {
	return slices.Contains(c.Scopes, Admin) || slices.Contains(c.Scopes, scope)
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
			return "", doze.Errorf(doze.Unauthenticated, "the %s header must be: Bearer <API key>", strings.ToLower(name))
		}
		return strings.TrimSpace(token), nil
	}
	return "", doze.Errorf(doze.Unauthenticated, "this call needs the header Authorization: Bearer <API key>")
}
