package access

import "slices"

// Admin is the scope that includes every other (spec section 5).
const Admin = "admin"

// actions are the actions of each resource that has scopes (spec section 5).
var actions = []struct {
	resource string
	actions  []string
}{
	{"agents", crud},
	{"applications", crud},
	{"customdomains", crud},
	{"functions", crud},
	{"jobs", crud},
	{"models", crud},
	{"policies", crud},
	{"sandboxes", []string{"control", "create", "delete", "get", "list", "update"}},
	{"volumes", []string{"create", "delete", "get", "list"}},
	{"volumeTemplates", []string{"create", "delete", "get", "list", "upsert"}},
	{"workspaces", []string{"accept", "create", "decline", "delete", "get", "invite", "leave", "list", "remove", "update"}},
	{"apiKey", []string{"list", "write"}},
	{"integrations", []string{"create", "list"}},
	{"templates", []string{"get", "list"}},
	{"configurations", list},
	{"invitations", list},
	{"locations", list},
	{"mcphub", list},
	{"sandboxhub", list},
}

var (
	crud = []string{"create", "delete", "get", "list", "update"}
	list = []string{"list"}
)

// adminScopes are those that need the role admin in a workspace.
var adminScopes = []string{Admin, "workspaces:delete", "workspaces:invite", "workspaces:remove", "workspaces:update"}

// scopes are all but admin.
var scopes = func() (all []string) {
	for _, row := range actions {
		for _, action := range row.actions {
			all = append(all, row.resource+":"+action)
		}
	}
	return all
}()

// Scopes are all but admin, in the order of the specification.
func Scopes() []string { return slices.Clone(scopes) }

// Known reports whether there is such a scope.
func Known(scope string) bool { return scope == Admin || slices.Contains(scopes, scope) }
