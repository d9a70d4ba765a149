package tenancy

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
)

// schemas are the tables of what types do not show.
func schemas() openapi.Schemas {
	roles := api.Words(doze.RoleAdmin, doze.RoleMember)
	password := openapi.Schema{MinLength: doze.PasswordMin, MaxLength: doze.PasswordMax}
	return openapi.Schemas{
		Names: map[reflect.Type]string{reflect.TypeFor[apiKey](): "APIKey"},
		// The limits and forms, from the constants that checks use.
		Members: map[string]openapi.Schema{
			"PolicySpec.type":              api.Words(doze.PolicyLocation, doze.PolicyFlavor, doze.PolicyMaxToken),
			"PolicySpec.locations":         {MaxItems: doze.PolicyEntriesMax},
			"PolicySpec.flavors":           {MaxItems: doze.PolicyEntriesMax},
			"PolicySpec.resourceTypes":     {MaxItems: doze.PolicyEntriesMax},
			"PolicyEntry.name":             api.Letters(doze.DisplayNameMax),
			"Secret.data":                  {MaxProperties: doze.SecretKeysMax, Description: "masked in answers: sent back so, a value is unchanged"},
			"KeyRequest.name":              api.Letters(keyNameMax),
			"KeyRequest.expires_in":        api.Span,
			"KeyRequest.scopes":            {MaxItems: scopesMax},
			"AccountRequest.name":          api.Letters(doze.DisplayNameMax),
			"AccountRequest.description":   api.Letters(descriptionMax),
			"AccountRequest.scopes":        {MaxItems: scopesMax},
			"ClientRequest.client_name":    api.Letters(doze.DisplayNameMax),
			"WorkspaceRequest.name":        api.Name,
			"WorkspaceRequest.displayName": api.Letters(doze.DisplayNameMax),
			"WorkspaceRequest.labels":      api.Labels,
			"NameRequest.name":             api.Name,
			"InviteRequest.email":          api.Letters(doze.EmailMax),
			"InviteRequest.role":           roles,
			"RoleRequest.role":             roles,
			"User.role":                    roles,
			"Invitation.role":              roles,
			"User.workspaceCreator":        api.Text("may create workspaces; operators always may"),
			"AcceptRequest.password":       password,
			"AcceptRequest.given_name":     api.Letters(doze.PersonMax),
			"AcceptRequest.family_name":    api.Letters(doze.PersonMax),
			"PasswordRequest.password":     password,
			"APIKey.sub_type":              api.Words(doze.SubUser, doze.SubServiceAccount),
		},
		// Of what is replaced whole. What a caller may change in part has no
		// members that are needed each time.
		Needs: map[string][]string{
			"AcceptRequest":   {"token", "password"},
			"ClientRequest":   {"client_name", "redirect_uris"},
			"DeclineRequest":  {"token"},
			"InviteRequest":   {"email"},
			"NameRequest":     {"name"},
			"PasswordRequest": {"password"},
			"PolicyEntry":     {"name", "type"},
		},
	}
}
