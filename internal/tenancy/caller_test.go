package tenancy_test

import (
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestWhoami: every good credential hears whose it is, whatever its scopes.
func TestWhoami(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		me := planetest.Want[doze.Caller](p, 200, "GET", "/whoami", "")
		if me.Sub != "admin" || me.Type != doze.SubUser || me.Workspace != "main" || me.Role != doze.RoleAdmin || len(me.Scopes) != 1 || me.Scopes[0] != "admin" {
			t.Errorf("%+v", me)
		}
		planetest.Want[doze.Workspace](p, 200, "POST", "/workspaces", `{"name":"team"}`)
		if there := planetest.Want[doze.Caller](p, 200, "GET", "/whoami?workspace=team", ""); there.Workspace != "team" || there.Role != doze.RoleAdmin {
			t.Errorf("%+v", there)
		}
		few := planetest.Want[doze.APIKey](p, 200, "POST", "/api_keys", `{"name":"few","scopes":["volumes:list"]}`)
		if is := planetest.Want[doze.Caller](p, 200, "GET", "/whoami", "", "Authorization", "Bearer "+few.Key); len(is.Scopes) != 1 || is.Scopes[0] != "volumes:list" || is.Sub != "admin" {
			t.Errorf("%+v", is)
		}
		planetest.Want[any](p, 401, "GET", "/whoami", "", "Authorization", "Bearer none")
	})
}
