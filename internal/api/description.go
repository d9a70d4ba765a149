package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/openapi"
)

// descriptionVersion is that of the interface (spec section 9).
const descriptionVersion = "0.0.1"

// about is what a description says of the whole.
const about = `The control API of Doze. Sandboxes have an API of their own, below the address of each.

A credential is an API key or an access token. A scope that is named below is what it needs; "admin" includes all. Bodies may be up to
` + "`1 MiB`" + `. An unknown member is an error. Members that only the platform sets are not read.
In a change, null clears a member and absence leaves it. Errors have the members error, code and message, and perhaps more.`

// described serves the description from one copy in memory. It is the largest
// answer that a stranger can ask for: encoded anew for each request, readers that
// do not read would take a copy each.
func described() Endpoint[*Server] {
	return Endpoint[*Server]{shape{out: reflect.TypeFor[json.RawMessage]()}, func(s *Server, _ *call) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, err := s.document()
			if err != nil {
				httpx.WriteError(w, r, err)
				return
			}
			w.Header().Set("Content-Type", httpx.JSONType)
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
			_, _ = w.Write(text) // the caller went away: nobody is left to tell
		})
	}}
}

// Description describes every route in the form of OpenAPI 3.1.
func (s *Server) Description() openapi.Document {
	schemas := s.schemas()
	d := openapi.Document{
		OpenAPI: openapi.Version,
		Info:    openapi.Info{Title: "Doze", Version: descriptionVersion, Description: about},
		Servers: []openapi.Server{{URL: Prefix}},
		Tags:    tags(),
		Paths:   map[string]openapi.Path{},
		Components: openapi.Components{
			Parameters: parameters, Responses: failures(schemas), SecuritySchemes: map[string]openapi.Scheme{
				bearer: {Type: "http", Scheme: "bearer", Description: "an API key or an access token"},
				own:    {Type: "apiKey", In: "header", Name: "x-blaxel-authorization", Description: `the same, as "Bearer" and the credential; it is read first`},
				tokens: {Type: "oauth2", Description: "an access token, by a grant of a user, with PKCE, or of a service account", Flows: flows()},
			},
		},
	}
	for _, rt := range s.routes {
		if d.Paths[rt.Pattern] == nil {
			d.Paths[rt.Pattern] = openapi.Path{}
		}
		d.Paths[rt.Pattern][strings.ToLower(rt.Method)] = rt.describe(schemas)
	}
	d.Components.Schemas = schemas.Named()
	return d
}

// The ways in which a credential comes.
const (
	bearer = "bearer"
	own    = "blaxel"
	tokens = "oauth2"
)

// flows are the ways to an access token that descriptions have a name for.
func flows() map[string]openapi.Flow {
	const token = Prefix + "/oauth/token"
	scopes := map[string]string{access.Admin: "everything"}
	for _, scope := range access.Scopes() {
		resource, action, _ := strings.Cut(scope, ":")
		scopes[scope] = action + " " + resource
	}
	return map[string]openapi.Flow{
		"authorizationCode": {AuthorizationURL: Prefix + "/oauth/authorize", TokenURL: token, RefreshURL: token, Scopes: scopes},
		"clientCredentials": {TokenURL: token, Scopes: scopes},
	}
}

// A group is a tag, and how the paths of its routes begin.
type group struct {
	openapi.Tag

	begin []string
}

func groupOf(name, about string, begin ...string) group {
	return group{openapi.Tag{Name: name, Description: about}, begin}
}

// groups are all tags in the order of the page. The longest beginning of a path decides.
var groups = []group{
	groupOf("Platform", "what this platform is and has, and how it is",
		"/health", "/openapi.json", "/configuration", "/locations", "/publicIps", "/features", "/platform/history", "/platform/doctor"),
	groupOf("Nodes", "the hosts of the sandboxes, for operators", "/platform/nodes", "/sandboxes/{name}/move"),
	groupOf("Sandboxes", "create, change, end, sleep and wake them", "/sandboxes"),
	groupOf("Archives", "the files of a sandbox, without its machine", "/sandboxes/{name}/archive", "/sandboxes/{name}/unarchive"),
	groupOf("Logs and usage", "what happens in sandboxes, and what they take",
		"/observability", "/usage", "/feed", "/sandboxes/{name}/usage", "/sandboxes/{name}/traces", "/sandboxes/{name}/egress"),
	groupOf("Previews", "ports of sandboxes, open to the world", "/sandboxes/{name}/previews"),
	groupOf("Custom domains", "domains of a workspace, for its previews", "/customdomains"),
	groupOf("Schedules", "processes that start at times",
		"/schedules", "/schedule-executions", "/sandboxes/{name}/schedules", "/sandboxes/{name}/schedule-executions"),
	groupOf("Snapshots", "sandboxes at one moment, to fork and to restore", "/snapshots", "/sandboxes/{name}/snapshots", "/sandboxes/{name}/fork"),
	groupOf("Volumes", "disks that outlive a sandbox", "/volumes"),
	groupOf("Volume templates", "files that a volume begins with", "/volume_templates", "/uploads"),
	groupOf("Drives", "directories that sandboxes share", "/drives"),
	groupOf("Images", "what sandboxes are made of", "/images", "/pending-image-shares", "/sandbox/hub"),
	groupOf("Builds", "images out of Dockerfiles", "/builds"),
	groupOf("Network", "VPCs, egress gateways and their addresses", "/vpcs", "/egressgateways", "/egressips"),
	groupOf("Policies", "records for clients that send them", "/policies"),
	groupOf("Secrets", "values of a workspace that its sandboxes may use", "/secrets"),
	groupOf("Keys", "API keys of users", "/api_keys"),
	groupOf("Service accounts", "programs that call, and their API keys", "/service_accounts"),
	groupOf("Workspaces", "what everything else belongs to", "/workspaces"),
	groupOf("Members", "users, their roles and their invitations", "/users", "/invitations", "/platform/users"),
	groupOf("Quotas", "what a workspace may have and do", "/quotas", "/workspaces/{workspace}/quotas"),
	groupOf("Login", "who calls, access tokens by OAuth 2.0, and passwords", "/oauth", "/login", "/.well-known", "/password", "/whoami"),
	groupOf("Audit", "who changed what", "/audit"),
}

// tags are the groups as a description has them.
func tags() []openapi.Tag {
	all := make([]openapi.Tag, len(groups))
	for i, g := range groups {
		all[i] = g.Tag
	}
	return all
}

// Stale returns the rows of the tables of schemas that no type has.
func (s *Server) Stale() []string {
	schemas := s.schemas()
	for i := range s.routes {
		s.routes[i].describe(schemas)
	}
	return schemas.Stale()
}

func reference(parameter string) openapi.Parameter {
	return openapi.Parameter{Ref: "#/components/parameters/" + parameter}
}

const (
	jsonType = "application/json"
	formType = "application/x-www-form-urlencoded"
	pageType = "text/html"
)

// anyFailure is the response for what is not listed by its status.
const anyFailure = "error"

func failure(name string) openapi.Response {
	return openapi.Response{Ref: "#/components/responses/" + name}
}

// meanings say what callers can do about an error of a kind.
var meanings = [...]string{
	doze.Internal:        "our fault; the log of the platform says more",
	doze.Invalid:         "mistakes in the request; the message names all of them",
	doze.Unauthenticated: "no credential, or one that is wrong, expired or deleted",
	doze.Forbidden:       "the credential lacks the scope, or may not enter the workspace",
	doze.NotFound:        "there is no such object in the workspace",
	doze.Conflict:        "the name is in use, or the state of the object forbids it: trying again does not help",
	doze.Exhausted:       "a limit is reached, or there is no room",
	doze.Unavailable:     "try again later",
	doze.Timeout:         "it took too long: try again later",
	doze.Unsupported:     "this platform does not support it",
	doze.Unprocessable:   "it cannot be done to what is there",
	doze.TooLarge:        "the body is too large",
}

// failures are the responses that report errors: one for each kind, and one for
// any.
func failures(schemas *openapi.Schemas) map[string]openapi.Response {
	body := map[string]openapi.Media{jsonType: {Schema: schemas.Of(reflect.TypeFor[errorBody](), openapi.Answer)}}
	all := map[string]openapi.Response{}
	var rest []string
	for k, meaning := range meanings {
		kind := doze.Kind(k)
		all[kind.String()] = openapi.Response{Description: meaning, Content: body}
		rest = append(rest, strconv.Itoa(kind.Status())+" "+kind.String())
	}
	all[anyFailure] = openapi.Response{Description: "one of " + strings.Join(rest, ", "), Content: body}
	return all
}

// errorBody is what every error has (section 7 of the specification).
type errorBody struct {
	Error   string `json:"error"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (rt *Route) describe(schemas *openapi.Schemas) *openapi.Operation {
	o := &openapi.Operation{
		ID: rt.id(), Tags: []string{rt.tag()}, Summary: rt.Summary, Security: []map[string][]string{},
		Parameters: rt.values(), Body: rt.body(schemas), Responses: rt.responses(schemas),
	}
	scopes := []string{rt.Scope}
	needs := "Needs the scope " + rt.Scope + "."
	switch rt.Scope {
	case "":
		needs = "Needs no credential."
	case AnyScope:
		needs, scopes = "Needs a credential; it is about its owner alone.", []string{}
	}
	o.Description = strings.TrimSpace(rt.about + " " + needs)
	if rt.Scope == "" {
		return o
	}
	o.Parameters = append(o.Parameters, reference("workspace"), reference("x-blaxel-workspace"), reference("blaxel-version"))
	o.Security = []map[string][]string{{bearer: scopes}, {own: scopes}, {tokens: scopes}}
	return o
}

// id is the name of an operation: its method and its path.
func (rt *Route) id() string {
	var id strings.Builder
	id.WriteString(strings.ToLower(rt.Method))
	for word := range strings.FieldsFuncSeq(strings.ReplaceAll(rt.Pattern, "{", "by/"), func(r rune) bool { return strings.ContainsRune("/}-_.", r) }) {
		id.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return id.String()
}

// tag is the group of a route: what it is about. Empty if no group has it.
func (rt *Route) tag() (name string) {
	longest := 0
	for _, g := range groups {
		for _, begin := range g.begin {
			if len(begin) > longest && (rt.Pattern == begin || strings.HasPrefix(rt.Pattern, begin+"/")) {
				name, longest = g.Name, len(begin)
			}
		}
	}
	return name
}

// values are the parameters in the path and the query.
func (rt *Route) values() (all []openapi.Parameter) {
	text := &openapi.Schema{Type: "string"}
	for segment := range strings.SplitSeq(rt.Pattern, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			all = append(all, openapi.Parameter{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: text})
		}
	}
	for _, name := range rt.query {
		if _, ok := parameters[name]; ok {
			all = append(all, reference(name))
		} else { // of the authorization server, whose parameters are texts
			all = append(all, openapi.Parameter{Name: name, In: "query", Schema: text})
		}
	}
	return all
}

func (rt *Route) body(schemas *openapi.Schemas) *openapi.Body {
	switch {
	case rt.media != "":
		return &openapi.Body{Required: true, Content: map[string]openapi.Media{rt.media: {Schema: &openapi.Schema{}}}}
	case len(rt.params) > 0:
		in := &openapi.Schema{Type: "object", Properties: map[string]*openapi.Schema{}}
		for _, name := range rt.params {
			in.Properties[name] = &openapi.Schema{Type: "string"}
		}
		return &openapi.Body{Required: true, Content: map[string]openapi.Media{jsonType: {Schema: in}, formType: {Schema: in}}}
	case rt.in != nil:
		return &openapi.Body{Content: map[string]openapi.Media{jsonType: {Schema: schemas.Of(rt.in, openapi.Request)}}}
	}
	return nil
}

func (rt *Route) responses(schemas *openapi.Schemas) map[string]openapi.Response {
	all := map[string]openapi.Response{"default": failure(anyFailure)}
	switch {
	case rt.gives == TarType:
		all["200"] = openapi.Response{Description: "an archive", Content: map[string]openapi.Media{rt.gives: {Schema: &openapi.Schema{}}}}
	case rt.gives == EventsType:
		all["200"] = openapi.Response{Description: "server-sent events, the data of each of which is this", Content: map[string]openapi.Media{rt.gives: {Schema: schemas.Of(rt.out, openapi.Answer)}}}
	case rt.gives != "":
		all["200"] = openapi.Response{Description: "a stream of lines, each of which is this", Content: map[string]openapi.Media{rt.gives: {Schema: schemas.Of(rt.out, openapi.Answer)}}}
	case rt.out == nil:
		page := map[string]openapi.Media{pageType: {Schema: &openapi.Schema{Type: "string"}}}
		all["200"] = openapi.Response{Description: "a page for the user", Content: page}
		all["303"] = openapi.Response{Description: "back to the program that sent the user"}
		all["default"] = openapi.Response{Description: "a page that says what is wrong", Content: page}
		return all
	case rt.out == reflect.TypeFor[httpx.Empty]():
		all["204"] = openapi.Response{Description: "done"}
	default:
		ok := openapi.Response{Description: "done", Content: map[string]openapi.Media{jsonType: {Schema: schemas.Of(rt.out, openapi.Answer)}}}
		for _, name := range rt.headers {
			if ok.Headers == nil {
				ok.Headers = map[string]openapi.Header{}
			}
			ok.Headers[name] = openapi.Header{Schema: &openapi.Schema{Type: "string"}}
		}
		all["200"] = ok
	}
	for kind, may := range map[doze.Kind]bool{
		doze.Invalid:         rt.Scope != "" || rt.in != nil || len(rt.params) > 0 || rt.media != "",
		doze.Unauthenticated: rt.Scope != "" || len(rt.params) > 0,
		doze.Forbidden:       rt.Scope != "",
		doze.NotFound:        rt.in != nil || strings.Contains(rt.Pattern, "{"),
		doze.Conflict:        rt.Scope != "" && rt.Method != http.MethodGet || rt.media != "",
		doze.TooLarge:        rt.in != nil,
	} {
		if may {
			all[strconv.Itoa(kind.Status())] = failure(kind.String())
		}
	}
	return all
}
