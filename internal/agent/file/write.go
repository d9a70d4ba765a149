package file

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	partsMax = 100 // of a multipart body; clients send three
	fieldMax = 64  // bytes of a multipart field that is not the file
)

// Write creates or replaces a file, or creates a directory.
func (c *Calls) Write(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := c.places.Find(arg)
	if err != nil {
		return err
	}
	var done route.Success
	if strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/form-data") {
		form, err := formOf(r)
		if err != nil {
			return err
		}
		if done, err = writeUpload(c.Owner(), at, form); err != nil {
			return err
		}
	} else {
		in, err := contentOf(w, r)
		if err != nil {
			return err
		}
		if done, err = writeBody(c.Owner(), at, in); err != nil {
			return err
		}
	}
	httpx.WriteJSON(w, http.StatusOK, done)
	return nil
}

// writeBody does what a body asks for. One that cannot be understood changes
// nothing, unless that shows after its first part alone: then directories may
// have been made.
func writeBody(o owner.Owner, at place.Place, in *contentBody) (route.Success, error) {
	var first bytes.Buffer
	_, err := io.CopyN(&first, in, body.Free)
	switch {
	case err != nil && !errors.Is(err, io.EOF): // the end is none: then that was all of it
		return route.Success{}, body.CutOff(err, "send it again")
	case in.asked.IsDirectory: // which has no content
		return Make(o, at, in.asked, in.perm)
	}
	perm := func() fs.FileMode { return in.perm }
	return written(at), o.Write(at, perm, io.MultiReader(&first, in))
}

// Make does what a write asks for whose content is in memory.
func Make(o owner.Owner, at place.Place, in Write, perm fs.FileMode) (route.Success, error) {
	if in.IsDirectory {
		if err := o.MkdirAll(owner.Whole{}, at.Abs, perm); err != nil {
			return route.Success{}, owner.Error("create the directory", err)
		}
		return route.Success{Path: at.Shown, Message: "Directory created successfully"}, nil
	}
	return written(at), o.Write(at, owner.Always(perm), strings.NewReader(in.Content))
}

// written is the answer to the writer of a file.
func written(at place.Place) route.Success {
	return route.Success{Path: at.Shown, Message: "File created/updated successfully"}
}

// writeUpload stores the first part that is named file. Permissions count if
// they come before it; all other parts are ignored.
func writeUpload(o owner.Owner, at place.Place, parts *multipart.Reader) (route.Success, error) {
	perm := owner.FileMode
	for range partsMax {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return route.Success{}, doze.Errorf(doze.Invalid, "the multipart body has no part named file")
		}
		if err != nil {
			return route.Success{}, doze.Wrap(err, doze.Invalid, "the multipart body is broken: %v", err)
		}
		switch name := part.FormName(); {
		case name == "permissions" && part.FileName() == "":
			text, err := io.ReadAll(io.LimitReader(part, fieldMax))
			if err != nil {
				return route.Success{}, doze.Wrap(err, doze.Invalid, "the multipart body is broken: %v", err)
			}
			if perm, err = owner.ParseMode(string(text), owner.FileMode); err != nil {
				return route.Success{}, err
			}
		case name == "file" && part.FileName() == "":
			return route.Success{}, doze.Errorf(doze.Invalid, "the part named file has no filename")
		case name == "file":
			if err := o.Write(at, owner.Always(perm), part); err != nil {
				return route.Success{}, err
			}
			return route.Success{Path: at.Shown, Message: "Binary file uploaded successfully"}, nil
		}
	}
	return route.Success{}, doze.Errorf(doze.Invalid, "the multipart body has more than %d parts before one named file", partsMax)
}
