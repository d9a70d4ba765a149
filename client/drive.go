package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/dozehq/doze"
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

// MountDrive puts a drive into the sandbox, which must have a label for each that
// the drive asks for, or that is Forbidden. The same mount again changes nothing;
// a path that has something else is a Conflict.
func (b *Agent) MountDrive(ctx context.Context, m doze.DriveMount) (doze.DriveMount, error) {
	return exchange[doze.DriveMount](ctx, b.c, http.MethodPost, b.base+"/drives/mount", m)
}

// DriveMounts returns the drives that are mounted.
func (b *Agent) DriveMounts(ctx context.Context) ([]doze.DriveMount, error) {
	got, err := exchange[struct{ Mounts []doze.DriveMount }](ctx, b.c, http.MethodGet, b.base+"/drives/mount", nil)
	return got.Mounts, err
}

// UnmountDrive takes the drive away that is mounted on a path. While a process
// has a file of it open, it stays, and that is an error.
func (b *Agent) UnmountDrive(ctx context.Context, path string) error {
	_, err := exchange[any](ctx, b.c, http.MethodDelete, b.base+"/drives/mount/"+url.PathEscape(path), nil)
	return err
}
