// Package api is the control API as a framework: tables of routes, and what holds for
// each of them. It finds the route of a request, authenticates and authorizes the
// caller, and writes the audit log. It decodes bodies and queries, reports mistakes
// together, pages lists, and describes it all as OpenAPI. It knows no record and no
// node: rooms such as tenancy bring their own rows.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/quota"
)

// Prefix is the version segment in front of every path (spec section 9).
const Prefix = "/v0"

// Config is what a Server works with. To describe its routes, it needs none of it.
type Config struct {
	Credentials *access.Credentials
	Quotas      *quota.Book
	Audit       *audit.Journal
	// Counted are the quotas whose use is in the records: the API counts their refusals.
	Counted []string
	// Settle waits until the records say what has been due until now. It is asked before
	// anything that needs a scope of sandboxes.
	Settle func(context.Context)
}

// Server serves the control API.
type Server struct {
	Config
	routes   []Route
	sections []Section
	unread   []string                        // members of bodies that only the platform sets
	document func() (json.RawMessage, error) // the description
}

// A Section is what one room adds to the API: its routes, and what the types of its bodies
// do not show.
type Section struct {
	Routes    []Route
	Schemas   openapi.Schemas // its tables
	Tolerated []Tolerated
}

// New returns a server of the routes of all sections. If a route is in none of them, the API
// does not serve it.
func New(c Config, sections ...Section) *Server {
	s := &Server{Config: c}
	s.sections = append([]Section{s.section()}, sections...)
	for _, section := range s.sections {
		s.routes = append(s.routes, section.Routes...)
	}
	for i := range s.routes {
		rt := &s.routes[i]
		rt.Action = actionOf(rt, s.routes)
		rt.collects = rt.Method == http.MethodPost && strings.HasSuffix(rt.Action, ".create")
	}
	s.unread = slices.DeleteFunc(s.schemas().Unset, func(name string) bool { return strings.Contains(name, ".") })
	s.document = sync.OnceValues(func() (json.RawMessage, error) {
		text, err := json.Marshal(s.Description())
		return append(text, '\n'), err
	})
	return s
}

// rows are the routes of the API itself.
var rows = []Row[*Server]{
	GET("/health", "", "Say how the platform is", Read((*Server).health)),
	GET("/openapi.json", "", "Describe this API", described().
		About("The answer is this document.")),
}

// section is what every room shares.
func (s *Server) section() Section {
	return Section{
		Routes: Bind(s, rows),
		Schemas: openapi.Schemas{
			Names: map[reflect.Type]string{reflect.TypeFor[errorBody](): "Error"},
			Types: map[reflect.Type]*openapi.Schema{
				reflect.TypeFor[doze.Time]():       {Type: "string", Format: "date-time"},
				reflect.TypeFor[json.RawMessage](): {Type: "object"},
				reflect.TypeFor[httpx.None]():      {Type: "object"},
			},
			Members: map[string]openapi.Schema{
				"Metadata.name":                Name,
				"Metadata.displayName":         Letters(doze.DisplayNameMax),
				"Metadata.externalId":          {MaxLength: doze.ExternalIDMax, Pattern: doze.ExternalIDPattern},
				"Metadata.labels":              Labels,
				"ShareRequest.targetWorkspace": Text("of a domain also " + doze.DomainEverybody + ": all"),
			},
			Needs: map[string][]string{"ShareRequest": {"targetWorkspace"}},
			Unset: []string{"createdAt", "createdBy", "events", "lastUsedAt", "plan", "state", "status", "updatedAt", "updatedBy", "url", "workspace"},
		},
		Tolerated: []Tolerated{{
			Of: reflect.TypeFor[ShareRequest](), Paths: []string{"targetAccountId"},
			Why: "the clients name the account of the other workspace: a platform is one account",
		}},
	}
}

// Routes returns every route.
func (s *Server) Routes() []Route { return slices.Clone(s.routes) }

// RouteOf returns the route that serves a method and an escaped path, with its /v0; or
// false.
func (s *Server) RouteOf(method, path string) (Route, bool) {
	i, _, _ := s.match(method, path)
	if i < 0 {
		return Route{}, false
	}
	return s.routes[i], true
}

// AnyScope is the scope of a route that is about the caller alone, who need not
// be in any workspace: its handler decides.
const AnyScope = "*"

// Handler returns the control API below /v0. It matches the escaped path as it came:
// nothing is cleaned, and nothing redirects. A caller without a credential does not
// learn which paths there are.
func (s *Server) Handler() http.Handler {
	handlers := make([]http.Handler, len(s.routes))
	for i := range s.routes {
		rt := &s.routes[i]
		handlers[i] = s.attended(rt, s.guard(rt.Scope, s.journaled(rt, examine(rt, rt.serve(&call{s, rt})))))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, rec := time.Now(), &recorder{ResponseWriter: w, status: http.StatusOK}
		i, values, allowed := s.match(r.Method, r.URL.EscapedPath())
		e := entryOf(r)
		r = r.WithContext(audit.With(r.Context(), e))
		w.Header().Set(requestIDHeader, e.RequestID)
		if i >= 0 {
			r.Pattern = s.routes[i].Method + " " + Prefix + s.routes[i].Pattern
			for name, v := range values {
				r.SetPathValue(name, v)
			}
			s.routes[i].note(e, r)
			handlers[i].ServeHTTP(rec, r)
		} else {
			e.Object = doze.AuditObject{Kind: "path", Name: r.URL.EscapedPath()}
			s.known(unserved(allowed)).ServeHTTP(rec, r)
		}
		s.close(e, r, i >= 0 && s.routes[i].Scope == "", rec)
		slog.DebugContext(r.Context(), "request", "request", e.RequestID, "method", r.Method, "route", r.Pattern, "status", rec.status, "took", time.Since(began))
	})
}

// unserved answers what is not in the table; allowed are the methods that are,
// for the same path.
func unserved(allowed []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(allowed) == 0 {
			httpx.WriteError(w, r, noSuchPath(r.URL.EscapedPath()))
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		httpx.WriteJSON(w, http.StatusMethodNotAllowed, map[string]any{
			"error": "method_not_allowed", "code": http.StatusMethodNotAllowed,
			"message": "this path answers " + strings.Join(allowed, ", ") + " only",
		})
	})
}

// noSuchPath names a path that the table has not, or its beginning. [Prefix] is a
// hint for callers who left it out.
func noSuchPath(path string) error {
	if strings.HasPrefix(path, Prefix+"/") {
		return doze.Errorf(doze.NotFound, "no such path: %.200s", path)
	}
	return doze.Errorf(doze.NotFound, "no such path: %.200s: paths begin with %s", path, Prefix)
}

// namedMax bounds the workspaces that an error names.
const namedMax = 10

// errNowhere is for a caller who is not, or no longer, where the credential is
// from.
func errNowhere(c access.Caller) error {
	others := slices.Sorted(maps.Keys(c.Roles))
	if len(others) == 0 {
		return doze.Errorf(doze.Forbidden, "the owner of the credential is in no workspace: accept an invitation first, and name that one in the header x-blaxel-workspace")
	}
	return doze.Errorf(doze.Forbidden, "the owner of the credential is not in its workspace, or has left it: name another one in the header x-blaxel-workspace, such as %s",
		strings.Join(others[:min(len(others), namedMax)], ", "))
}

// guard lets a request through to h if its caller may what scope allows. An
// empty scope is open to everybody.
func (s *Server) guard(scope string, h http.Handler) http.Handler {
	if scope == "" {
		return h
	}
	return s.known(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := Caller(r.Context()); scope != AnyScope && !c.May(scope) {
			err := doze.Errorf(doze.Forbidden, "this call needs the scope %s", scope)
			if c.Workspace == "" {
				err = errNowhere(c)
			}
			httpx.WriteError(w, r, err)
			return
		}
		if strings.HasPrefix(scope, "sandboxes:") {
			s.Settle(r.Context())
		}
		h.ServeHTTP(w, r)
	}))
}

// known lets a request through to h if its credential is good and not too busy,
// it asks for a version that we know, and its query can be read.
func (s *Server) known(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := s.Credentials.Authenticate(r)
		who := c
		if stranger, ok := errors.AsType[*access.StrangerError](err); ok {
			who = stranger.Caller
		}
		place(audit.Of(r.Context()), who)
		if err == nil {
			err = s.Quotas.Take(w.Header(), c.Workspace, c.Key)
		}
		if err == nil {
			_, err = versionOf(r)
		}
		if err == nil {
			err = checkQuery(r.URL)
		}
		if err != nil {
			if doze.Public(err).Kind == doze.Unauthenticated {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			httpx.WriteError(w, r, err)
			return
		}
		h.ServeHTTP(w, r.WithContext(withCaller(r.Context(), c)))
	})
}

// checkQuery refuses a query of which a part would be ignored.
func checkQuery(u *url.URL) error {
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return doze.Wrap(err, doze.Invalid, "the query cannot be read: write %%3B for a semicolon and %%25 for a percent sign")
	}
	return nil
}

// recorder notes the status of a response, and tells clients not to repeat
// what is a conflict each time: some of them do so after any 409.
type recorder struct {
	http.ResponseWriter
	status int
	name   string // of the error, if it is one
}

// Unwrap lets http.ResponseController reach what this type does not have.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Fails implements [httpx.Failure].
func (w *recorder) Fails(name string) { w.name = name }

func (w *recorder) WriteHeader(status int) {
	w.status = status
	if status == http.StatusConflict {
		w.Header().Set("x-should-retry", "false")
	}
	w.ResponseWriter.WriteHeader(status)
}

type callerKey struct{}

func withCaller(ctx context.Context, c access.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Caller returns who sends the request of a context. It is the zero one where a route is
// open to everybody.
func Caller(ctx context.Context) access.Caller {
	c, _ := ctx.Value(callerKey{}).(access.Caller)
	return c
}

// Operator returns an error if the caller does not operate the platform. Admins of its first
// workspace operate it.
func Operator(ctx context.Context, first string) error {
	if Caller(ctx).Operates(first) {
		return nil
	}
	return doze.Errorf(doze.Forbidden, "this call is for administrators of the workspace %s", first)
}

func (s *Server) health(context.Context, *http.Request) (map[string]string, error) {
	return map[string]string{"status": "ok"}, nil
}

// noteRefusal counts an error that a quota is the reason of. Those of quotas that
// are enforced in memory are counted there.
func (s *Server) noteRefusal(err error) {
	if e := doze.Public(err); e.Name == doze.NameQuotaExceeded {
		if name, _ := e.Fields["quota"].(string); slices.Contains(s.Counted, name) {
			s.Quotas.Refused(name)
		}
	}
}
