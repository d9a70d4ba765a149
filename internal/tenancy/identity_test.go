package tenancy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// joinAs makes somebody a member of the workspace "main", with a key of theirs.
func joinAs(p *planetest.Platform, email, role string) (u doze.User, key string) {
	p.T.Helper()
	i := planetest.Want[doze.Invitation](p, 200, "POST", "/users", `{"email":"`+email+`","role":"`+role+`"}`)
	u = planetest.Want[doze.User](p, 200, "POST", "/invitations/accept", `{"token":"`+i.Token+`","password":"correct horse"}`, "Authorization", "")
	text, err := p.Creds.Tokens.Sign(claimsOf(u), time.Now())
	if err != nil {
		p.T.Fatal(err)
	}
	return u, text
}

func TestWorkspacesAndMembers(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	w := planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"team","displayName":"The Team","labels":{"a":"b"}}`)
	if w.CreatedBy != "admin" || w.Status != "ready" || w.Region != "here-1" {
		t.Errorf("%+v", w)
	}
	if far := planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"far","region":"there-1"}`); far.Region != "there-1" {
		t.Errorf("%+v", far)
	}
	planetest.Want[any](p, 200, "DELETE", "/workspaces/far", "")
	in := []string{"X-Blaxel-Workspace", "team"}
	planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", planetest.Named("a"), in...)
	planetest.Want[any](p, 404, "GET", "/sandboxes/a", "")
	planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/a?workspace=team", "")
	if all := planetest.Want[[]doze.Workspace](p, 200, "GET", "/workspaces", ""); len(all) != 2 {
		t.Errorf("%+v", all)
	}
	if got := planetest.Want[doze.Workspace](p, 200, "GET", "/workspaces/"+w.ID+"?countResources=true", ""); got.Resources["sandboxes"] != 1 {
		t.Errorf("%+v", got)
	}
	if got := planetest.Want[doze.Workspace](p, 200, "PUT", "/workspaces/team", `{"displayName":"Us"}`); got.DisplayName != "Us" || got.Labels["a"] != "b" {
		t.Errorf("%+v", got)
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/workspaces", `{"name":"team"}`, 409},
		{"POST", "/workspaces", `{"name":"admin"}`, 400},
		{"POST", "/workspaces", `{"name":"v1"}`, 400},
		{"POST", "/workspaces", `{"name":"A","region":"mars"}`, 400},
		{"PUT", "/workspaces/team", `{"name":"other"}`, 400},
		{"PUT", "/workspaces/team", `{"region":"there-1"}`, 400},
		{"PUT", "/workspaces/team", `{"region":"auto"}`, 200},
		{"DELETE", "/workspaces/team", ``, 409}, // it has a sandbox
		{"DELETE", "/workspaces/none", ``, 404},
		{"DELETE", "/workspaces/main/leave", ``, 409}, // its last admin
		{"DELETE", "/users/admin", ``, 409},
		{"PUT", "/users/admin", `{"role":"member"}`, 409},
		{"PUT", "/users/admin", `{"role":"king"}`, 400},
		{"POST", "/users", `{"email":"nonsense"}`, 400},
		{"POST", "/users", `{"email":"a@b.test","role":"king"}`, 400},
		{"POST", "/invitations/accept", `{"token":"dzi_a_b","password":"correct horse"}`, 404},
		{"POST", "/invitations/accept", `{"token":"dzi_a_b","password":"short"}`, 400},
	} {
		if w := p.Do(tt.method, tt.path, tt.body); w.Code != tt.status {
			t.Errorf("%s %s %s: %d %s, want %d", tt.method, tt.path, tt.body, w.Code, w.Body, tt.status)
		} else if tt.status >= 400 {
			planetest.CheckError(t, w)
		}
	}
	for name, free := range map[string]bool{"team": false, "www": false, "other": true} {
		if got := planetest.Want[bool](p, 200, "POST", "/workspaces/availability", `{"name":"`+name+`"}`); got != free {
			t.Errorf("%s is free: %t", name, got)
		}
	}
	if got := planetest.Want[map[string]any](p, 200, "POST", "/workspaces/availability?withReason=true", `{"name":"team"}`); got["reason"] != "taken" {
		t.Errorf("%v", got)
	}
}

func TestMembersDoLessThanAdmins(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	u, key := joinAs(p, "Ann@example.test", doze.RoleMember)
	if u.Email != "ann@example.test" || u.Role != doze.RoleMember {
		t.Errorf("%+v", u)
	}
	planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", planetest.Named("a"), planetest.As(key)...)
	for _, route := range [][2]string{
		{"POST", "/users"},
		{"PUT", "/users/admin"},
		{"DELETE", "/users/admin"},
		{"GET", "/service_accounts"},
		{"GET", "/secrets"},
		{"DELETE", "/workspaces/main"},
		{"POST", "/oauth/clients"},
	} {
		planetest.Want[any](p, 403, route[0], route[1], `{}`, planetest.As(key)...)
	}
	planetest.Want[any](p, 403, "GET", "/sandboxes/a?show_secrets=true", "", planetest.As(key)...)
	planetest.Want[any](p, 403, "POST", "/api_keys", `{"scopes":["admin"]}`, planetest.As(key)...)
	k := planetest.Want[struct {
		Key    string   `json:"apiKey"`
		Scopes []string `json:"scopes"`
	}](p, 200, "POST", "/api_keys", `{}`, planetest.As(key)...)
	if slices.Contains(k.Scopes, "admin") || len(k.Scopes) < 10 {
		t.Errorf("a member's key has %v", k.Scopes)
	}
	// Keys of others are an admin's business, those of service accounts too.
	type id struct{ ID string }
	other := planetest.Want[id](p, 200, "POST", "/api_keys", `{"scopes":["sandboxes:list"]}`)
	if all := planetest.Want[[]id](p, 200, "GET", "/api_keys", "", planetest.As(key)...); len(all) != 1 {
		t.Errorf("a member sees the keys %v", all)
	}
	planetest.Want[any](p, 404, "DELETE", "/api_keys/"+other.ID, "", planetest.As(key)...)
	planetest.Want[any](p, 200, "DELETE", "/api_keys/"+other.ID, "")
	// The role counts at each call, for tokens and for keys.
	planetest.Want[doze.User](p, 200, "PUT", "/users/"+u.Sub, `{"role":"admin"}`)
	planetest.Want[any](p, 200, "GET", "/secrets", "", planetest.As(key)...)
	planetest.Want[any](p, 403, "GET", "/secrets", "", planetest.As(k.Key)...)
	planetest.Want[doze.User](p, 200, "PUT", "/users/ann@example.test", `{"role":"member"}`)
	planetest.Want[any](p, 403, "GET", "/secrets", "", planetest.As(key)...)
	if all := planetest.Want[[]doze.User](p, 200, "GET", "/users", "", planetest.As(key)...); len(all) != 2 {
		t.Errorf("%+v", all)
	}
	planetest.Want[any](p, 200, "DELETE", "/users/"+u.Sub, "")
	for _, credential := range []string{key, k.Key} {
		if w := p.Do("GET", "/sandboxes", "", planetest.As(credential)...); w.Code != 403 {
			t.Errorf("outside: %d %s", w.Code, w.Body)
		}
		planetest.Want[any](p, 403, "GET", "/sandboxes", "", append(planetest.As(credential), "X-Blaxel-Workspace", "main")...)
	}
	p.Reopen()
	planetest.Want[any](p, 403, "GET", "/sandboxes", "", planetest.As(k.Key)...)
	// They come back by another invitation, which they answer as themselves.
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"own"}`)
	planetest.Want[doze.Invitation](p, 200, "POST", "/users", `{"email":"ann@example.test"}`)
	i := planetest.Want[doze.Invitation](p, 200, "POST", "/users", `{"email":"ann@example.test"}`, "X-Blaxel-Workspace", "own")
	planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces/main/accept", "", planetest.As(key)...)
	planetest.Want[any](p, 404, "POST", "/workspaces/main/accept", "", planetest.As(key)...)
	planetest.Want[any](p, 200, "GET", "/sandboxes", "", planetest.As(k.Key)...)
	planetest.Want[doze.Invitation](p, 200, "POST", "/users", `{"email":"bob@example.test"}`)
	planetest.Want[any](p, 409, "POST", "/users", `{"email":"ann@example.test"}`)
	planetest.Want[any](p, 409, "POST", "/invitations/accept", `{"token":"`+i.Token+`","password":"another one!"}`, "Authorization", "")
	if all := planetest.Want[[]doze.Invitation](p, 200, "GET", "/invitations", ""); len(all) != 1 || all[0].Token != "" {
		t.Errorf("%+v", all)
	}
	planetest.Want[any](p, 200, "POST", "/invitations/decline", `{"token":"`+i.Token+`"}`, "Authorization", "")
	planetest.Want[any](p, 404, "POST", "/invitations/decline", `{"token":"`+i.Token+`"}`, "Authorization", "")
}

// TestWorkspacesAreCreatedByRight: of an operator, or of a user to whom one gave
// it, up to a number.
func TestWorkspacesAreCreatedByRight(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	u, token := joinAs(p, "eve@example.test", doze.RoleMember)
	made := 0
	create := func(token string) int {
		made++
		return p.Do("POST", "/workspaces", fmt.Sprintf(`{"name":"w-%d"}`, made), planetest.As(token)...).Code
	}
	if got := create(token); got != 403 {
		t.Errorf("a member: %d", got)
	}
	planetest.Want[any](p, 403, "PUT", "/platform/users/"+u.Sub, `{"workspaceCreator":true}`, planetest.As(token)...)
	planetest.Want[any](p, 403, "GET", "/platform/users", "", planetest.As(token)...)
	planetest.Want[any](p, 404, "PUT", "/platform/users/nobody", `{}`)
	planetest.Want[any](p, 400, "PUT", "/platform/users/"+u.Sub, `{"workspaceCreator":"yes"}`)
	// An admin of another workspace is no operator.
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"other"}`)
	planetest.Want[any](p, 403, "GET", "/platform/users", "", planetest.As(p.KeyFor("other", time.Time{}, access.Admin))...)
	got := planetest.Want[doze.User](p, 200, "PUT", "/platform/users/eve@example.test", `{"workspaceCreator":true}`)
	if !got.WorkspaceCreator || got.Email != u.Email {
		t.Errorf("%+v", got)
	}
	for _, when := range []string{"at once", "after a restart"} {
		if got := create(token); got != 200 {
			t.Errorf("%s: %d", when, got)
		}
		p.Reopen()
	}
	if all := planetest.Want[[]doze.User](p, 200, "GET", "/platform/users", ""); len(all) != 2 || !all[1].WorkspaceCreator {
		t.Errorf("%+v", all)
	}
	for range 98 {
		if got := create(token); got != 200 {
			t.Fatalf("%d: %d", made, got)
		}
	}
	if got := create(token); got != 429 {
		t.Errorf("one too many: %d", got)
	}
	if got := create(p.Key); got != 200 {
		t.Errorf("an operator, after that: %d", got)
	}
	planetest.Want[doze.User](p, 200, "PUT", "/platform/users/"+u.Sub, `{"workspaceCreator":false}`)
	if got := create(token); got != 403 {
		t.Errorf("without the right: %d", got)
	}
}

// TestMembersLeaveKeysForOthers: one cannot have all that a workspace may have.
func TestMembersLeaveKeysForOthers(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	_, token := joinAs(p, "eve@example.test", doze.RoleMember)
	for range 100 {
		planetest.Want[any](p, 200, "POST", "/api_keys", `{}`, planetest.As(token)...)
	}
	planetest.Want[any](p, 429, "POST", "/api_keys", `{}`, planetest.As(token)...)
	planetest.Want[any](p, 200, "POST", "/api_keys", `{}`)
}

// TestKeysStayInTheirWorkspace: a key whose owner has left the workspace in which
// it was made does not act in another one of theirs.
func TestKeysStayInTheirWorkspace(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	u, token := joinAs(p, "dan@example.test", doze.RoleAdmin)
	k := planetest.Want[key](p, 200, "POST", "/api_keys", `{}`, planetest.As(token)...)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"danws"}`, planetest.As(token)...)
	theirs := append(planetest.As(k.Key), "X-Blaxel-Workspace", "danws")
	planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", planetest.Named("job"), theirs...)

	planetest.Want[any](p, 200, "DELETE", "/users/"+u.Sub, "")
	for range 2 { // before and after a restart
		for _, route := range [][2]string{{"GET", "/sandboxes/job"}, {"GET", "/sandboxes"}, {"POST", "/sandboxes"}, {"DELETE", "/sandboxes/job"}} {
			w := p.Do(route[0], route[1], "", planetest.As(k.Key)...)
			if w.Code != 403 || !strings.Contains(w.Body.String(), "x-blaxel-workspace, such as danws") {
				t.Errorf("%s %s: %d %s", route[0], route[1], w.Code, w.Body)
			}
		}
		planetest.Want[any](p, 403, "DELETE", "/sandboxes/job", "", planetest.As(token)...) // it is bound to main, too
		if sb := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/job", "", theirs...); sb.Status != "DEPLOYED" {
			t.Errorf("it is %s", sb.Status)
		}
		p.Reopen()
	}
	p.Creds.Join(u.Sub, "danws", "")
	if w := p.Do("GET", "/workspaces", "", planetest.As(k.Key)...); w.Code != 403 || !strings.Contains(w.Body.String(), "accept an invitation") {
		t.Errorf("in no workspace: %d %s", w.Code, w.Body)
	}
}

func TestServiceAccounts(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	a := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"ci","description":"builds","scopes":["sandboxes:list","apiKey:list"]}`)
	if a.Secret == "" || a.ClientID == "" || a.CreatedAt.IsZero() {
		t.Errorf("%+v", a)
	}
	other := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"other"}`)
	path := "/service_accounts/" + a.ClientID
	k := planetest.Want[key](p, 200, "POST", path+"/api_keys", `{"name":"k","expires_in":"1h"}`)
	if k.Sub != a.ClientID || k.SubType != doze.SubServiceAccount || k.CreatedBy != "admin" || k.Key == "" {
		t.Errorf("%+v", k)
	}
	planetest.Want[any](p, 200, "GET", "/sandboxes", "", planetest.As(k.Key)...)
	planetest.Want[any](p, 403, "GET", "/service_accounts", "", planetest.As(k.Key)...)
	planetest.Want[any](p, 403, "GET", "/sandboxes", "", append(planetest.As(k.Key), "X-Blaxel-Workspace", "other")...)
	planetest.Want[any](p, 403, "POST", path+"/api_keys", `{"scopes":["admin"]}`)
	planetest.Want[any](p, 404, "DELETE", "/service_accounts/"+other.ClientID+"/api_keys/"+k.ID, "")
	if got := planetest.Want[doze.ServiceAccount](p, 200, "PUT", path, `{"description":"tests"}`); got.Name != "ci" || got.Description != "tests" || got.Secret != "" {
		t.Errorf("%+v", got)
	}
	for body, status := range map[string]int{`{}`: 400, `{"name":"x","scopes":["all"]}`: 400, `{"name":"x","scopes":[]}`: 400} {
		planetest.Want[any](p, status, "POST", "/service_accounts", body)
	}
	if all := planetest.Want[[]doze.ServiceAccount](p, 200, "GET", "/service_accounts", ""); len(all) != 2 || all[0].Secret+all[1].Secret != "" {
		t.Errorf("%+v", all)
	}
	if all := planetest.Want[[]key](p, 200, "GET", path+"/api_keys", ""); len(all) != 1 || all[0].Key != "" {
		t.Errorf("%+v", all)
	}
	second := planetest.Want[key](p, 200, "POST", path+"/api_keys", ``)
	planetest.Want[any](p, 200, "DELETE", path+"/api_keys/"+second.ID, "")
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(second.Key)...)
	planetest.Want[any](p, 200, "GET", "/sandboxes", "", planetest.As(k.Key)...)

	text, err := p.Creds.Tokens.Sign(claimsOf(doze.User{Sub: a.ClientID}), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	planetest.Want[doze.ServiceAccount](p, 200, "DELETE", path, "")
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(k.Key)...)
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(text)...)
	planetest.Want[any](p, 404, "DELETE", path, "")
	p.Reopen()
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(k.Key)...)
}

// TestScopesOfServiceAccountsBoundTheirCredentials: what is taken away from an
// newAccount is gone from its keys and tokens at once, and over a restart.
func TestScopesOfServiceAccountsBoundTheirCredentials(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	a := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"ci"}`)
	path := "/service_accounts/" + a.ClientID
	text, err := p.Creds.Tokens.Sign(claimsOf(doze.User{Sub: a.ClientID}), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	all := planetest.Want[key](p, 200, "POST", path+"/api_keys", ``)
	few := planetest.Want[key](p, 200, "POST", path+"/api_keys", `{"scopes":["sandboxes:list","sandboxes:get"]}`)
	less := 0
	p.Creds.OnLess(func() { less++ })
	for _, step := range []struct {
		scopes string
		may    map[string][2]int // for the token and the first key, and for the second
	}{
		{`["sandboxes:get","apiKey:list"]`, map[string][2]int{"/sandboxes": {403, 403}, "/sandboxes/none": {404, 404}, "/api_keys": {200, 403}, "/secrets": {403, 403}}},
		{`["sandboxes:list"]`, map[string][2]int{"/sandboxes": {200, 200}, "/sandboxes/none": {403, 403}, "/api_keys": {403, 403}, "/secrets": {403, 403}}},
		{`["admin"]`, map[string][2]int{"/sandboxes": {200, 200}, "/sandboxes/none": {404, 404}, "/api_keys": {200, 403}, "/secrets": {200, 403}}},
	} {
		got, before := planetest.Want[doze.ServiceAccount](p, 200, "PUT", path, `{"scopes":`+step.scopes+`}`), less
		if before == 0 || got.Name != "ci" || `["`+strings.Join(got.Scopes, `","`)+`"]` != step.scopes {
			t.Errorf("%s: told %d times, %+v", step.scopes, before, got)
		}
		less = 0
		for range 2 { // before and after a restart
			for route, status := range step.may {
				planetest.Want[any](p, status[0], "GET", route, "", planetest.As(text)...)
				planetest.Want[any](p, status[0], "GET", route, "", planetest.As(all.Key)...)
				planetest.Want[any](p, status[1], "GET", route, "", planetest.As(few.Key)...)
			}
			p.Reopen()
			p.Creds.OnLess(func() { less++ })
		}
	}
	for body, says := range map[string]string{
		`{"name":"","scopes":["all"]}`: `name must have 1 to 63 bytes; scopes has the unknown scope \"all\"`,
		`{"scopes":null}`:              "scopes has 0 entries",
		`{"scopes":"admin"}`:           "scopes must be an array",
	} {
		if w := p.Do("PUT", path, body); w.Code != 400 || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	planetest.Want[doze.ServiceAccount](p, 200, "PUT", path, `{"scopes":["sandboxes:list"]}`)
	w := p.Do("POST", path+"/api_keys", `{"expires_in":"-1h","scopes":["admin","x"]}`)
	for _, says := range []string{"expires_in", `the unknown scope \"x\"`, `has \"admin\", which the service account lacks`} {
		if w.Code != 400 || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%d %s does not say %q", w.Code, w.Body, says)
		}
	}
}

func TestWorkspaceEndsWithAllThatIsInIt(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"team"}`)
	in := []string{"X-Blaxel-Workspace", "team"}
	a := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"ci"}`, in...)
	k := planetest.Want[key](p, 200, "POST", "/service_accounts/"+a.ClientID+"/api_keys", ``, in...)
	planetest.Want[any](p, 200, "POST", "/secrets", planetest.Named("s"), in...)
	line := fleet.LogLine{LogPosition: fleet.LogPosition{At: time.Now().UnixNano(), Origin: "m"}, Severity: doze.LogInfo, Text: "secret"}
	p.Node.Write("team", "x", line)
	p.Node.Write("team", "y", line)
	logs := func() int {
		all := planetest.Want[map[string]doze.Log](p, 200, "GET", "/observability/logs?workloadIds=x,y", "", in...)
		return len(all["x"].Lines) + len(all["y"].Lines)
	}
	if n := logs(); n != 2 {
		t.Errorf("its logs have %d lines", n)
	}
	p.Node.Set("logs", doze.Errorf(doze.Unavailable, "no node")) // which leaves them where they are
	planetest.Want[doze.Workspace](p, 200, "DELETE", "/workspaces/team", "")
	p.Node.Set("logs", nil)
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(k.Key)...)
	planetest.Want[any](p, 403, "GET", "/sandboxes", "", in...)
	p.Reopen()
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(k.Key)...)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"team"}`)
	if all := planetest.Want[[]doze.Secret](p, 200, "GET", "/secrets", "", in...); len(all) != 0 {
		t.Errorf("%+v", all)
	}
	if n := logs(); n != 0 {
		t.Errorf("the next workspace of the name has %d lines of the one before", n)
	}
	planetest.Want[doze.Workspace](p, 200, "DELETE", "/workspaces/team", "")
	page, err := p.Node.Logs(t.Context(), fleet.LogQuery{Workspace: "team", Name: "x", Limit: 1})
	if err != nil || len(page.Lines) != 0 {
		t.Errorf("its logs are there: %+v, %v", page, err)
	}
}

func TestPasswordsChange(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	u, token := joinAs(p, "ann@example.test", doze.RoleMember)
	// Not 401: clients drop a credential for that.
	e := planetest.Want[map[string]any](p, 400, "PUT", "/password", `{"old_password":"wrong","password":"battery staple"}`, planetest.As(token)...)
	if e["message"] != "old_password is wrong" {
		t.Errorf("%v", e)
	}
	planetest.Want[any](p, 400, "PUT", "/password", `{"old_password":"correct horse","password":"short"}`, planetest.As(token)...)
	planetest.Want[any](p, 200, "PUT", "/password", `{"old_password":"correct horse","password":"battery staple"}`, planetest.As(token)...)
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(token)...) // all tokens before are void
	p.Reopen()
	planetest.Want[any](p, 401, "GET", "/sandboxes", "", planetest.As(token)...)
	if rec, err := p.Store.User(t.Context(), u.Sub); err != nil || rec.Epoch != 1 {
		t.Errorf("%+v, %v", rec, err)
	}
	planetest.Want[any](p, 200, "PUT", "/password", `{"password":"battery staple"}`) // the admin's first
	planetest.Want[any](p, 400, "PUT", "/password", `{"password":"battery staple"}`)
}

// claimsOf are those of a token for everything.
func claimsOf(u doze.User) access.Claims {
	kind := doze.SubUser
	if u.Email == "" {
		kind = doze.SubServiceAccount
	}
	return access.Claims{Sub: u.Sub, SubType: kind, Scope: access.Admin, Workspace: "main"}
}
