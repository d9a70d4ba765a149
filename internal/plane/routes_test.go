package plane_test

import (
	"cmp"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// open are the routes that need no credential: they are where one comes from,
// or bring one of their own.
var open = []string{
	"GET /health", "GET /openapi.json",
	"POST /invitations/accept", "POST /invitations/decline",
	"GET /oauth/authorize", "POST /oauth/authorize", "POST /oauth/token", "POST /oauth/revoke", "GET /oauth/jwks",
	"POST /login/device", "GET /login/verify", "POST /login/verify",
	"PUT /uploads/{upload}", "PUT /builds/{build}/context", "GET /drives/jwks.json",
	"GET /.well-known/openid-configuration", "GET /.well-known/oauth-authorization-server",
}

// everywhere are the routes that find what they name in every workspace: each
// name is that of a feature, and a template or an image that is not there is made.
// Users of the platform are for operators, who see all.
var everywhere = []string{
	// These are for operators alone.
	"POST /platform/nodes/{node}/cordon", "POST /platform/nodes/{node}/uncordon", "POST /platform/nodes/{node}/drain",
	"POST /platform/nodes/settle", "DELETE /platform/nodes/{node}", "GET /platform/nodes/{node}/sandboxes",
	"POST /sandboxes/{name}/move", "GET /sandboxes/{name}/node",
	"GET /features/{feature}", "PUT /volume_templates/{template}", "PUT /platform/users/{user}", "PUT /images/{type}/{image}/archive",
}

// TestEveryRouteIsGuarded is made from the route table, so that a new route
// cannot be forgotten.
func TestEveryRouteIsGuarded(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	p.Create(`{"metadata":{"name":"a","externalId":"ext"}}`)
	planetest.Want[any](p, 200, "POST", "/secrets", planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/vpcs", planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/vpcs/a/egressgateways", `{"metadata":{"name":"a"},"spec":{"region":"here-1"}}`)
	planetest.Want[any](p, 200, "POST", "/vpcs/a/egressgateways/a/ips", planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/customdomains", `{"metadata":{"name":"a.test"}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews", `{"metadata":{"name":"a"},"spec":{"port":3000}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews/a/tokens", planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"a"}`)
	planetest.Want[any](p, 200, "POST", "/volumes", `{"metadata":{"name":"a","externalId":"ext"}}`)
	planetest.Want[any](p, 200, "POST", "/drives", `{"metadata":{"name":"a","externalId":"ext"}}`)
	planetest.Want[any](p, 200, "POST", "/volume_templates?upload=true", planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/schedules", `{"id":"a","type":"cron","value":"0 0 1 1 *","input":{"command":"a"}}`)
	planetest.Want[any](p, 200, "POST", "/policies", `{"metadata":{"name":"a"},"spec":{"type":"flavor"}}`)
	planetest.Want[any](p, 200, "POST", "/images", `{"name":"own-a","image":"hub.test/a:1"}`)
	building := planetest.Want[doze.Build](p, 200, "POST", "/builds", `{"name":"own-built"}`)
	// Others of the same workspace, in which there is nothing of what is in these.
	p.Create(planetest.Named("beside"))
	planetest.Want[any](p, 200, "POST", "/vpcs", planetest.Named("beside"))
	planetest.Want[any](p, 200, "POST", "/volume_templates", planetest.Named("beside"))
	other := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"beside"}`)
	account := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"a"}`)
	client := planetest.Want[doze.OAuthClient](p, 200, "POST", "/oauth/clients", `{"client_name":"a","redirect_uris":["https://a.test/"]}`)
	mine := planetest.Want[[]struct{ ID string }](p, 200, "GET", "/api_keys", "")[0].ID
	there, none := fillers([][3]string{
		{"{name}", "a", "b"},
		{"{externalId}", "ext", "ex2"},
		{"{id}", mine, "none"},
		{"{workspace}", "main", "mai2"},
		{"{secret}", "a", "b"},
		{"{user}", "admin", "nobody"},
		{"{account}", account.ClientID, "none"},
		{"{key}", mine, "none"},
		{"{client}", client.ClientID, "none"},
		{"{preview}", "a", "none"},
		{"{token}", "a", "none"},
		{"{snapshot}", "a", "b"},
		{"{schedule}", "a", "none"},
		{"{volume}", "a", "b"},
		{"{drive}", "a", "b"},
		{"{template}", "a", "b"},
		{"{version}", "1", "1"},
		{"{type}", "sandbox", "sandbox"},
		{"{image}", "own-a", "own-b"},
		{"{tag}", "latest", "none"},
		{"{target}", "b", "none"},
		{"{share}", "a", "none"},
		{"{policy}", "a", "none"},
		{"{feature}", "a", "b"},
		{"{domain}", "a.test", "b.test"},
		{"{vpc}", "a", "none"},
		{"{gateway}", "a", "none"},
		{"{ip}", "a", "none"},
		{"{build}", building.ID, "none"},
		{"{node}", "a", "none"},
	})
	beside := strings.NewReplacer("{name}", "beside", "{vpc}", "beside", "{template}", "beside", "{account}", other.ClientID)
	lacking := p.KeyFor("main", time.Time{}, "agents:list")
	expired := p.KeyFor("main", time.Now(), access.Admin)
	stranger := p.KeyFor("other", time.Time{}, access.Admin)
	token := func(signed time.Time) string {
		text, err := p.Creds.Tokens.Sign(access.Claims{Sub: "admin", SubType: doze.SubUser, Workspace: "main", Scope: access.Admin}, signed)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	over := token(time.Now().Add(-access.TokenLife))
	planetest.Want[any](p, 200, "GET", "/sandboxes", "", planetest.As(token(time.Now()))...)

	for _, rt := range plane.Describe().Routes() {
		t.Run(rt.Method+" "+rt.Pattern, func(t *testing.T) {
			if rt.Scope == "" {
				if !slices.Contains(open, rt.Method+" "+rt.Pattern) {
					t.Errorf("open to everybody")
				}
				return
			}
			path, nowhere := there(rt.Pattern), none(rt.Pattern)
			if strings.Contains(path, "{") {
				t.Fatalf("the test has nothing for a part of %s", path)
			}
			for name, tt := range map[string]struct {
				header []string
				status int
			}{
				"no credential":     {[]string{"Authorization", ""}, 401},
				"not a key":         {[]string{"Authorization", "Bearer dz_nonsense"}, 401},
				"basic":             {[]string{"Authorization", "Basic " + p.Key}, 401},
				"expired":           {[]string{"Authorization", "Bearer " + expired}, 401},
				"expired token":     {[]string{"Authorization", "Bearer " + over}, 401},
				"bad beats good":    {[]string{"X-Blaxel-Authorization", "Bearer dz_nonsense"}, 401},
				"no scope":          {[]string{"Authorization", "Bearer " + lacking}, 403},
				"another workspace": {[]string{"X-Blaxel-Workspace", "other"}, 403},
				"unknown version":   {[]string{"Blaxel-Version", "2020-01-01"}, 400},
			} {
				if name == "no scope" && (rt.Pattern == "/password" || rt.Pattern == "/whoami") {
					continue // it is about the caller alone
				}
				w := p.Do(rt.Method, path, "{}", tt.header...)
				if w.Code != tt.status {
					t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tt.status)
				}
				planetest.CheckError(t, w)
			}
			if strings.Contains(rt.Pattern, "{") && !slices.Contains(everywhere, rt.Method+" "+rt.Pattern) {
				theirs := p.Do(rt.Method, path, "{}", "Authorization", "Bearer "+stranger)
				if theirs.Code != 404 {
					t.Errorf("another workspace's object: %d %s", theirs.Code, theirs.Body)
				}
				planetest.CheckError(t, theirs)
				missing := p.Do(rt.Method, nowhere, "{}", "Authorization", "Bearer "+stranger)
				same := strings.NewReplacer(`"b\"`, `"a\"`, "ex2", "ext").Replace(missing.Body.String())
				if missing.Code != 404 || same != theirs.Body.String() {
					t.Errorf("it differs from no object: %s, %s", missing.Body, theirs.Body)
				}
			}
			if rt.Method == http.MethodGet && !strings.Contains(rt.Pattern, "{") {
				w := p.Do(rt.Method, path, "", planetest.As(stranger)...)
				ours := strings.Contains(w.Body.String(), `"name":"a"`) || strings.Contains(w.Body.String(), `"main"`)
				if strings.HasPrefix(rt.Pattern, "/audit") { // it has the names that the stranger tried
					ours = strings.Contains(w.Body.String(), `"workspace":"main"`)
				}
				if ours {
					t.Errorf("another workspace sees ours: %s", w.Body)
				}
			}
			// The parts of a path belong together.
			parent := beside.Replace(rt.Pattern)
			if apart := there(parent); parent != rt.Pattern && strings.Contains(parent, "{") && (rt.Method == http.MethodGet || rt.Method == http.MethodDelete) {
				if w := p.Do(rt.Method, apart, ""); w.Code != 404 {
					t.Errorf("%s of another in the same workspace: %d %s", apart, w.Code, w.Body)
				}
			}
			if rt.Scope == "*" {
				return // its handler decides
			}
			others := slices.DeleteFunc(access.Scopes(), func(scope string) bool { return scope == rt.Scope })
			if w := p.Do(rt.Method, path, "{}", planetest.As(p.KeyFor("main", time.Time{}, others...))...); w.Code != 403 {
				t.Errorf("with every scope but its own: %d %s", w.Code, w.Body)
			}
			if w := p.Do(rt.Method, nowhere, "{}", planetest.As(p.KeyFor("main", time.Time{}, rt.Scope))...); w.Code == 401 || w.Code == 403 {
				t.Errorf("with its scope and no other: %d %s", w.Code, w.Body)
			}
		})
	}
}

// fillers return functions that fill the parts of a pattern with the second of
// each row, and with the third.
func fillers(parts [][3]string) (there, none func(pattern string) string) {
	var pairs [2][]string
	for _, row := range parts {
		pairs[0], pairs[1] = append(pairs[0], row[0], row[1]), append(pairs[1], row[0], row[2])
	}
	return strings.NewReplacer(pairs[0]...).Replace, strings.NewReplacer(pairs[1]...).Replace
}

// TestRoutesAreDocumented compares the route table with the tables of routes in
// docs/api: each route is on one page, with its scope, and nothing else is.
func TestRoutesAreDocumented(t *testing.T) {
	t.Parallel()
	documented := documentedRoutes(t)
	for _, rt := range plane.Describe().Routes() {
		where := rt.Method + " " + rt.Pattern
		scope, ok := documented[where]
		delete(documented, where)
		switch {
		case !ok:
			t.Errorf("no page of docs/api has %s", where)
		case rt.Scope == "*" && scope != "none": // its handler decides
		case scope != cmp.Or(rt.Scope, "none"):
			t.Errorf("%s is documented with the scope %s, not %s", where, scope, cmp.Or(rt.Scope, "none"))
		}
	}
	for where := range documented {
		t.Errorf("docs/api has %s, which is no route", where)
	}
}

// documentedRoutes are the scopes in the tables of routes of docs/api, by method
// and pattern.
func documentedRoutes(t *testing.T) map[string]string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/api/*.md")
	if err != nil {
		t.Fatal(err)
	}
	scopes := map[string]string{}
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, table, _ := strings.Cut(string(raw), "\n| Method | Path | Scope | Answer |\n|---|---|---|---|\n")
		for line := range strings.Lines(table) {
			cells := strings.Split(line, " | ")
			if !strings.HasPrefix(line, "| ") || len(cells) < 4 {
				break
			}
			where := cells[0][2:] + " " + strings.Trim(cells[1], "`")
			if scopes[where] != "" {
				t.Errorf("docs/api has %s twice", where)
			}
			scopes[where] = strings.Trim(cells[2], "`")
		}
	}
	return scopes
}

func TestPathsAreTakenAsTheyCome(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	for path, status := range map[string]int{
		"/sandboxes/":             404,
		"//sandboxes":             404,
		"/sandboxes/../sandboxes": 404,
		"/sandboxes/./a":          404,
		"/sandboxes/a%2Fb":        404,
		"/sandboxes/%2e%2e":       404,
		"/sandboxes//a":           404,
		"/nothing":                404,
		"":                        404,
	} {
		w := p.Do("GET", path, "")
		if w.Code != status || w.Header().Get("Location") != "" {
			t.Errorf("GET %q: %d, location %q", path, w.Code, w.Header().Get("Location"))
		}
		planetest.CheckError(t, w)
	}
	w := p.Do("PATCH", "/sandboxes/a", "{}")
	if w.Code != 405 || w.Header().Get("Allow") != "GET, PUT, DELETE" {
		t.Errorf("PATCH: %d, allow %q", w.Code, w.Header().Get("Allow"))
	}
	planetest.CheckError(t, w)
	if w := p.Do("HEAD", "/sandboxes", ""); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

// TestStrangersGetNoMap: without a credential, a path that is there and one that
// is not look alike.
func TestStrangersGetNoMap(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	for _, path := range []string{"/sandboxes", "/nothing", "", "/sandboxes/a/b", "//sandboxes", "/health/x"} {
		for _, method := range []string{"GET", "HEAD", "POST", "PATCH", "OPTIONS"} {
			for _, credential := range []string{"", "Bearer dz_nonsense"} {
				w := p.Do(method, path, "", "Authorization", credential)
				if w.Code != 401 || w.Header().Get("Allow") != "" || w.Header().Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s %q with %q: %d, allow %q", method, path, credential, w.Code, w.Header().Get("Allow"))
				}
				planetest.CheckError(t, w)
			}
		}
	}
	if w := p.Do("POST", "/health", "", "Authorization", ""); w.Code != 401 || w.Header().Get("Allow") != "" {
		t.Errorf("POST /health: %d, allow %q", w.Code, w.Header().Get("Allow"))
	}
	none := p.KeyFor("main", time.Time{})
	if w := p.Do("GET", "/nothing", "", "Authorization", "Bearer "+none); w.Code != 404 {
		t.Errorf("with a key of no scope: %d", w.Code)
	}
}

func TestCredentialsInEitherHeader(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	for name, headers := range map[string][]string{
		"authorization":        {},
		"x-blaxel":             {"Authorization", "", "X-Blaxel-Authorization", "Bearer " + p.Key},
		"x-blaxel first":       {"Authorization", "Bearer x", "X-Blaxel-Authorization", "bearer " + p.Key},
		"own workspace":        {"X-Blaxel-Workspace", "main"},
		"preview of a version": {"Blaxel-Version", "2026-04-28.preview"},
	} {
		if w := p.Do("GET", "/sandboxes?workspace=main", "", headers...); w.Code != 200 {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := p.Do("GET", "/sandboxes?workspace=other", ""); w.Code != 403 {
		t.Errorf("another workspace in the query: %d", w.Code)
	}
	if got := planetest.Want[map[string]any](p, 400, "GET", "/sandboxes", "", "Blaxel-Version", "latest"); got["error"] != "invalid_api_version" {
		t.Errorf("%v", got)
	}
}
