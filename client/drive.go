package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"doze"
)

// Drives returns those of the workspace, newest first, page by page. It ends
// after the first error.
func (c *Client) Drives(ctx context.Context) iter.Seq2[doze.Drive, error] {
	return all[doze.Drive](ctx, c, "/drives", url.Values{})
}

// Drive returns one by its name.
func (c *Client) Drive(ctx context.Context, name string) (doze.Drive, error) {
	return resource[doze.Drive](ctx, c, http.MethodGet, nil, "drives", name)
}

// CreateDrive makes a drive. A platform without a bucket for drives answers
// Unsupported.
func (c *Client) CreateDrive(ctx context.Context, d doze.Drive) (doze.Drive, error) {
	return resource[doze.Drive](ctx, c, http.MethodPost, d, "drives")
}

// UpdateDrive changes the metadata and the permissions of a drive.
func (c *Client) UpdateDrive(ctx context.Context, d doze.Drive) (doze.Drive, error) {
	return resource[doze.Drive](ctx, c, http.MethodPut, d, "drives", d.Metadata.Name)
}

// DeleteDrive removes a drive and all that is in it.
func (c *Client) DeleteDrive(ctx context.Context, name string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "drives", name)
	return err
}
