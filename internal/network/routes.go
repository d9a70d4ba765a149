package network

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/vpcs", access.Admin, api.Read((*Server).listVPCs)),
	api.POST("/vpcs", access.Admin, api.Write[doze.NetworkResource]((*Server).createVPC)),
	api.GET("/vpcs/{vpc}", access.Admin, api.Read((*Server).vpcOf)),
	api.DELETE("/vpcs/{vpc}", access.Admin, api.Read((*Server).deleteVPC)),
	api.GET("/vpcs/{vpc}/egressgateways", access.Admin, api.Read((*Server).listGateways)),
	api.POST("/vpcs/{vpc}/egressgateways", access.Admin, api.Write[doze.NetworkResource]((*Server).createGateway)),
	api.GET("/vpcs/{vpc}/egressgateways/{gateway}", access.Admin, api.Read((*Server).gatewayOf)),
	api.DELETE("/vpcs/{vpc}/egressgateways/{gateway}", access.Admin, api.Read((*Server).deleteGateway)),
	api.GET("/vpcs/{vpc}/egressgateways/{gateway}/ips", access.Admin, api.Read((*Server).listIPs)),
	api.POST("/vpcs/{vpc}/egressgateways/{gateway}/ips", access.Admin, api.Write[doze.NetworkResource]((*Server).createIP)),
	api.GET("/vpcs/{vpc}/egressgateways/{gateway}/ips/{ip}", access.Admin, api.Read((*Server).ipOf)),
	api.DELETE("/vpcs/{vpc}/egressgateways/{gateway}/ips/{ip}", access.Admin, api.Read((*Server).deleteIP)),
	api.GET("/egressgateways", access.Admin, api.Read((*Server).allGateways)),
	api.GET("/egressgateways/usage", access.Admin, api.Read((*Server).gatewayUsage)),
	api.GET("/egressips", access.Admin, api.Read((*Server).allIPs)),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	return api.Section{
		Routes: api.Bind(s, rows),
		Tolerated: []api.Tolerated{
			{
				Of: reflect.TypeFor[doze.NetworkResource](), Paths: []string{"metadata.labels", "metadata.externalId", "metadata.plan", "metadata.url"},
				Why: "the metadata of a VPC has them in the type of the clients; nothing looks for a VPC by them",
			},
		},
		Schemas: openapi.Schemas{
			Members: map[string]openapi.Schema{
				"NetworkMetadata.displayName": api.Letters(doze.DisplayNameMax),
				"NetworkMetadata.name":        api.Name,
				"NetworkSpec.ipFamily":        api.WordsOr(doze.IPv4, doze.IPv4, doze.IPv6),
			},
			Unset: []string{"NetworkMetadata.gatewayName", "NetworkMetadata.vpcName", "NetworkSpec.publicIp"},
		},
	}
}
