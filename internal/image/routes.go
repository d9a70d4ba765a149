package image

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/build"
	"github.com/dozehq/doze/internal/openapi"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/images", access.Admin, "List the images of the workspace", api.Read((*Server).listImages)),
	api.POST("/images", access.Admin, "Import or build an image", api.Offer[doze.ImageRequest](build.UploadHeader, (*Server).createImage).Asks("upload", "skip-build").
		About("The answer comes when the image is pulled. A name that exists means the new image from then on. "+
			"With upload=true and no image, the header X-Blaxel-Upload-Url of the answer says where the files of a build are to be put.")),
	api.DELETE("/images", access.Admin, "Delete the image tags without a sandbox", api.Read((*Server).cleanImages)),
	api.GET("/images/{type}/{image}", access.Admin, "Read an image", api.Read((*Server).image)),
	api.DELETE("/images/{type}/{image}", access.Admin, "Delete an image", api.Read((*Server).deleteImage).
		About("It is 400 while a sandbox has the image.")),
	api.DELETE("/images/{type}/{image}/tags/{tag}", access.Admin, "Delete a tag of an image", api.Read((*Server).deleteImage).
		About("It is 400 while a sandbox has the image under this tag.")),
	api.GET("/images/{type}/{image}/archive", access.Admin, "Download an image", api.Download((*Server).saveImage).
		About("The answer is an OCI layout with one layer, which docker loads too. Write the tag behind the name, as in app:1.0; it is latest by default.")),
	api.PUT("/images/{type}/{image}/archive", access.Admin, "Upload an image", api.Read((*Server).loadImage).Takes(api.TarType).
		About("The body is an OCI layout, or what docker saves, of one image for the machines of the platform. A name that exists means the new image from then on.")),
	api.GET("/images/{type}/{image}/share", access.Admin, "List who may use an image", api.Read((*Server).listImageShares)),
	api.POST("/images/{type}/{image}/share", access.Admin, "Share an image with a workspace", api.Write[api.ShareRequest]((*Server).shareImage)),
	api.DELETE("/images/{type}/{image}/share/{target}", access.Admin, "Stop sharing an image with a workspace", api.Read((*Server).unshareImage)),
	api.GET("/pending-image-shares", access.Admin, "List the shares that await an answer", api.Read((*Server).pendingImageShares).Asks("direction").
		About("There are none: a share counts at once.")),
	api.POST("/pending-image-shares/{share}/accept", access.Admin, "Accept a share of an image", api.Read((*Server).answerImageShare).
		About("It is 404, since no share awaits an answer.")),
	api.POST("/pending-image-shares/{share}/decline", access.Admin, "Decline a share of an image", api.Read((*Server).answerImageShare).
		About("It is 404, since no share awaits an answer.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section {
	return api.Section{
		Routes: api.Bind(s, rows),
		Tolerated: []api.Tolerated{
			{
				Of: reflect.TypeFor[doze.ImageRequest](), Paths: []string{"generation", "dockerConfig"},
				Why: "the clients send them for builds, and with images that are built already",
			},
		},
		Schemas: openapi.Schemas{
			Members: map[string]openapi.Schema{
				"ImageRequest.image":   api.Text("in a registry; leave it out to build one"),
				"ImageMetadata.status": api.Words(doze.ImageBuilt, doze.BuildUploading, doze.BuildBuilding, doze.BuildDeploying, doze.BuildFailed),
			},
			Needs: map[string][]string{
				"ImageRequest": {"name"},
			},
		},
	}
}
