package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/agent/subtree"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/agent/watch"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	dirMode  fs.FileMode = 0o755
	fileMode fs.FileMode = 0o644
	umask    fs.FileMode = 0o022

	linksMax = 40  // as many links as the kernel follows in one path
	partsMax = 100 // of a multipart body; clients send three
	fieldMax = 64  // bytes of a multipart field that is not the file
)

// success is the answer to most calls that change something.
type success struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// writeFile creates or replaces a file, or creates a directory.
func (a *Agent) writeFile(w http.ResponseWriter, r *http.Request, arg string) error {
	at, err := a.place(arg)
	if err != nil {
		return err
	}
	var done success
	if strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/form-data") {
		form, err := formOf(r)
		if err != nil {
			return err
		}
		if done, err = a.who.owner().writeUpload(at, form); err != nil {
			return err
		}
	} else {
		in, err := contentOf(w, r)
		if err != nil {
			return err
		}
		if done, err = a.who.owner().writeBody(at, in); err != nil {
			return err
		}
	}
	httpx.WriteJSON(w, http.StatusOK, done)
	return nil
}

// writeBody does what a body asks for. One that cannot be understood changes
// nothing, unless that shows after its first part alone: then directories may
// have been made.
func (o owner) writeBody(at place, in *contentBody) (success, error) {
	var first bytes.Buffer
	_, err := io.CopyN(&first, in, bodyFree)
	switch {
	case err != nil && !errors.Is(err, io.EOF): // the end is none: then that was all of it
		return success{}, cutOff(err, "send it again")
	case in.asked.IsDirectory: // which has no content
		return o.writeContentOf(at, in.asked, in.perm)
	}
	perm := func() fs.FileMode { return in.perm }
	return written(at), o.writeTo(at, perm, io.MultiReader(&first, in))
}

func (o owner) writeContentOf(at place, in fileWrite, perm fs.FileMode) (success, error) {
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
func (o owner) writeUpload(at place, parts *multipart.Reader) (success, error) {
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

// parseMode reads octal permissions. Only the nine low bits count, and the
// umask takes its share of them.
func parseMode(s string, without fs.FileMode) (fs.FileMode, error) {
	if s == "" {
		return without, nil
	}
	bits, err := strconv.ParseUint(s, 8, 32)
	if err != nil {
		return 0, doze.Wrap(err, doze.Invalid, "the permissions %q are not octal like 0644", clip(s))
	}
	return fs.FileMode(bits) & fs.ModePerm &^ umask, nil
}

// permissions returns those of a new file. It is asked when all of the content
// was read.
type permissions func() fs.FileMode

func always(perm fs.FileMode) permissions { return func() fs.FileMode { return perm } }

// writeTo puts src at the place, with its missing parents.
func (o owner) writeTo(at place, perm permissions, src io.Reader) error {
	if strings.HasSuffix(at.shown, "/") {
		return doze.Errorf(doze.Unprocessable, "%s ends with a slash, as the name of a directory; leave it out, or ask for one with isDirectory", at.shown)
	}
	if at.abs == "/" {
		return doze.Errorf(doze.Unprocessable, "%s is a directory", at.shown)
	}
	abs, err := follow(at.abs)
	if err != nil {
		return writeError(err)
	}
	root, err := os.OpenRoot(path.Dir(abs))
	if err != nil {
		if err := o.mkdirAll(whole{}, path.Dir(abs), dirMode); err != nil {
			return writeError(err)
		}
		root, err = os.OpenRoot(path.Dir(abs))
	}
	if err != nil {
		return writeError(err)
	}
	defer func() { _ = root.Close() }()
	return o.replace(root, path.Base(abs), perm, src)
}

// follow returns where a write to abs ends up, which need not exist: the
// target of the link that abs may be.
func follow(abs string) (string, error) {
	for range linksMax {
		target, err := os.Readlink(abs)
		if err != nil {
			return abs, nil //nolint:nilerr // no link: this is the place
		}
		dir, base := path.Split(target)
		if !path.IsAbs(target) {
			dir = path.Dir(abs) + "/" + dir
		}
		// Links before a .. make a lexical answer wrong.
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", err
		}
		abs = path.Join(dir, base)
	}
	return "", &fs.PathError{Op: "open", Path: abs, Err: syscall.ELOOP}
}

// replace makes src the content of name, whole or not at all. A new file gets
// perm and its owner; an old one keeps both.
func (o owner) replace(root *os.Root, name string, perm permissions, src io.Reader) error {
	old, err := root.Lstat(name)
	if err == nil && !old.Mode().IsRegular() {
		return o.overwrite(root, name, old.Mode(), src)
	}
	prefix := watch.Replacing
	if err != nil {
		prefix = watch.Creating
	}
	tmp := path.Join(path.Dir(name), prefix+rand.Text())
	// O_NONBLOCK means nothing for a file, but saves four calls that find that out.
	f, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return writeError(err)
	}
	from := &upload.Source{Reader: src}
	err = o.fill(f, from, perm, old)
	if err == nil {
		err = root.Rename(tmp, name)
	}
	if errors.Is(err, syscall.EBUSY) { // the file is a mount point, like /etc/hosts
		err = o.refill(root, tmp, name)
		_ = root.Remove(tmp)
	}
	if err == nil {
		return nil
	}
	_ = root.Remove(tmp) // the first error is the one to report
	if from.Err != nil {
		return cutOff(from.Err, "the file is unchanged")
	}
	return writeError(err)
}

// fill writes the new file and gives it the mode and the owner of the old one.
func (o owner) fill(f *os.File, src io.Reader, perm permissions, old fs.FileInfo) error {
	err := scratch.Copy(f, src)
	mode := perm()
	if old == nil {
		o.take(f)
	} else {
		mode = old.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
		if st, ok := old.Sys().(*syscall.Stat_t); ok && err == nil {
			_ = f.Chown(int(st.Uid), int(st.Gid)) // without the right to, it is ours
		}
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if e := closed(f); err == nil {
		err = e
	}
	return err
}

// closed closes a file that was written. A signal may end the wait for that where
// a process serves the file system, as for a drive: it goes on without us.
func closed(f *os.File) error {
	if err := f.Close(); !errors.Is(err, syscall.EINTR) {
		return err
	}
	return nil
}

// cutOff says why a body has no end, and what that means for the file. A body
// that came whole and is wrong says so itself.
func cutOff(err error, then string) error {
	if _, ok := errors.AsType[*doze.Error](err); ok {
		return err
	}
	return doze.Wrap(err, doze.Invalid, "the body ended early; %s", then)
}

func (o owner) refill(root *os.Root, tmp, name string) error {
	f, err := root.Open(tmp)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return o.overwrite(root, name, 0, f)
}

// overwrite writes into what is there: a link's target, a device, a mounted
// file.
func (o owner) overwrite(root *os.Root, name string, mode fs.FileMode, src io.Reader) error {
	switch {
	case mode.IsDir():
		return doze.Errorf(doze.Unprocessable, "%s is a directory", name)
	case mode&(fs.ModeNamedPipe|fs.ModeSocket) != 0:
		return doze.Errorf(doze.Unprocessable, "%s is not a regular file; use a process to write to it", name)
	}
	flags := os.O_WRONLY | os.O_TRUNC | syscall.O_NONBLOCK
	if mode&fs.ModeSymlink != 0 {
		flags |= os.O_CREATE
	}
	_, err := root.Stat(name)
	absent := errors.Is(err, fs.ErrNotExist) // what the link points to
	f, err := root.OpenFile(name, flags, fileMode)
	if err != nil {
		return writeError(err)
	}
	if absent {
		o.take(f)
	}
	from := &upload.Source{Reader: src}
	err = scratch.Copy(f, from)
	if e := closed(f); err == nil {
		err = e
	}
	switch {
	case from.Err != nil:
		return cutOff(from.Err, name+" is incomplete")
	case err != nil:
		return writeError(err)
	}
	return nil
}

// deleteFile removes a file, a link, or a directory that is empty or that the
// caller wants gone with all that is in it.
func (a *Agent) deleteFile(r *http.Request, arg string) (success, error) {
	at, err := a.place(arg)
	if err != nil {
		return success{}, err
	}
	return a.remove(r.Context(), at, r.URL.Query().Get("recursive") == "true")
}

func (a *Agent) remove(ctx context.Context, at place, recursive bool) (success, error) {
	if isDir(at.abs, "/") || isDir(at.abs, a.workDir()) {
		return success{}, doze.Errorf(doze.Unprocessable, "%s is the root or the working directory, which cannot be deleted", at.shown)
	}
	if err := removable(at); err != nil {
		return success{}, err
	}
	info, err := os.Stat(at.abs)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return success{}, doze.Wrap(err, doze.NotFound, "file or directory not found")
	}
	if err != nil {
		return success{}, fileError("delete", err)
	}
	remove, what := os.Remove, "File"
	if info.IsDir() {
		what = "Directory"
		if recursive {
			remove = func(name string) error { return subtree.Remove(ctx, name) } // a link is removed, not followed
		}
	}
	switch err := remove(at.abs); {
	case errors.Is(err, syscall.ENOTEMPTY) && !recursive:
		return success{}, doze.Wrap(err, doze.Unprocessable, "%s is not empty; add recursive=true to delete it with all that is in it", at.shown)
	case err != nil:
		return success{}, fileError("delete", err)
	}
	return success{at.shown, what + " deleted successfully"}, nil
}

// removable refuses what a delete would empty without being able to remove it:
// the kernel's own directories, drives, volumes, and what has these in it.
func removable(at place) error {
	if ofKernel(at.abs) {
		return doze.Errorf(doze.Unprocessable, "%s is the kernel's and cannot be deleted", at.shown)
	}
	dir, err := filepath.EvalSymlinks(path.Dir(at.abs))
	if err != nil {
		return nil //nolint:nilerr // who looks at the file itself says it better
	}
	abs := path.Join(dir, path.Base(at.abs))
	if ofKernel(abs) {
		return doze.Errorf(doze.Unprocessable, "%s is the kernel's and cannot be deleted", at.shown)
	}
	mounts, err := subtree.Mounts(abs)
	switch {
	case err != nil:
		return err
	case len(mounts) > 0:
		return doze.Errorf(doze.Unprocessable, "%s cannot be deleted: %s is a mount point; unmount it first, or delete what is in it by name", at.shown, mounts[0])
	}
	return nil
}

// ofKernel reports whether an absolute path is in a file system of the kernel,
// by its name.
func ofKernel(abs string) bool {
	return strings.HasPrefix(abs, "/proc/") || strings.HasPrefix(abs, "/sys/")
}

// isDir reports whether abs is the directory dir, by whatever way: links may lead
// there. A link to it is not it.
func isDir(abs, dir string) bool {
	a, err := os.Lstat(abs)
	b, e := os.Stat(dir)
	return err == nil && e == nil && os.SameFile(a, b)
}

// writeError is [fileError] of a write.
func writeError(err error) error { return fileError("write", err) }

// fileError reports what cannot be done to the file system, in its own words
// but without the names of our temporary files.
func fileError(doing string, err error) error {
	if _, ok := errors.AsType[*doze.Error](err); ok {
		return err
	}
	text := err.Error()
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		text = fmt.Sprintf("%s: %v", path.Base(e.Path), e.Err)
		if strings.Contains(e.Path, "/.doze-") || strings.HasPrefix(e.Path, ".doze-") {
			text = e.Err.Error()
		}
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		text = e.Err.Error()
	}
	return doze.Wrap(err, doze.Unprocessable, "%s: %s", doing, text)
}

// clip bounds what an error message repeats of a caller's input.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
