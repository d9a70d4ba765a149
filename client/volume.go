package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"

	"github.com/dozehq/doze"
)

// uploadHeader has the address that the files of a new version are put to.
const uploadHeader = "X-Blaxel-Upload-Url"

// Volumes returns those of the workspace, newest first, page by page. It ends
// after the first error.
func (c *Client) Volumes(ctx context.Context) iter.Seq2[doze.Volume, error] {
	return all[doze.Volume](ctx, c, "/volumes", url.Values{})
}

// Volume returns one by its name.
func (c *Client) Volume(ctx context.Context, name string) (doze.Volume, error) {
	return resource[doze.Volume](ctx, c, http.MethodGet, nil, "volumes", name)
}

// CreateVolume makes a volume and returns it when it can be attached: by
// [doze.SandboxSpec.Volumes] of a sandbox that is created.
func (c *Client) CreateVolume(ctx context.Context, v doze.Volume) (doze.Volume, error) {
	return resource[doze.Volume](ctx, c, http.MethodPost, v, "volumes")
}

// UpdateVolume changes the metadata of a volume, and its size upwards. The next
// sandbox that it is attached to sees the new size.
func (c *Client) UpdateVolume(ctx context.Context, v doze.Volume) (doze.Volume, error) {
	return resource[doze.Volume](ctx, c, http.MethodPut, v, "volumes", v.Metadata.Name)
}

// DeleteVolume removes a volume and all that is in it. One that a sandbox has is
// a Conflict.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	_, err := resource[doze.Volume](ctx, c, http.MethodDelete, nil, "volumes", name)
	return err
}

// VolumeTemplates returns those of the workspace.
func (c *Client) VolumeTemplates(ctx context.Context) ([]doze.VolumeTemplate, error) {
	return resource[[]doze.VolumeTemplate](ctx, c, http.MethodGet, nil, "volume_templates")
}

// VolumeTemplate returns one by its name.
func (c *Client) VolumeTemplate(ctx context.Context, name string) (doze.VolumeTemplate, error) {
	return resource[doze.VolumeTemplate](ctx, c, http.MethodGet, nil, "volume_templates", name)
}

// UploadVolumeTemplate gives a template another version with the files of a tar,
// of which it reads all. If there is no such template it is created. A version
// without a name gets the next number.
func (c *Client) UploadVolumeTemplate(ctx context.Context, t doze.VolumeTemplate, version string, archive io.Reader) (doze.VolumeTemplate, error) {
	query := "?" + url.Values{"upload": {"true"}, "version": {version}}.Encode()
	at, err := c.offer(ctx, "/volume_templates/"+url.PathEscape(t.Metadata.Name)+query, t)
	if err != nil {
		return doze.VolumeTemplate{}, err
	}
	resp, err := c.send(ctx, call{method: http.MethodPut, url: at, header: http.Header{"Content-Type": {"application/x-tar"}}, body: archive})
	if err != nil {
		return doze.VolumeTemplate{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return c.VolumeTemplate(ctx, t.Metadata.Name)
}

// offer writes a template and returns where the files of its new version are to
// be put.
func (c *Client) offer(ctx context.Context, path string, t doze.VolumeTemplate) (string, error) {
	q, err := request(http.MethodPut, c.base+path, t)
	if err != nil {
		return "", err
	}
	resp, err := c.send(ctx, q)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	at := resp.Header.Get(uploadHeader)
	if at == "" {
		return "", doze.Errorf(doze.Unavailable, "the server did not say where to upload to")
	}
	return at, nil
}

// DeleteVolumeTemplate removes a template with all its versions. Volumes that
// were made from it live on.
func (c *Client) DeleteVolumeTemplate(ctx context.Context, name string) error {
	_, err := resource[doze.VolumeTemplate](ctx, c, http.MethodDelete, nil, "volume_templates", name)
	return err
}

// DeleteVolumeTemplateVersion removes one version, unless it is the only one.
func (c *Client) DeleteVolumeTemplateVersion(ctx context.Context, name, version string) error {
	_, err := resource[any](ctx, c, http.MethodDelete, nil, "volume_templates", name, "versions", version)
	return err
}
