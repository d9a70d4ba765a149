package control

import (
	"net/http"
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/sandboxes", "sandboxes:list", api.Read((*Server).listSandboxes).Asks("labels", "status", "externalId", "showTerminated")),
	api.POST("/sandboxes", "sandboxes:create", api.Write[doze.Sandbox]((*Server).createSandbox).Asks("createIfNotExist").Together()),
	api.GET("/sandboxes/{name}", "sandboxes:get", api.Read((*Server).sandbox).Asks("show_secrets")),
	api.PUT("/sandboxes/{name}", "sandboxes:update", api.Write[doze.Sandbox]((*Server).updateSandbox)),
	api.DELETE("/sandboxes/{name}", "sandboxes:delete", api.Read((*Server).deleteSandbox)),
	api.GET("/sandboxes/by-external-id/{externalId}", "sandboxes:get", api.Read((*Server).sandboxByExternalID)),
	api.GET("/configuration", "configurations:list", api.Read((*Server).configuration)),
	api.GET("/locations", "locations:list", api.Read((*Server).locations)),
	api.GET("/publicIps", "locations:list", api.Read((*Server).publicIPs).Asks("region")),
	api.GET("/features", "configurations:list", api.Read((*Server).features)),
	api.GET("/features/{feature}", "configurations:list", api.Read((*Server).feature)),
	api.GET("/observability/logs", "sandboxes:get", api.Read((*Server).logs).Asks("start", "end", "resourceType", "workloadIds", "type", "severity", "search", "process", "order", "limit", "cursor")),
	api.GET("/sandbox/hub", "sandboxhub:list", api.Read((*Server).hub)),

	api.GET("/sandboxes/{name}/traces", "sandboxes:get", api.Read((*Server).traces)),
	api.GET("/sandboxes/{name}/usage", "sandboxes:get", api.Read((*Server).usage)),
	api.GET("/usage/sandboxes", "sandboxes:list", api.Read((*Server).listUsage).Asks("labels", "status", "externalId", "showTerminated")),
	api.POST("/sandboxes/{name}/sleep", "sandboxes:control", api.Read(sleepSandbox).Asks("tier")),
	api.POST("/sandboxes/{name}/wake", "sandboxes:control", api.Read(wakeSandbox)),
	api.POST("/sandboxes/{name}/tickets", "sandboxes:control", api.Read((*Server).createTicket)),

	api.GET("/snapshots", "sandboxes:list", api.Read((*Server).listSnapshots).Asks("status")),
	api.POST("/snapshots", "sandboxes:update", api.Write[doze.SnapshotRequest]((*Server).createSnapshot)),
	api.GET("/snapshots/{snapshot}", "sandboxes:get", api.Read((*Server).snapshot)),
	api.DELETE("/snapshots/{snapshot}", "sandboxes:delete", api.Read((*Server).deleteSnapshot)),
	api.POST("/snapshots/{snapshot}/fork", "sandboxes:create", api.Write[doze.ForkRequest]((*Server).forkSnapshot)),
	api.GET("/sandboxes/{name}/snapshots", "sandboxes:get", api.Read((*Server).snapshotsOf)),
	api.POST("/sandboxes/{name}/snapshots", "sandboxes:update", api.Write[doze.SnapshotRequest]((*Server).createSnapshot)),
	api.DELETE("/sandboxes/{name}/snapshots/{snapshot}", "sandboxes:delete", api.Read((*Server).deleteSnapshot)),
	api.POST("/sandboxes/{name}/snapshots/{snapshot}/restore", "sandboxes:update", api.Read((*Server).restoreSnapshot)),
	api.POST("/sandboxes/{name}/fork", "sandboxes:create", api.Write[doze.ForkRequest]((*Server).forkSandbox)),
	api.POST("/sandboxes/{name}/archive", "sandboxes:update", api.Read((*Server).archiveSandbox)),
	api.POST("/sandboxes/{name}/unarchive", "sandboxes:update", api.Read((*Server).unarchiveSandbox)),

	api.GET("/volumes", "volumes:list", api.Read((*Server).listVolumes).Asks("labels", "status", "externalId")),
	api.POST("/volumes", "volumes:create", api.Write[doze.Volume]((*Server).createVolume)),
	api.GET("/volumes/{volume}", "volumes:get", api.Read((*Server).volume)),
	api.GET("/volumes/by-external-id/{externalId}", "volumes:get", api.Read((*Server).volumeByExternalID)),
	api.PUT("/volumes/{volume}", "volumes:create", api.Write[doze.Volume]((*Server).updateVolume)),
	api.DELETE("/volumes/{volume}", "volumes:delete", api.Read((*Server).deleteVolume)),

	api.GET("/drives", "volumes:list", api.Read((*Server).listDrives).Asks("labels", "status", "externalId")),
	api.POST("/drives", "volumes:create", api.Write[doze.Drive]((*Server).createDrive)),
	api.GET("/drives/jwks.json", "", api.Read((*Server).driveKeys)),
	api.GET("/drives/{drive}", "volumes:get", api.Read((*Server).drive)),
	api.GET("/drives/by-external-id/{externalId}", "volumes:get", api.Read((*Server).driveByExternalID)),
	api.PUT("/drives/{drive}", "volumes:create", api.Write[doze.Drive]((*Server).updateDrive)),
	api.DELETE("/drives/{drive}", "volumes:delete", api.Read((*Server).deleteDrive)),
	api.POST("/drives/{drive}/access-token", "volumes:get", api.Read((*Server).driveToken)),

	api.GET("/volume_templates", "volumeTemplates:list", api.Read((*Server).listVolumeTemplates).Asks("labels")),
	api.POST("/volume_templates", "volumeTemplates:create", api.Offer[doze.VolumeTemplate](uploadHeader, (*Server).createVolumeTemplate).Asks("upload", "version").Together()),
	api.GET("/volume_templates/{template}", "volumeTemplates:get", api.Read((*Server).volumeTemplate)),
	api.PUT("/volume_templates/{template}", "volumeTemplates:upsert", api.Offer[doze.VolumeTemplate](uploadHeader, (*Server).putVolumeTemplate).Asks("upload", "version").Together()),
	api.DELETE("/volume_templates/{template}", "volumeTemplates:delete", api.Read((*Server).deleteVolumeTemplate)),
	api.DELETE("/volume_templates/{template}/versions/{version}", "volumeTemplates:delete", api.Read((*Server).deleteVersion)),
	api.PUT("/uploads/{upload}", "", api.Read((*Server).upload).Takes(api.TarType).Asks("token")), // the address is the credential
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	return api.Section{Routes: api.Bind(s, rows), Schemas: schemas(), Tolerated: tolerated}
}

// tolerated are members that clients send to no effect.
var tolerated = []api.Tolerated{
	{
		Of: reflect.TypeFor[doze.Sandbox](), Paths: []string{"spec.runtime.generation", "spec.runtime.snapshotEnabled"},
		Why: "the clients send them with each create; every sandbox has what they ask for",
	},
	{
		Of: reflect.TypeFor[doze.Sandbox](), Paths: []string{"dockerConfig", "skipBuild"},
		Why: "the command line of the clients sends them with an image that is built already",
	},
	{
		Of: reflect.TypeFor[doze.Sandbox](), Method: http.MethodPut,
		Paths: []string{"enabled", "lifecycle", "network", "region", "runtime", "volumes", "vpc"},
		Why:   "updates of the clients have the members of spec at the top too: those in spec count",
	},
	{
		Of: reflect.TypeFor[doze.Sandbox](), Paths: []string{"errors"},
		Why: "the type of the clients has it, for what went wrong with a host",
	},
	{
		Of: reflect.TypeFor[doze.Volume](), Paths: []string{"terminatedAt"},
		Why: "the type of the clients has it, for a volume that is gone",
	},
}
