package tenancy

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/policies", "policies:list", "List policies", api.Read((*Server).listPolicies).Asks("labels")),
	api.POST("/policies", "policies:create", "Create a policy", api.Write[doze.Policy]((*Server).createPolicy)),
	api.GET("/policies/{policy}", "policies:get", "Read a policy", api.Read((*Server).policy)),
	api.PUT("/policies/{policy}", "policies:update", "Update a policy", api.Write[doze.Policy]((*Server).updatePolicy).
		About("A policy that gets another type loses the lists of the type before.")),
	api.DELETE("/policies/{policy}", "policies:delete", "Delete a policy", api.Read((*Server).deletePolicy)),
	api.GET("/policies/{policy}/usages", "policies:get", "List what uses a policy", api.Read((*Server).policyUsages).
		About("Nothing does: the lists are empty.")),

	api.GET("/secrets", access.Admin, "List secrets", api.Read((*Server).listSecrets).
		About("Their values are masked.")),
	api.POST("/secrets", access.Admin, "Create a secret", api.Write[doze.Secret]((*Server).createSecret).
		About("The answer has its values masked.")),
	api.GET("/secrets/{secret}", access.Admin, "Read a secret", api.Read((*Server).secret).
		About("Its values are masked.")),
	api.PUT("/secrets/{secret}", access.Admin, "Update a secret", api.Write[doze.Secret]((*Server).updateSecret).
		About("Keys that the body leaves out are removed. A masked value means the value of before.")),
	api.DELETE("/secrets/{secret}", access.Admin, "Delete a secret", api.Read((*Server).deleteSecret)),

	api.GET("/whoami", api.AnyScope, "Say whose credential it is", api.Read((*Server).whoami)),
	api.GET("/api_keys", "apiKey:list", "List API keys", api.Read((*Server).listAPIKeys).
		About("The answer has no key itself. A caller with the scope admin gets all keys of the workspace.")),
	api.POST("/api_keys", "apiKey:write", "Create an API key", api.Write[keyRequest]((*Server).createAPIKey).
		About("The answer has the key itself, this once.")),
	api.DELETE("/api_keys/{id}", "apiKey:write", "Delete an API key", api.Read((*Server).deleteAPIKey).
		About("Open requests that came with it end.")),

	api.GET("/workspaces", "workspaces:list", "List the workspaces of the caller", api.Read((*Server).listWorkspaces).Asks("labels")),
	api.POST("/workspaces", "workspaces:create", "Create a workspace", api.Write[workspaceRequest]((*Server).createWorkspace).
		About("The caller becomes its admin. Without the right to create workspaces it is 403.")),
	api.POST("/workspaces/availability", "workspaces:create", "Ask whether a workspace name is free", api.Write[nameRequest]((*Server).workspaceAvailability).Asks("withReason").Together()),
	api.GET("/workspaces/{workspace}", "workspaces:get", "Read a workspace", api.Read((*Server).workspace).Asks("countResources")),
	api.PUT("/workspaces/{workspace}", "workspaces:update", "Update a workspace", api.Write[workspaceRequest]((*Server).updateWorkspace).Echoing(doze.Workspace{})),
	api.DELETE("/workspaces/{workspace}", "workspaces:delete", "Delete a workspace", api.Read((*Server).deleteWorkspace).
		About("It is 409 while the workspace has sandboxes, snapshots, volumes, volume templates or drives.")),
	api.DELETE("/workspaces/{workspace}/leave", "workspaces:leave", "Leave a workspace", api.Read((*Server).leaveWorkspace).
		About("It is 409 for the last admin.")),
	api.GET("/workspaces/{workspace}/quotas", "workspaces:get", "List the quotas of a workspace", api.Read((*Server).quotasOf)),
	api.PUT("/workspaces/{workspace}/quotas", access.Admin, "Set the quotas of a workspace", api.Write[quotaRequest]((*Server).setQuotas).By((*Server).governs).
		About("Only operators may. A limit below the present use removes nothing, and refuses more.")),
	api.POST("/workspaces/{workspace}/accept", api.AnyScope, "Accept an invitation to a workspace", api.Read((*Server).joinWorkspace)),
	api.POST("/workspaces/{workspace}/decline", api.AnyScope, "Decline an invitation to a workspace", api.Read((*Server).refuseWorkspace)),

	api.GET("/quotas", "workspaces:get", "List the quotas of the present workspace", api.Read((*Server).quotas)),

	api.GET("/users", "workspaces:get", "List the members of the workspace", api.Read((*Server).listUsers)),
	api.POST("/users", "workspaces:invite", "Invite a user", api.Write[inviteRequest]((*Server).inviteUser).
		About("The answer has the token of the invitation, this once. The platform sends no mail.")),
	api.PUT("/users/{user}", "workspaces:update", "Change the role of a member", api.Write[roleRequest]((*Server).updateUser).Echoing(doze.User{}).
		About("It is 409 for the last admin.")),
	api.DELETE("/users/{user}", "workspaces:remove", "Remove a member or an open invitation", api.Read((*Server).removeUser).
		About("It is 409 for the last admin.")),
	api.GET("/platform/users", access.Admin, "List all users of the platform", api.Read((*Server).listPlatformUsers).
		About("Only operators get them.")),
	api.PUT("/platform/users/{user}", access.Admin, "Change the rights of a user", api.Write[rightsRequest]((*Server).updatePlatformUser).By((*Server).operates).
		About("Only operators may.")),
	api.PUT("/password", api.AnyScope, "Set the password of the caller", api.Write[passwordRequest]((*Server).setPassword).
		About("All tokens of the user become void.")),
	api.GET("/invitations", "invitations:list", "List the open invitations of the workspace", api.Read((*Server).listInvitations)),
	api.POST("/invitations/accept", "", "Accept an invitation with its token", api.Write[acceptRequest]((*Server).acceptInvitation).
		About("It makes an account if the person has none.")),
	api.POST("/invitations/decline", "", "Decline an invitation with its token", api.Write[declineRequest]((*Server).declineInvitation)),

	api.GET("/service_accounts", access.Admin, "List service accounts", api.Read((*Server).listServiceAccounts)),
	api.POST("/service_accounts", access.Admin, "Create a service account", api.Write[accountRequest]((*Server).createServiceAccount).
		About("The answer has its client_secret, this once.")),
	api.PUT("/service_accounts/{account}", access.Admin, "Update a service account", api.Write[accountRequest]((*Server).updateServiceAccount).Echoing(doze.ServiceAccount{}).
		About("Its keys and tokens lose a scope at once when the account loses it.")),
	api.DELETE("/service_accounts/{account}", access.Admin, "Delete a service account", api.Read((*Server).deleteServiceAccount).
		About("Its keys and tokens are void at once.")),
	api.GET("/service_accounts/{account}/api_keys", access.Admin, "List the keys of a service account", api.Read((*Server).listServiceKeys)),
	api.POST("/service_accounts/{account}/api_keys", access.Admin, "Create a key for a service account", api.Write[keyRequest]((*Server).createServiceKey).
		About("The answer has the key itself, this once.")),
	api.DELETE("/service_accounts/{account}/api_keys/{key}", access.Admin, "Delete a key of a service account", api.Read((*Server).deleteServiceKey).
		About("Open requests that came with it end.")),

	api.GET("/oauth/clients", access.Admin, "List the programs that users log in with", api.Read((*Server).listOAuthClients)),
	api.POST("/oauth/clients", access.Admin, "Register a program that users log in with", api.Write[clientRequest]((*Server).createOAuthClient)),
	api.DELETE("/oauth/clients/{client}", access.Admin, "Remove a program that users log in with", api.Read((*Server).deleteOAuthClient)),

	api.GET("/audit", access.Admin, "List the lines of the audit log", api.Read((*Server).listAudit).Asks(auditWords...)),
	api.GET("/audit/export", access.Admin, "Export the audit log", api.Stream[doze.AuditLine]((*Server).export).Asks(auditWords...).
		About("The oldest line is first.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	return api.Section{Routes: api.Bind(s, rows), Schemas: schemas(), Tolerated: tolerated}
}

// tolerated are members that clients send to no effect.
var tolerated = []api.Tolerated{
	{Of: reflect.TypeFor[doze.Policy](), Paths: []string{"usage"}, Why: "clients send usage back with every policy"},
}
