package image

import (
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/images", access.Admin, api.Read((*Server).listImages)),
	api.POST("/images", access.Admin, api.Write[doze.ImageRequest]((*Server).createImage)),
	api.DELETE("/images", access.Admin, api.Read((*Server).cleanImages)),
	api.GET("/images/{type}/{image}", access.Admin, api.Read((*Server).image)),
	api.DELETE("/images/{type}/{image}", access.Admin, api.Read((*Server).deleteImage)),
	api.DELETE("/images/{type}/{image}/tags/{tag}", access.Admin, api.Read((*Server).deleteImage)),
	api.GET("/images/{type}/{image}/share", access.Admin, api.Read((*Server).listImageShares)),
	api.POST("/images/{type}/{image}/share", access.Admin, api.Write[api.ShareRequest]((*Server).shareImage)),
	api.DELETE("/images/{type}/{image}/share/{target}", access.Admin, api.Read((*Server).unshareImage)),
	api.GET("/pending-image-shares", access.Admin, api.Read((*Server).pendingImageShares).Asks("direction")),
	api.POST("/pending-image-shares/{share}/accept", access.Admin, api.Read((*Server).answerImageShare)),
	api.POST("/pending-image-shares/{share}/decline", access.Admin, api.Read((*Server).answerImageShare)),
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
				"ImageRequest.image": api.Text("in a registry"),
			},
			Needs: map[string][]string{
				"ImageRequest": {"name", "image"},
			},
		},
	}
}
