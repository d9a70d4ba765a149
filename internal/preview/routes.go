package preview

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/sandboxes/{name}/previews", "sandboxes:get", api.Read((*Server).listPreviews)),
	api.POST("/sandboxes/{name}/previews", "sandboxes:update", api.Write[doze.Preview]((*Server).createPreview).Asks("force").Together()),
	api.GET("/sandboxes/{name}/previews/{preview}", "sandboxes:get", api.Read((*Server).preview)),
	api.PUT("/sandboxes/{name}/previews/{preview}", "sandboxes:update", api.Write[doze.Preview]((*Server).updatePreview).Asks("force").Together()),
	api.DELETE("/sandboxes/{name}/previews/{preview}", "sandboxes:update", api.Read((*Server).deletePreview)),
	api.GET("/sandboxes/{name}/previews/{preview}/tokens", "sandboxes:control", api.Read((*Server).listPreviewTokens).Revealing()),
	api.POST("/sandboxes/{name}/previews/{preview}/tokens", "sandboxes:control", api.Write[doze.PreviewToken]((*Server).createPreviewToken)),
	api.DELETE("/sandboxes/{name}/previews/{preview}/tokens/{token}", "sandboxes:control", api.Read((*Server).deletePreviewToken)),

	api.GET("/customdomains", "customdomains:list", api.Read((*Server).listDomains).Asks("labels")),
	api.POST("/customdomains", "customdomains:create", api.Write[doze.CustomDomain]((*Server).createDomain)),
	api.GET("/customdomains/{domain}", "customdomains:get", api.Read((*Server).domain)),
	api.PUT("/customdomains/{domain}", "customdomains:update", api.Write[doze.CustomDomain]((*Server).updateDomain)),
	api.DELETE("/customdomains/{domain}", "customdomains:delete", api.Read((*Server).deleteDomain)),
	api.POST("/customdomains/{domain}/verify", "customdomains:update", api.Read((*Server).verifyDomain)),
	api.GET("/customdomains/{domain}/share", "customdomains:get", api.Read((*Server).listShares)),
	api.POST("/customdomains/{domain}/share", "customdomains:update", api.Write[api.ShareRequest]((*Server).shareDomain)),
	api.DELETE("/customdomains/{domain}/share/{target}", "customdomains:update", api.Read((*Server).unshareDomain)),
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
