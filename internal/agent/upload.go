package agent

import (
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/httpx"
)

type uploadBegun struct {
	ID   string `json:"uploadId"`
	Path string `json:"path"` // absolute
}

// beginUpload opens an upload in parts. Only the permissions in its body matter.
func (c *fileCalls) beginUpload(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := c.places.find(arg)
	if err != nil {
		return err
	}
	if info, err := os.Stat(at.abs); strings.HasSuffix(at.shown, "/") || err == nil && info.IsDir() {
		return doze.Errorf(doze.Invalid, "%s is a directory; an upload needs the path of a file", at.shown)
	}
	b, err := body(w, r, smallMax)
	if err != nil {
		return err
	}
	in, _ := parse[struct{ Permissions string }](b) // what cannot be read is ignored
	perm, err := parseMode(in.Permissions, fileMode)
	if err != nil {
		return err
	}
	up, err := c.uploads.Begin(at.abs, perm)
	if err == nil {
		httpx.WriteJSON(w, http.StatusOK, uploadBegun{up.ID, up.Path})
	}
	return err
}

// putPart stores the part of a multipart body that is named file.
func (c *fileCalls) putPart(r *http.Request, id string) (upload.Part, error) {
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

type uploadParts struct {
	ID    string        `json:"uploadId"`
	Parts []upload.Part `json:"parts"`
}

func (c *fileCalls) readParts(_ *http.Request, id string) (uploadParts, error) {
	parts, err := c.uploads.Parts(id)
	return uploadParts{id, parts}, err
}

// wantedParts is the body that completes an upload.
type wantedParts struct {
	Parts []upload.Part `json:"parts"`
}

// completeUpload puts the file where it belongs, whole or not at all.
func (c *fileCalls) completeUpload(id string, in wantedParts) (success, error) {
	up, err := c.uploads.Complete(id, in.Parts, func(up upload.Upload, src io.Reader) error {
		return c.owner().writeTo(place{up.Path, up.Path}, always(up.Permissions), src)
	})
	return success{up.Path, "Multipart upload completed successfully"}, err
}

func (c *fileCalls) abortUpload(_ *http.Request, id string) (success, error) {
	return success{Message: "Multipart upload aborted successfully"}, c.uploads.Abort(id)
}

type uploadList struct {
	Uploads []upload.Upload `json:"uploads"`
}

func (c *fileCalls) listUploads(*http.Request, string) (uploadList, error) {
	return uploadList{c.uploads.List()}, nil
}
