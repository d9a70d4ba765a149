package client

import (
	"context"
	"net/http"

	"github.com/dozehq/doze"
)

// Images returns the images of the workspace, and those that others share with
// it.
func (c *Client) Images(ctx context.Context) ([]doze.Image, error) {
	return resource[[]doze.Image](ctx, c, http.MethodGet, nil, "images")
}

// Image returns an image of the workspace, or one that others share with it. One that is built
// for the first time has the status of its build, and no tags.
func (c *Client) Image(ctx context.Context, name string) (doze.Image, error) {
	return resource[doze.Image](ctx, c, http.MethodGet, nil, "images", doze.KindSandbox, name)
}

// CreateImage gives an image of a registry a name, with or without a tag, in the
// workspace. It returns when the server has pulled it.
func (c *Client) CreateImage(ctx context.Context, name, source string) (doze.ImageResponse, error) {
	in := doze.ImageRequest{Name: name, ResourceType: doze.KindSandbox, Image: source}
	return resource[doze.ImageResponse](ctx, c, http.MethodPost, in, "images")
}

// DeleteImage removes an image, or with a name like app:1.0 one of its tags.
func (c *Client) DeleteImage(ctx context.Context, name string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "images", doze.KindSandbox, name)
	return err
}

// CleanImages removes the tags that no sandbox has, and returns their number.
func (c *Client) CleanImages(ctx context.Context) (int, error) {
	out, err := resource[struct {
		Deleted int `json:"deleted"`
	}](ctx, c, http.MethodDelete, nil, "images")
	return out.Deleted, err
}

// ShareImage lets another workspace use an image.
func (c *Client) ShareImage(ctx context.Context, name, workspace string) error {
	_, err := resource[doze.Image](ctx, c, http.MethodPost, map[string]string{"targetWorkspace": workspace}, "images", doze.KindSandbox, name, "share")
	return err
}

// UnshareImage ends that.
func (c *Client) UnshareImage(ctx context.Context, name, workspace string) error {
	_, err := resource[doze.Image](ctx, c, http.MethodDelete, nil, "images", doze.KindSandbox, name, "share", workspace)
	return err
}

// A CatalogImage is an image that the platform offers.
type CatalogImage struct {
	Name        string         `json:"name"`
	DisplayName string         `json:"displayName"`
	Image       string         `json:"image"`
	Memory      doze.Megabytes `json:"memory"`
	Ports       []doze.Port    `json:"ports"`
	Categories  []string       `json:"categories"`
	Description string         `json:"description"`
}

// Catalog returns the images that the platform offers.
func (c *Client) Catalog(ctx context.Context) ([]CatalogImage, error) {
	return resource[[]CatalogImage](ctx, c, http.MethodGet, nil, "sandbox", "hub")
}
