package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/dozehq/doze"
)

const tarType = "application/x-tar"

// archiveOf is the address of the archive of an image, with or without a tag.
func (c *Client) archiveOf(name string) string {
	return c.base + "/images/" + doze.KindSandbox + "/" + url.PathEscape(name) + "/archive"
}

// SaveImage returns an image of the workspace, or one that is shared with it, as a tar.
// The tar is an OCI layout with one layer, and docker loads it too. Without a tag it is
// the default one. The caller closes it. If it breaks off, the reader has an error.
func (c *Client) SaveImage(ctx context.Context, name string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, url: c.archiveOf(name), header: http.Header{"Accept": {tarType}}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// LoadImage gives an image of an archive a name, with or without a tag, in the
// workspace. The archive is a tar with an OCI layout, or what docker saves, of one image.
func (c *Client) LoadImage(ctx context.Context, name string, archive io.Reader) (doze.ImageResponse, error) {
	resp, err := c.send(ctx, call{method: http.MethodPut, url: c.archiveOf(name), header: http.Header{"Content-Type": {tarType}}, body: archive})
	if err != nil {
		return doze.ImageResponse{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode[doze.ImageResponse](ctx, resp)
}
