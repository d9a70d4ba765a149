package preview

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/sandboxes/{name}/previews", "sandboxes:get", "List the previews of a sandbox", api.Read((*Server).listPreviews)),
	api.POST("/sandboxes/{name}/previews", "sandboxes:update", "Create a preview", api.Write[doze.Preview]((*Server).createPreview).Asks("force").Together()),
	api.GET("/sandboxes/{name}/previews/{preview}", "sandboxes:get", "Read a preview", api.Read((*Server).preview)),
	api.PUT("/sandboxes/{name}/previews/{preview}", "sandboxes:update", "Update a preview", api.Write[doze.Preview]((*Server).updatePreview).Asks("force").Together()),
	api.DELETE("/sandboxes/{name}/previews/{preview}", "sandboxes:update", "Delete a preview", api.Read((*Server).deletePreview).
		About("Its open connections end.")),
	api.GET("/sandboxes/{name}/previews/{preview}/tokens", "sandboxes:control", "List the tokens of a preview", api.Read((*Server).listPreviewTokens).Revealing().
		About("The answer has the tokens themselves.")),
	api.POST("/sandboxes/{name}/previews/{preview}/tokens", "sandboxes:control", "Create a token for a preview", api.Write[doze.PreviewToken]((*Server).createPreviewToken)),
	api.DELETE("/sandboxes/{name}/previews/{preview}/tokens/{token}", "sandboxes:control", "Delete a token of a preview", api.Read((*Server).deletePreviewToken).
		About("Connections that were opened with it end.")),

	api.GET("/customdomains", "customdomains:list", "List custom domains", api.Read((*Server).listDomains).Asks("labels")),
	api.POST("/customdomains", "customdomains:create", "Create a custom domain", api.Write[doze.CustomDomain]((*Server).createDomain).
		About("It serves nothing until it is verified.")),
	api.GET("/customdomains/{domain}", "customdomains:get", "Read a custom domain", api.Read((*Server).domain)),
	api.PUT("/customdomains/{domain}", "customdomains:update", "Update a custom domain", api.Write[doze.CustomDomain]((*Server).updateDomain)),
	api.DELETE("/customdomains/{domain}", "customdomains:delete", "Delete a custom domain", api.Read((*Server).deleteDomain).
		About("It is 409 while a preview uses the domain, or while it is shared.")),
	api.POST("/customdomains/{domain}/verify", "customdomains:update", "Verify a custom domain", api.Read((*Server).verifyDomain).
		About("If the DNS lacks a record, the status is 200 and verificationError says what is missing.")),
	api.GET("/customdomains/{domain}/share", "customdomains:get", "List who may use a custom domain", api.Read((*Server).listShares)),
	api.POST("/customdomains/{domain}/share", "customdomains:update", "Share a custom domain with a workspace", api.Write[api.ShareRequest]((*Server).shareDomain)),
	api.DELETE("/customdomains/{domain}/share/{target}", "customdomains:update", "Stop sharing a custom domain with a workspace", api.Read((*Server).unshareDomain).
		About("Previews of that workspace on the domain end.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	headers := openapi.Schema{MaxProperties: doze.PreviewHeadersMax}
	return api.Section{
		Routes: api.Bind(s, rows),
		Tolerated: []api.Tolerated{{
			Of: reflect.TypeFor[doze.Preview](), Paths: []string{"events"},
			Why: "the type of the clients has it, for what happened to a preview",
		}},
		Schemas: openapi.Schemas{
			Members: map[string]openapi.Schema{
				"PreviewMetadata.displayName": api.Letters(doze.DisplayNameMax),
				"PreviewMetadata.name":        api.Name,
				"PreviewSpec.port":            api.Port,
				"PreviewSpec.prefixUrl":       {MaxLength: doze.PrefixMax, Pattern: doze.NamePattern},
				"PreviewSpec.ttl":             api.Span,
				"PreviewSpec.expires":         api.Instant,
				"PreviewSpec.requestHeaders":  headers,
				"PreviewSpec.responseHeaders": headers,

				"CustomDomainMetadata.displayName": api.Letters(doze.DisplayNameMax),
				"CustomDomainMetadata.labels":      api.Labels,
				"CustomDomainMetadata.name":        api.Letters(doze.DomainMax),
				"CustomDomainSpec.domainType":      api.Words(doze.DomainPreviews),
				"CustomDomainSpec.status":          api.Words(doze.DomainPending, doze.DomainVerified, doze.DomainFailed),
				"DomainShare.workspace":            api.Text("or " + doze.DomainEverybody + ": all"),
			},
			Unset: []string{
				"CustomDomainMetadata.sharedFromWorkspace", "CustomDomainSpec.cnameRecords", "CustomDomainSpec.lastVerifiedAt",
				"CustomDomainSpec.subjectAlternativeNames", "CustomDomainSpec.txtRecords", "CustomDomainSpec.verificationError",
				"PreviewMetadata.resourceName", "PreviewMetadata.resourceType", "PreviewSpec.region",
				"PreviewTokenMetadata.previewName", "PreviewTokenMetadata.resourceName", "PreviewTokenMetadata.resourceType",
				"PreviewTokenSpec.expired", "PreviewTokenSpec.token",
			},
		},
	}
}
