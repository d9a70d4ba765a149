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
	api.GET("/vpcs", access.Admin, "List VPCs", api.Read((*Server).listVPCs)),
	api.POST("/vpcs", access.Admin, "Create a VPC", api.Write[doze.NetworkResource]((*Server).createVPC)),
	api.GET("/vpcs/{vpc}", access.Admin, "Read a VPC", api.Read((*Server).vpcOf)),
	api.DELETE("/vpcs/{vpc}", access.Admin, "Delete a VPC", api.Read((*Server).deleteVPC).
		About("It is 409 while the VPC has an egress gateway or a sandbox, and always for the VPC default.")),
	api.GET("/vpcs/{vpc}/egressgateways", access.Admin, "List the egress gateways of a VPC", api.Read((*Server).listGateways)),
	api.POST("/vpcs/{vpc}/egressgateways", access.Admin, "Create an egress gateway", api.Write[doze.NetworkResource]((*Server).createGateway)),
	api.GET("/vpcs/{vpc}/egressgateways/{gateway}", access.Admin, "Read an egress gateway", api.Read((*Server).gatewayOf)),
	api.DELETE("/vpcs/{vpc}/egressgateways/{gateway}", access.Admin, "Delete an egress gateway", api.Read((*Server).deleteGateway).
		About("It is 409 while the egress gateway has an address.")),
	api.GET("/vpcs/{vpc}/egressgateways/{gateway}/ips", access.Admin, "List the addresses of an egress gateway", api.Read((*Server).listIPs)),
	api.POST("/vpcs/{vpc}/egressgateways/{gateway}/ips", access.Admin, "Give an egress gateway an address", api.Write[doze.NetworkResource]((*Server).createIP).
		About("Without a free address it is FAILED, and gets the next one that is free.")),
	api.GET("/vpcs/{vpc}/egressgateways/{gateway}/ips/{ip}", access.Admin, "Read an address of an egress gateway", api.Read((*Server).ipOf)),
	api.DELETE("/vpcs/{vpc}/egressgateways/{gateway}/ips/{ip}", access.Admin, "Take an address from an egress gateway", api.Read((*Server).deleteIP).
		About("It is 409 for the last address of an egress gateway that sandboxes use.")),
	api.GET("/egressgateways", access.Admin, "List the egress gateways of the workspace", api.Read((*Server).allGateways)),
	api.GET("/egressgateways/usage", access.Admin, "List the sandboxes by their egress gateway", api.Read((*Server).gatewayUsage)),
	api.GET("/egressips", access.Admin, "List the egress addresses of the workspace", api.Read((*Server).allIPs)),
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
