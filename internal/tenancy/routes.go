package tenancy

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/policies", "policies:list", api.Read((*Server).listPolicies).Asks("labels")),
	api.POST("/policies", "policies:create", api.Write[doze.Policy]((*Server).createPolicy)),
	api.GET("/policies/{policy}", "policies:get", api.Read((*Server).policy)),
	api.PUT("/policies/{policy}", "policies:update", api.Write[doze.Policy]((*Server).updatePolicy)),
	api.DELETE("/policies/{policy}", "policies:delete", api.Read((*Server).deletePolicy)),
	api.GET("/policies/{policy}/usages", "policies:get", api.Read((*Server).policyUsages)),

	api.GET("/secrets", access.Admin, api.Read((*Server).listSecrets)),
	api.POST("/secrets", access.Admin, api.Write[doze.Secret]((*Server).createSecret)),
	api.GET("/secrets/{secret}", access.Admin, api.Read((*Server).secret)),
	api.PUT("/secrets/{secret}", access.Admin, api.Write[doze.Secret]((*Server).updateSecret)),
	api.DELETE("/secrets/{secret}", access.Admin, api.Read((*Server).deleteSecret)),

	api.GET("/whoami", api.AnyScope, api.Read((*Server).whoami)),
	api.GET("/api_keys", "apiKey:list", api.Read((*Server).listAPIKeys)),
	api.POST("/api_keys", "apiKey:write", api.Write[keyRequest]((*Server).createAPIKey)),
	api.DELETE("/api_keys/{id}", "apiKey:write", api.Read((*Server).deleteAPIKey)),

	api.GET("/workspaces", "workspaces:list", api.Read((*Server).listWorkspaces).Asks("labels")),
	api.POST("/workspaces", "workspaces:create", api.Write[workspaceRequest]((*Server).createWorkspace)),
	api.POST("/workspaces/availability", "workspaces:create", api.Write[nameRequest]((*Server).workspaceAvailability).Asks("withReason").Together()),
	api.GET("/workspaces/{workspace}", "workspaces:get", api.Read((*Server).workspace).Asks("countResources")),
	api.PUT("/workspaces/{workspace}", "workspaces:update", api.Write[workspaceRequest]((*Server).updateWorkspace).Echoing(doze.Workspace{})),
	api.DELETE("/workspaces/{workspace}", "workspaces:delete", api.Read((*Server).deleteWorkspace)),
	api.DELETE("/workspaces/{workspace}/leave", "workspaces:leave", api.Read((*Server).leaveWorkspace)),
	api.GET("/workspaces/{workspace}/quotas", "workspaces:get", api.Read((*Server).quotasOf)),
	api.PUT("/workspaces/{workspace}/quotas", access.Admin, api.Write[quotaRequest]((*Server).setQuotas).By((*Server).governs)),
	api.POST("/workspaces/{workspace}/accept", api.AnyScope, api.Read((*Server).joinWorkspace)),
	api.POST("/workspaces/{workspace}/decline", api.AnyScope, api.Read((*Server).refuseWorkspace)),

	api.GET("/quotas", "workspaces:get", api.Read((*Server).quotas)),

	api.GET("/users", "workspaces:get", api.Read((*Server).listUsers)),
	api.POST("/users", "workspaces:invite", api.Write[inviteRequest]((*Server).inviteUser)),
	api.PUT("/users/{user}", "workspaces:update", api.Write[roleRequest]((*Server).updateUser).Echoing(doze.User{})),
	api.DELETE("/users/{user}", "workspaces:remove", api.Read((*Server).removeUser)),
	api.GET("/platform/users", access.Admin, api.Read((*Server).listPlatformUsers)),
	api.PUT("/platform/users/{user}", access.Admin, api.Write[rightsRequest]((*Server).updatePlatformUser).By((*Server).operates)),
	api.PUT("/password", api.AnyScope, api.Write[passwordRequest]((*Server).setPassword)),
	api.GET("/invitations", "invitations:list", api.Read((*Server).listInvitations)),
	api.POST("/invitations/accept", "", api.Write[acceptRequest]((*Server).acceptInvitation)),
	api.POST("/invitations/decline", "", api.Write[declineRequest]((*Server).declineInvitation)),

	api.GET("/service_accounts", access.Admin, api.Read((*Server).listServiceAccounts)),
	api.POST("/service_accounts", access.Admin, api.Write[accountRequest]((*Server).createServiceAccount)),
	api.PUT("/service_accounts/{account}", access.Admin, api.Write[accountRequest]((*Server).updateServiceAccount).Echoing(doze.ServiceAccount{})),
	api.DELETE("/service_accounts/{account}", access.Admin, api.Read((*Server).deleteServiceAccount)),
	api.GET("/service_accounts/{account}/api_keys", access.Admin, api.Read((*Server).listServiceKeys)),
	api.POST("/service_accounts/{account}/api_keys", access.Admin, api.Write[keyRequest]((*Server).createServiceKey)),
	api.DELETE("/service_accounts/{account}/api_keys/{key}", access.Admin, api.Read((*Server).deleteServiceKey)),

	api.GET("/oauth/clients", access.Admin, api.Read((*Server).listOAuthClients)),
	api.POST("/oauth/clients", access.Admin, api.Write[clientRequest]((*Server).createOAuthClient)),
	api.DELETE("/oauth/clients/{client}", access.Admin, api.Read((*Server).deleteOAuthClient)),

	api.GET("/audit", access.Admin, api.Read((*Server).listAudit).Asks(auditWords...)),
	api.GET("/audit/export", access.Admin, api.Stream[doze.AuditLine]((*Server).export).Asks(auditWords...)),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	return api.Section{Routes: api.Bind(s, rows), Schemas: schemas(), Tolerated: tolerated}
}

// tolerated are members that clients send to no effect.
var tolerated = []api.Tolerated{
	{Of: reflect.TypeFor[doze.Policy](), Paths: []string{"usage"}, Why: "clients send usage back with every policy"},
}
