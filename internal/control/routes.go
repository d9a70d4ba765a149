package control

import (
	"net/http"
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/sandboxes", "sandboxes:list", "List sandboxes", api.Read((*Server).listSandboxes).Asks("labels", "status", "externalId", "showTerminated")),
	api.POST("/sandboxes", "sandboxes:create", "Create a sandbox", api.Offer[doze.Sandbox](uploadHeader, (*Server).createSandbox).Asks("createIfNotExist", "upload").Together().
		About("The answer comes when the sandbox is deployed. A name that a sandbox has is 409, unless createIfNotExist is true. "+
			"With upload=true it comes at once, and its header X-Blaxel-Upload-Url says where the files of the image are to be put.")),
	api.GET("/sandboxes/{name}", "sandboxes:get", "Read a sandbox", api.Read((*Server).sandbox).Asks("show_secrets").
		About("It wakes nothing.")),
	api.PUT("/sandboxes/{name}", "sandboxes:update", "Update a sandbox", api.Offer[doze.Sandbox](uploadHeader, (*Server).updateSandbox).Asks("upload").
		About("A change of the image, the memory or the variables replaces the machine, and its content is lost. "+
			"With upload=true the change is made when an image is built of the files that are put to the address in the header X-Blaxel-Upload-Url.")),
	api.DELETE("/sandboxes/{name}", "sandboxes:delete", "Delete a sandbox", api.Read((*Server).deleteSandbox).
		About("Its name is free at once. Its record stays until spec.lifecycle.terminatedRetention is over.")),
	api.GET("/sandboxes/by-external-id/{externalId}", "sandboxes:get", "Read the newest sandbox with an external id", api.Read((*Server).sandboxByExternalID)),
	api.GET("/configuration", "configurations:list", "Read the configuration of the platform", api.Read((*Server).configuration)),
	api.GET("/locations", "locations:list", "List the regions", api.Read((*Server).locations)),
	api.GET("/publicIps", "locations:list", "List the regions with their addresses", api.Read((*Server).publicIPs).Asks("region").
		About("The lists of addresses are empty: the operator knows them.")),
	api.GET("/features", "configurations:list", "List the features that are on", api.Read((*Server).features).
		About("There are none.")),
	api.GET("/features/{feature}", "configurations:list", "Read a feature", api.Read((*Server).feature).
		About("Every feature is off, whatever its name.")),
	api.GET("/observability/logs", "sandboxes:get", "Read events and output of sandboxes", api.Read((*Server).logs).Asks("start", "end", "resourceType", "workloadIds", "type", "severity", "search", "process", "order", "limit", "cursor").
		About("It wakes nothing.")),
	api.GET("/sandbox/hub", "sandboxhub:list", "List the images of the platform", api.Read((*Server).hub)),

	api.GET("/sandboxes/{name}/traces", "sandboxes:get", "List the traces of a sandbox", api.Read((*Server).traces).
		About("A trace says where the time of a wake or a create went.")),
	api.GET("/sandboxes/{name}/usage", "sandboxes:get", "Read the usage of a sandbox", api.Read((*Server).usage).
		About("It wakes nothing.")),
	api.GET("/sandboxes/{name}/egress", "sandboxes:get", "Read where a sandbox connected to", api.Read(sandboxEgress).
		About("The last destinations, allowed and refused, with the rule that decided. It wakes nothing.")),
	api.GET("/usage/sandboxes", "sandboxes:list", "List the usage of sandboxes", api.Read((*Server).listUsage).Asks("labels", "status", "externalId", "showTerminated").
		About("It wakes nothing.")),
	api.POST("/sandboxes/{name}/sleep", "sandboxes:control", "Put a sandbox to sleep", api.Read(sleepSandbox).Asks("tier")),
	api.POST("/sandboxes/{name}/wake", "sandboxes:control", "Wake a sandbox", api.Read(wakeSandbox)),
	api.POST("/sandboxes/{name}/tickets", "sandboxes:control", "Create a ticket for the terminal", api.Read((*Server).createTicket).
		About("A ticket opens one terminal, and is good for 30 seconds.")),

	api.GET("/snapshots", "sandboxes:list", "List snapshots", api.Read((*Server).listSnapshots).Asks("status")),
	api.POST("/snapshots", "sandboxes:update", "Create a snapshot of any sandbox", api.Write[doze.SnapshotRequest]((*Server).createSnapshot).
		About("The answer comes when the snapshot is ready. Requests to a sandbox that runs wait for a moment meanwhile.")),
	api.GET("/snapshots/{snapshot}", "sandboxes:get", "Read a snapshot", api.Read((*Server).snapshot).
		About("A name that several snapshots have is 409: send the id.")),
	api.DELETE("/snapshots/{snapshot}", "sandboxes:delete", "Delete a snapshot", api.Read((*Server).deleteSnapshot).
		About("Its forks go on.")),
	api.POST("/snapshots/{snapshot}/fork", "sandboxes:create", "Fork a snapshot", api.Write[doze.ForkRequest]((*Server).forkSnapshot).
		About("The answer comes when the fork is deployed. Memory is copied as it is, with the secrets in it.")),
	api.GET("/sandboxes/{name}/snapshots", "sandboxes:get", "List the snapshots of a sandbox", api.Read((*Server).snapshotsOf)),
	api.POST("/sandboxes/{name}/snapshots", "sandboxes:update", "Create a snapshot of a sandbox", api.Write[doze.SnapshotRequest]((*Server).createSnapshot).
		About("The answer comes when the snapshot is ready. Requests to a sandbox that runs wait for a moment meanwhile.")),
	api.DELETE("/sandboxes/{name}/snapshots/{snapshot}", "sandboxes:delete", "Delete a snapshot of a sandbox", api.Read((*Server).deleteSnapshot).
		About("Its forks go on.")),
	api.POST("/sandboxes/{name}/snapshots/{snapshot}/restore", "sandboxes:update", "Restore a sandbox from its snapshot", api.Read((*Server).restoreSnapshot).
		About("What the sandbox did since the snapshot is lost.")),
	api.POST("/sandboxes/{name}/fork", "sandboxes:create", "Fork a sandbox", api.Write[doze.ForkRequest]((*Server).forkSandbox).
		About("Without snapshotId, it takes a snapshot first, which stays. Memory is copied as it is, with the secrets in it.")),
	api.POST("/sandboxes/{name}/archive", "sandboxes:update", "Archive a sandbox", api.Read((*Server).archiveSandbox).
		About("Memory is lost. The answer comes at once, and the sandbox is ARCHIVED later. No request wakes it then.")),
	api.POST("/sandboxes/{name}/unarchive", "sandboxes:update", "Unarchive a sandbox", api.Read((*Server).unarchiveSandbox).
		About("The answer comes at once, and the sandbox is DEPLOYED later.")),

	api.GET("/volumes", "volumes:list", "List volumes", api.Read((*Server).listVolumes).Asks("labels", "status", "externalId")),
	api.POST("/volumes", "volumes:create", "Create a volume", api.Write[doze.Volume]((*Server).createVolume).
		About("The answer comes when the volume can be attached.")),
	api.GET("/volumes/{volume}", "volumes:get", "Read a volume", api.Read((*Server).volume)),
	api.GET("/volumes/by-external-id/{externalId}", "volumes:get", "Read the newest volume with an external id", api.Read((*Server).volumeByExternalID)),
	api.PUT("/volumes/{volume}", "volumes:create", "Update a volume", api.Write[doze.Volume]((*Server).updateVolume)),
	api.DELETE("/volumes/{volume}", "volumes:delete", "Delete a volume", api.Read((*Server).deleteVolume).
		About("It is 409 while a sandbox has the volume.")),

	api.GET("/drives", "volumes:list", "List drives", api.Read((*Server).listDrives).Asks("labels", "status", "externalId")),
	api.POST("/drives", "volumes:create", "Create a drive", api.Write[doze.Drive]((*Server).createDrive).
		About("It is 501 on a platform without a bucket for drives.")),
	api.GET("/drives/jwks.json", "", "Read the keys that verify drive tokens", api.Read((*Server).driveKeys)),
	api.GET("/drives/{drive}", "volumes:get", "Read a drive", api.Read((*Server).drive)),
	api.GET("/drives/by-external-id/{externalId}", "volumes:get", "Read the newest drive with an external id", api.Read((*Server).driveByExternalID)),
	api.PUT("/drives/{drive}", "volumes:create", "Update a drive", api.Write[doze.Drive]((*Server).updateDrive)),
	api.DELETE("/drives/{drive}", "volumes:delete", "Delete a drive", api.Read((*Server).deleteDrive).
		About("It is 409 while a sandbox has the drive mounted.")),
	api.POST("/drives/{drive}/access-token", "volumes:get", "Create an access token for a drive", api.Read((*Server).driveToken)),

	api.GET("/volume_templates", "volumeTemplates:list", "List volume templates", api.Read((*Server).listVolumeTemplates).Asks("labels")),
	api.POST("/volume_templates", "volumeTemplates:create", "Create a volume template", api.Offer[doze.VolumeTemplate](uploadHeader, (*Server).createVolumeTemplate).Asks("upload", "version").Together().
		About("With upload=true, the header X-Blaxel-Upload-Url of the answer says where its files are to be put.")),
	api.GET("/volume_templates/{template}", "volumeTemplates:get", "Read a volume template", api.Read((*Server).volumeTemplate)),
	api.PUT("/volume_templates/{template}", "volumeTemplates:upsert", "Create or update a volume template", api.Offer[doze.VolumeTemplate](uploadHeader, (*Server).putVolumeTemplate).Asks("upload", "version").Together().
		About("With upload=true, the header X-Blaxel-Upload-Url of the answer says where its files are to be put.")),
	api.DELETE("/volume_templates/{template}", "volumeTemplates:delete", "Delete a volume template", api.Read((*Server).deleteVolumeTemplate).
		About("Volumes that were made of it stay as they are.")),
	api.DELETE("/volume_templates/{template}/versions/{version}", "volumeTemplates:delete", "Delete a version of a volume template", api.Read((*Server).deleteVersion).
		About("It is 400 for the only version.")),
	api.PUT("/uploads/{upload}", "", "Upload the files of a volume template", api.Read((*Server).upload).Takes(api.TarType).Asks("token").
		About("The address is the credential.")), // the address is the credential
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
		Of: reflect.TypeFor[doze.Sandbox](), Paths: []string{"dockerConfig", "skipBuild", "spec.runtime.dockerConfig", "spec.runtime.skipBuild"},
		Why: "the command line of the clients sends them: credentials for registries are secrets, or in the files of a build",
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
