package file

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agent/subtree"
)

// Delete removes a file, a link, or a directory that is empty or that the
// caller wants gone with all that is in it.
func (c *Calls) Delete(r *http.Request, arg string) (route.Success, error) {
	at, err := c.places.Find(arg)
	if err != nil {
		return route.Success{}, err
	}
	return c.Remove(r.Context(), at, r.URL.Query().Get("recursive") == "true")
}

// Remove deletes what is at a place: with recursive, also a directory that is not
// empty.
func (c *Calls) Remove(ctx context.Context, at place.Place, recursive bool) (route.Success, error) {
	if isDir(at.Abs, "/") || isDir(at.Abs, c.places.WorkDir()) {
		return route.Success{}, doze.Errorf(doze.Unprocessable, "%s is the root or the working directory, which cannot be deleted", at.Shown)
	}
	if err := removable(at); err != nil {
		return route.Success{}, err
	}
	info, err := os.Stat(at.Abs)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return route.Success{}, doze.Wrap(err, doze.NotFound, "file or directory not found")
	}
	if err != nil {
		return route.Success{}, owner.Error("delete", err)
	}
	remove, what := os.Remove, "File"
	if info.IsDir() {
		what = "Directory"
		if recursive {
			remove = func(name string) error { return subtree.Remove(ctx, name) } // a link is removed, not followed
		}
	}
	switch err := remove(at.Abs); {
	case errors.Is(err, syscall.ENOTEMPTY) && !recursive:
		return route.Success{}, doze.Wrap(err, doze.Unprocessable, "%s is not empty; add recursive=true to delete it with all that is in it", at.Shown)
	case err != nil:
		return route.Success{}, owner.Error("delete", err)
	}
	return route.Success{Path: at.Shown, Message: what + " deleted successfully"}, nil
}

// removable refuses what a delete would empty without being able to remove it:
// the kernel's own directories, drives, volumes, and what has these in it.
func removable(at place.Place) error {
	if ofKernel(at.Abs) {
		return doze.Errorf(doze.Unprocessable, "%s is the kernel's and cannot be deleted", at.Shown)
	}
	dir, err := filepath.EvalSymlinks(path.Dir(at.Abs))
	if err != nil {
		return nil //nolint:nilerr // who looks at the file itself says it better
	}
	abs := path.Join(dir, path.Base(at.Abs))
	if ofKernel(abs) {
		return doze.Errorf(doze.Unprocessable, "%s is the kernel's and cannot be deleted", at.Shown)
	}
	mounts, err := subtree.Mounts(abs)
	switch {
	case err != nil:
		return err
	case len(mounts) > 0:
		return doze.Errorf(doze.Unprocessable, "%s cannot be deleted: %s is a mount point; unmount it first, or delete what is in it by name", at.Shown, mounts[0])
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
