package client

import (
	"bytes"
	"context"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"strings"

	"doze"
)

// File is an entry of a directory.
type File struct {
	Path         string `json:"path"`
	Name         string `json:"name"`
	Permissions  string `json:"permissions"` // octal
	Size         int64  `json:"size"`
	LastModified string `json:"lastModified"`
	Owner        string `json:"owner"`
	Group        string `json:"group"`
}

// Directory is a listing, one level deep.
type Directory struct {
	Path           string         `json:"path"`
	Name           string         `json:"name"`
	Files          []File         `json:"files"`
	Subdirectories []Subdirectory `json:"subdirectories"`
}

// Subdirectory is a directory in a listing.
type Subdirectory struct {
	Path string `json:"path"`
	Name string `json:"name"`
}

// Done is how a sandbox confirms a change.
type Done struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// filePath spells a path for an address. The server takes a path with an
// escaped slash for absolute, and one without for relative.
func filePath(name string) string {
	if path.IsAbs(name) {
		return url.PathEscape(name)
	}
	segments := strings.Split(name, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}

func (b *Box) file(name string) string { return b.base + "/filesystem/" + filePath(name) }

// ReadFile returns the content of a file. The caller closes it.
func (b *Box) ReadFile(ctx context.Context, name string) (io.ReadCloser, error) {
	resp, err := b.c.send(ctx, call{
		method: http.MethodGet, url: b.file(name),
		header: http.Header{"Accept": {"application/octet-stream"}},
	})
	if err != nil {
		return nil, err
	}
	if resp.Header.Get("Content-Disposition") == "" {
		_ = resp.Body.Close()
		return nil, doze.Errorf(doze.Invalid, "%s is a directory", name)
	}
	return resp.Body, nil
}

// WriteFile creates or replaces a file, and creates the directories above it.
// Permissions are octal, such as 0644, and count for a new file; empty means
// the default of the server.
func (b *Box) WriteFile(ctx context.Context, name string, content io.Reader, permissions string) (Done, error) {
	var head, tail bytes.Buffer
	form := multipart.NewWriter(&head)
	if permissions != "" {
		_ = form.WriteField("permissions", permissions) // a buffer takes everything
	}
	_, _ = form.CreateFormFile("file", path.Base(name))
	tail.WriteString("\r\n--" + form.Boundary() + "--\r\n")
	resp, err := b.c.send(ctx, call{
		method: http.MethodPut, url: b.file(name),
		header: http.Header{"Content-Type": {form.FormDataContentType()}},
		body:   io.MultiReader(&head, content, &tail),
	})
	if err != nil {
		return Done{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode[Done](ctx, resp)
}

// WriteTree writes files below a directory: their paths, relative to it, and
// contents. It returns the listing of that directory.
func (b *Box) WriteTree(ctx context.Context, root string, files map[string]string) (Directory, error) {
	in := map[string]any{"files": files}
	return exchange[Directory](ctx, b.c, http.MethodPut, b.base+"/filesystem/tree/"+filePath(root), in)
}

// ReadDir lists a directory.
func (b *Box) ReadDir(ctx context.Context, name string) (Directory, error) {
	return exchange[Directory](ctx, b.c, http.MethodGet, b.file(name), nil)
}

// Remove deletes a file, or a directory if it is empty or recursive is set.
func (b *Box) Remove(ctx context.Context, name string, recursive bool) (Done, error) {
	address := b.file(name)
	if recursive {
		address += "?recursive=true"
	}
	return exchange[Done](ctx, b.c, http.MethodDelete, address, nil)
}
