package client

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"

	"github.com/dozehq/doze"
)

// buildLineMax bounds a line of the log of a build, in bytes.
const buildLineMax = 1 << 20

// Builds returns the builds of the workspace, the newest first.
func (c *Client) Builds(ctx context.Context) ([]doze.Build, error) {
	return resource[[]doze.Build](ctx, c, http.MethodGet, nil, "builds")
}

// Build returns a build by its id.
func (c *Client) Build(ctx context.Context, id string) (doze.Build, error) {
	return resource[doze.Build](ctx, c, http.MethodGet, nil, "builds", id)
}

// CreateBuild asks for a build of an image. It begins when [Client.UploadBuild] has sent its
// files.
func (c *Client) CreateBuild(ctx context.Context, in doze.BuildRequest) (doze.Build, error) {
	return resource[doze.Build](ctx, c, http.MethodPost, in, "builds")
}

// UploadBuild sends the files of a build that [Client.CreateBuild] returned: a zip, a tar or a
// tar.gz. The key of the client is not sent: the address is the credential.
func (c *Client) UploadBuild(ctx context.Context, b doze.Build, archive io.Reader) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, b.UploadURL, archive)
	if err != nil {
		return doze.Wrap(err, doze.Invalid, "the address %q is not usable", b.UploadURL)
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	resp, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return doze.Wrap(err, doze.Unavailable, "%s does not take the files", r.URL.Host)
	}
	defer func() { _ = resp.Body.Close() }()
	return readError(resp)
}

// CancelBuild ends a build that has not ended. One that has is a Conflict.
func (c *Client) CancelBuild(ctx context.Context, id string) (doze.Build, error) {
	return resource[doze.Build](ctx, c, http.MethodDelete, nil, "builds", id)
}

// BuildLog returns the log of a build, to its end with follow. The last line has a status if
// the build has ended. A connection that breaks is an error, after which the log can be
// asked for again.
func (c *Client) BuildLog(ctx context.Context, id string, follow bool) iter.Seq2[doze.BuildEvent, error] {
	return func(yield func(doze.BuildEvent, error) bool) {
		address := c.base + "/builds/" + url.PathEscape(id) + "/logs"
		if follow {
			address += "?follow=true"
		}
		resp, err := c.send(ctx, call{method: http.MethodGet, url: address})
		if err != nil {
			yield(doze.BuildEvent{}, err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, buildLineMax)
		for lines.Scan() {
			var e doze.BuildEvent
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				yield(e, doze.Wrap(err, doze.Unavailable, "the server sent an unexpected line"))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			} else {
				err = doze.Wrap(err, doze.Unavailable, "the log of the build ended early")
			}
			yield(doze.BuildEvent{}, err)
		}
	}
}
