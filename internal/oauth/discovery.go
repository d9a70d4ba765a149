package oauth

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/httpx"
)

// Discovery describes the server (RFC 8414, and OpenID Connect Discovery for
// clients that look there).
func (s *Server) Discovery(w http.ResponseWriter, _ *http.Request) {
	httpx.WriteJSON(w, http.StatusOK, map[string]any{
		"issuer":                                s.Base,
		"authorization_endpoint":                s.Base + "/oauth/authorize",
		"token_endpoint":                        s.Base + "/oauth/token",
		"revocation_endpoint":                   s.Base + "/oauth/revoke",
		"device_authorization_endpoint":         s.Base + "/login/device",
		"jwks_uri":                              s.Base + "/oauth/jwks",
		"scopes_supported":                      append(append([]string{access.Admin}, access.Scopes()...), "offline_access"),
		"response_types_supported":              []string{"code"},
		"response_modes_supported":              []string{"query"},
		"grant_types_supported":                 []string{"authorization_code", "client_credentials", "refresh_token", deviceGrant},
		"token_endpoint_auth_methods_supported": []string{"none", "client_secret_basic", "client_secret_post"},
		"code_challenge_methods_supported":      []string{"S256"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{"EdDSA"},

		"authorization_response_iss_parameter_supported": true,
	})
}

// Keys is what others need to check our tokens (RFC 7517).
func (s *Server) Keys(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=300")
	httpx.WriteJSON(w, http.StatusOK, s.Credentials.Tokens.JWKS())
}

// Route is one way into the server.
type Route struct {
	Method, Path string
	Summary      string // what it does, in a few words
	Serve        func(*Server, http.ResponseWriter, *http.Request)
	Query, Body  []string     // names of parameters, each a text; a body is JSON or a form
	Out          reflect.Type // of the answer; nil is a page, or the way back to a program
}

// Routes are all ways into the server, below its base. They need no
// credential: they are where one comes from.
func Routes() []Route {
	document := reflect.TypeFor[map[string]any]()
	user := []string{"name", "password", "decision"} // of a page
	return []Route{
		{"GET", "/oauth/authorize", "Show the page that asks for consent", (*Server).Authorize, asked, nil, nil},
		{"POST", "/oauth/authorize", "Take the answer of the consent page", (*Server).Decide, nil, slices.Concat(asked, user), nil},
		{"POST", "/oauth/token", "Get tokens for a grant", (*Server).Token, nil, []string{
			"grant_type", "client_id", "client_secret", "code", "code_verifier", "redirect_uri", "refresh_token", "device_code", "scope",
		}, reflect.TypeFor[tokenAnswer]()},
		{"POST", "/oauth/revoke", "Revoke the grant of a token", (*Server).Revoke, nil, []string{"token"}, document},
		{"GET", "/oauth/jwks", "Read the keys that verify access tokens", (*Server).Keys, nil, nil, document},
		{"POST", "/login/device", "Begin the login of a device", (*Server).Device, nil, []string{"client_id", "scope"}, reflect.TypeFor[deviceAnswer]()},
		{"GET", "/login/verify", "Show the page that approves a device", (*Server).Verify, []string{"user_code"}, nil, nil},
		{"POST", "/login/verify", "Take the answer of the device page", (*Server).Confirm, nil, slices.Concat([]string{"user_code"}, user), nil},
		{"GET", "/.well-known/openid-configuration", "Discover the login as OpenID Connect does", (*Server).Discovery, nil, nil, document},
		{"GET", "/.well-known/oauth-authorization-server", "Discover the login as OAuth does", (*Server).Discovery, nil, nil, document},
	}
}
