package control

import (
	"context"
	"net/http"
	"slices"

	"github.com/dozehq/doze"
)

// HubImage is an image that we offer (section 6.5 of the public API).
type HubImage struct {
	Name            string         `json:"name"`
	DisplayName     string         `json:"displayName"`
	Image           string         `json:"image"`
	Memory          doze.Megabytes `json:"memory"`
	Ports           []doze.Port    `json:"ports"`
	Categories      []string       `json:"categories"`
	Description     string         `json:"description"`
	LongDescription string         `json:"longDescription,omitempty"`
	Icon            string         `json:"icon,omitempty"`
	URL             string         `json:"url,omitempty"`
	Tags            string         `json:"tags,omitempty"`
	Enterprise      bool           `json:"enterprise"`
	ComingSoon      bool           `json:"coming_soon"`
	Hidden          bool           `json:"hidden"`
}

func (s *Server) hub(context.Context, *http.Request) ([]HubImage, error) {
	return append([]HubImage{}, slices.Clone(s.Hub)...), nil
}
