package file

import (
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/httpx"
)

// UploadRequest is the body that opens an upload.
type UploadRequest struct {
	Permissions string `json:"permissions"`
}

// UploadBegun is the answer to it.
type UploadBegun struct {
	ID   string `json:"uploadId"`
	Path string `json:"path"` // absolute
}

// BeginUpload opens an upload in parts. Only the permissions in its body matter.
func (c *Calls) BeginUpload(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := c.places.Find(arg)
	if err != nil {
		return err
	}
	if info, err := os.Stat(at.Abs); strings.HasSuffix(at.Shown, "/") || err == nil && info.IsDir() {
		return doze.Errorf(doze.Invalid, "%s is a directory; an upload needs the path of a file", at.Shown)
	}
	b, err := body.Read(w, r, body.Small)
	if err != nil {
		return err
	}
	in, _ := body.Parse[UploadRequest](b) // what cannot be read is ignored
	perm, err := owner.ParseMode(in.Permissions, owner.FileMode)
	if err != nil {
		return err
	}
	up, err := c.uploads.Begin(at.Abs, perm)
	if err == nil {
		httpx.WriteJSON(w, http.StatusOK, UploadBegun{up.ID, up.Path})
	}
	return err
}

// PutPart stores the part of a multipart body that is named file.
func (c *Calls) PutPart(r *http.Request, id string) (upload.Part, error) {
	number, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
	if err != nil {
		return upload.Part{}, doze.Wrap(err, doze.Invalid, "partNumber is required and must be a number")
	}
	form, err := formOf(r)
	if err != nil {
		return upload.Part{}, err
	}
	for range partsMax {
		part, err := form.NextPart()
		if err == io.EOF {
			return upload.Part{}, doze.Errorf(doze.Invalid, "the multipart body has no part named file")
		}
		if err != nil {
			return upload.Part{}, doze.Wrap(err, doze.Invalid, "the multipart body is broken: %v", err)
		}
		if part.FormName() == "file" {
			return c.uploads.Put(id, number, part)
		}
	}
	return upload.Part{}, doze.Errorf(doze.Invalid, "the multipart body has more than %d parts before one named file", partsMax)
}

// formOf returns the multipart body of a request.
func formOf(r *http.Request) (*multipart.Reader, error) {
	form, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || form != "multipart/form-data" || params["boundary"] == "" {
		return nil, doze.Wrap(err, doze.Invalid, "the body must be multipart/form-data with a valid boundary; let an HTTP library set Content-Type")
	}
	return multipart.NewReader(r.Body, params["boundary"]), nil
}

// UploadParts are the parts of an upload.
type UploadParts struct {
	ID    string        `json:"uploadId"`
	Parts []upload.Part `json:"parts"`
}

// Parts lists the parts of an upload that have come.
func (c *Calls) Parts(_ *http.Request, id string) (UploadParts, error) {
	parts, err := c.uploads.Parts(id)
	return UploadParts{id, parts}, err
}

// WantedParts is the body that completes an upload.
type WantedParts struct {
	Parts []upload.Part `json:"parts"`
}

// CompleteUpload puts the file where it belongs, whole or not at all.
func (c *Calls) CompleteUpload(id string, in WantedParts) (route.Success, error) {
	up, err := c.uploads.Complete(id, in.Parts, func(up upload.Upload, src io.Reader) error {
		return c.Owner().Write(place.Place{Abs: up.Path, Shown: up.Path}, owner.Always(up.Permissions), src)
	})
	return route.Success{Path: up.Path, Message: "Multipart upload completed successfully"}, err
}

// AbortUpload forgets an upload and its parts.
func (c *Calls) AbortUpload(_ *http.Request, id string) (route.Success, error) {
	return route.Success{Message: "Multipart upload aborted successfully"}, c.uploads.Abort(id)
}

// UploadList is all uploads.
type UploadList struct {
	Uploads []upload.Upload `json:"uploads"`
}

// Uploads lists the uploads that have not ended.
func (c *Calls) Uploads(*http.Request, string) (UploadList, error) {
	return UploadList{c.uploads.List()}, nil
}
