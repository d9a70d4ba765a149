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

	"github.com/dozehq/doze"
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

func (b *Agent) file(name string) string { return b.base + "/filesystem/" + filePath(name) }

// ReadFile returns the content of a file. The caller closes it.
func (b *Agent) ReadFile(ctx context.Context, name string) (io.ReadCloser, error) {
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
func (b *Agent) WriteFile(ctx context.Context, name string, content io.Reader, permissions string) (Done, error) {
	kind, body := form(path.Base(name), content, permissions)
	resp, err := b.c.send(ctx, call{method: http.MethodPut, url: b.file(name), header: http.Header{"Content-Type": {kind}}, body: body})
	if err != nil {
		return Done{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return decode[Done](ctx, resp)
}

// form is a body with one file, and its type.
func form(name string, content io.Reader, permissions string) (kind string, body io.Reader) {
	var head, tail bytes.Buffer
	w := multipart.NewWriter(&head)
	if permissions != "" {
		_ = w.WriteField("permissions", permissions) // a buffer takes everything
	}
	_, _ = w.CreateFormFile("file", name)
	tail.WriteString("\r\n--" + w.Boundary() + "--\r\n")
	return w.FormDataContentType(), io.MultiReader(&head, content, &tail)
}

// MakeDir creates a directory and those above it. One that is there stays as it
// is. Permissions are those of [Agent.WriteFile].
func (b *Agent) MakeDir(ctx context.Context, name, permissions string) (Done, error) {
	in := map[string]any{"isDirectory": true}
	if permissions != "" {
		in["permissions"] = permissions
	}
	return exchange[Done](ctx, b.c, http.MethodPut, b.file(name), in)
}

// IsDir reports whether a name is a directory, or a link to one. It is NotFound
// if there is nothing.
func (b *Agent) IsDir(ctx context.Context, name string) (bool, error) {
	resp, err := b.c.do(ctx, call{
		method: http.MethodGet, url: b.file(name),
		header: http.Header{"Accept": {"application/octet-stream"}, "Range": {"bytes=0-0"}},
	})
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return false, nil // an empty file
	}
	return resp.Header.Get("Content-Disposition") == "", readError(resp)
}

// WriteTree writes files below a directory: their paths, relative to it, and
// contents. It returns the listing of that directory.
func (b *Agent) WriteTree(ctx context.Context, root string, files map[string]string) (Directory, error) {
	in := map[string]any{"files": files}
	return exchange[Directory](ctx, b.c, http.MethodPut, b.base+"/filesystem/tree/"+filePath(root), in)
}

// ReadDir lists a directory.
func (b *Agent) ReadDir(ctx context.Context, name string) (Directory, error) {
	return exchange[Directory](ctx, b.c, http.MethodGet, b.file(name), nil)
}

// Remove deletes a file, or a directory if it is empty or recursive is set.
func (b *Agent) Remove(ctx context.Context, name string, recursive bool) (Done, error) {
	address := b.file(name)
	if recursive {
		address += "?recursive=true"
	}
	return exchange[Done](ctx, b.c, http.MethodDelete, address, nil)
}
