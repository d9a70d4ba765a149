// Package oauth lets people and programs turn what they know into access
// tokens: it is the authorization server of the control API (OAuth 2.1 as far
// as our clients allow). It knows no sandbox.
//
// A user types their password for each grant; there is no session that a page
// of somebody else could use.
package oauth

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ratelimit"
	"github.com/dozehq/doze/internal/store"
)

const (
	// codeLife is how long an authorization code is good for: one redirect.
	codeLife = time.Minute
	// deviceLife is how long a person has to find their browser.
	deviceLife = 10 * time.Minute
	// refreshLife is how long a grant lives without use.
	refreshLife = 30 * 24 * time.Hour
	// bodyMax is above any request with its scopes.
	bodyMax = 64 << 10
	// paramMax bounds one parameter.
	paramMax = 4 << 10
)

// Prefixes tell secrets apart, for scanners of leaked ones and for us.
const (
	codePrefix    = "dzc_"
	devicePrefix  = "dzd_"
	refreshPrefix = "dzr_"
)

// Config is what a [Server] works with. All fields are required.
type Config struct {
	Store       *store.Store
	Credentials *access.Credentials
	Base        string // URL of the control API, the issuer
}

// Server is the authorization server.
type Server struct {
	Config
	attempts *attempts
	devices  *ratelimit.Buckets[netip.Prefix] // that ask for a code, by network
}

// New returns a server. It has nothing that needs to run.
func New(c Config) *Server {
	return &Server{Config: c, attempts: newAttempts(), devices: ratelimit.New[netip.Prefix](deviceRate, sourcesMax)}
}

// Failure is an error in the form of RFC 6749, section 5.2. Its members
// code and message are those of the control API.
type failure struct {
	status  int
	name    string
	message string
	err     error
}

func (f *failure) Error() string { return f.name + ": " + f.message }
func (f *failure) Unwrap() error { return f.err }

func fail(status int, name, message string) error {
	return &failure{status: status, name: name, message: message}
}

// Names of errors (RFC 6749, 8628).
const (
	invalidRequest       = "invalid_request"
	invalidClient        = "invalid_client"
	invalidGrant         = "invalid_grant"
	invalidScope         = "invalid_scope"
	unsupportedGrant     = "unsupported_grant_type"
	unsupportedToken     = "unsupported_token_type"
	unsupportedResponse  = "unsupported_response_type"
	accessDenied         = "access_denied"
	authorizationPending = "authorization_pending"
	slowDown             = "slow_down"
	expiredToken         = "expired_token"
	serverError          = "server_error"
)

// writeFailure reports err.
func writeFailure(w http.ResponseWriter, r *http.Request, err error) {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		if e := doze.Public(err); e.Kind == doze.Exhausted || e.Kind == doze.Invalid {
			f = &failure{status: e.Kind.Status(), name: invalidRequest, message: e.Message}
		} else {
			httpx.WriteError(w, r, err)
			return
		}
	}
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="doze"`)
	}
	noStore(w)
	httpx.Fails(w, f.name)
	httpx.WriteJSON(w, f.status, map[string]any{
		"error": f.name, "error_description": f.message, "code": f.status, "message": f.message,
	})
}

func noStore(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Pragma", "no-cache")
}

// params are the parameters of a request, each at most once.
type params map[string]string

// readParams reads a body in the form of JSON or of a form.
func readParams(r *http.Request) (params, error) {
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, bodyMax))
	if err != nil {
		return nil, fail(http.StatusBadRequest, invalidRequest, "the body is too large or ended early")
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "application/json" || kind == "" && strings.HasPrefix(strings.TrimSpace(string(b)), "{") {
		var in map[string]any
		if err := json.Unmarshal(b, &in); err != nil {
			return nil, fail(http.StatusBadRequest, invalidRequest, "the body is not a JSON object")
		}
		p := params{}
		for k, v := range in {
			switch t := v.(type) {
			case nil:
			case string:
				p[k] = t
			default:
				return nil, fail(http.StatusBadRequest, invalidRequest, "the parameters must be strings")
			}
		}
		return p, p.check()
	}
	q, err := url.ParseQuery(string(b))
	if err != nil {
		return nil, fail(http.StatusBadRequest, invalidRequest, "the body is not a form")
	}
	return once(q)
}

// once are the parameters of a query or form. A parameter that is there twice is an
// error: a reader of the other value would decide differently.
func once(q url.Values) (params, error) {
	p := params{}
	for k, v := range q {
		if len(v) > 1 {
			return nil, fail(http.StatusBadRequest, invalidRequest, "a parameter is there twice")
		}
		p[k] = v[0]
	}
	return p, p.check()
}

func (p params) check() error {
	for _, v := range p {
		if len(v) > paramMax || strings.ContainsRune(v, 0) {
			return fail(http.StatusBadRequest, invalidRequest, "a parameter is too long, or has a NUL byte")
		}
	}
	return nil
}

// need reports the parameters that are missing (RFC 6749, section 5.2). An empty
// one counts as left out.
func (p params) need(names ...string) error {
	lacking := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return p[name] != "" })
	if len(lacking) == 0 {
		return nil
	}
	return fail(http.StatusBadRequest, invalidRequest, "the request lacks "+strings.Join(lacking, ", "))
}

// ignoredScopes are those that clients send by habit, and that mean nothing
// here: every grant can be refreshed.
var ignoredScopes = []string{"offline_access", "openid", "profile", "email"}

// parseScope reads a list of scopes; none is all that the granter has.
func parseScope(text string, all []string) ([]string, error) {
	var list []string
	for scope := range strings.FieldsSeq(text) {
		switch {
		case slices.Contains(ignoredScopes, scope), slices.Contains(list, scope):
		case !access.Known(scope):
			return nil, fail(http.StatusBadRequest, invalidScope, "there is no such scope as one of those asked for")
		default:
			list = append(list, scope)
		}
	}
	if len(list) == 0 {
		return all, nil
	}
	return list, nil
}

// within refuses scopes that are not part of those granted.
func within(scopes, granted []string) error {
	for _, scope := range scopes {
		if !slices.Contains(granted, scope) && !slices.Contains(granted, access.Admin) {
			return fail(http.StatusBadRequest, invalidScope, "a scope is asked for that was not granted")
		}
	}
	return nil
}
