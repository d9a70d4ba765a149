package agent

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	partsMax = 100 // of a multipart body; clients send three
	fieldMax = 64  // bytes of a multipart field that is not the file
)

// writeFile creates or replaces a file, or creates a directory.
func (c *fileCalls) writeFile(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := c.places.find(arg)
	if err != nil {
		return err
	}
	var done success
	if strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/form-data") {
		form, err := formOf(r)
		if err != nil {
			return err
		}
		if done, err = writeUpload(c.owner(), at, form); err != nil {
			return err
		}
	} else {
		in, err := contentOf(w, r)
		if err != nil {
			return err
		}
		if done, err = writeBody(c.owner(), at, in); err != nil {
			return err
		}
	}
	httpx.WriteJSON(w, http.StatusOK, done)
	return nil
}

// writeBody does what a body asks for. One that cannot be understood changes
// nothing, unless that shows after its first part alone: then directories may
// have been made.
func writeBody(o owner, at place, in *contentBody) (success, error) {
	var first bytes.Buffer
	_, err := io.CopyN(&first, in, bodyFree)
	switch {
	case err != nil && !errors.Is(err, io.EOF): // the end is none: then that was all of it
		return success{}, cutOff(err, "send it again")
	case in.asked.IsDirectory: // which has no content
		return writeContentOf(o, at, in.asked, in.perm)
	}
	perm := func() fs.FileMode { return in.perm }
	return written(at), o.writeTo(at, perm, io.MultiReader(&first, in))
}

func writeContentOf(o owner, at place, in fileWrite, perm fs.FileMode) (success, error) {
	if in.IsDirectory {
		if err := o.mkdirAll(whole{}, at.abs, perm); err != nil {
			return success{}, fileError("create the directory", err)
		}
		return success{at.shown, "Directory created successfully"}, nil
	}
	return written(at), o.writeTo(at, always(perm), strings.NewReader(in.Content))
}

// written is the answer to who wrote a file.
func written(at place) success { return success{at.shown, "File created/updated successfully"} }

// writeUpload stores the first part that is named file. Permissions count if
// they come before it; all other parts are ignored.
func writeUpload(o owner, at place, parts *multipart.Reader) (success, error) {
	perm := fileMode
	for range partsMax {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return success{}, doze.Errorf(doze.Invalid, "the multipart body has no part named file")
		}
		if err != nil {
			return success{}, doze.Wrap(err, doze.Invalid, "the multipart body is broken: %v", err)
		}
		switch name := part.FormName(); {
		case name == "permissions" && part.FileName() == "":
			text, err := io.ReadAll(io.LimitReader(part, fieldMax))
			if err != nil {
				return success{}, doze.Wrap(err, doze.Invalid, "the multipart body is broken: %v", err)
			}
			if perm, err = parseMode(string(text), fileMode); err != nil {
				return success{}, err
			}
		case name == "file" && part.FileName() == "":
			return success{}, doze.Errorf(doze.Invalid, "the part named file has no filename")
		case name == "file":
			if err := o.writeTo(at, always(perm), part); err != nil {
				return success{}, err
			}
			return success{at.shown, "Binary file uploaded successfully"}, nil
		}
	}
	return success{}, doze.Errorf(doze.Invalid, "the multipart body has more than %d parts before one named file", partsMax)
}
