package agent

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
	"github.com/dozehq/doze/internal/agent/subtree"
)

// deleteFile removes a file, a link, or a directory that is empty or that the
// caller wants gone with all that is in it.
func (c *fileCalls) deleteFile(r *http.Request, arg string) (success, error) {
	at, err := c.places.find(arg)
	if err != nil {
		return success{}, err
	}
	return c.remove(r.Context(), at, r.URL.Query().Get("recursive") == "true")
}

func (c *fileCalls) remove(ctx context.Context, at place, recursive bool) (success, error) {
	if isDir(at.abs, "/") || isDir(at.abs, c.places.workDir()) {
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
