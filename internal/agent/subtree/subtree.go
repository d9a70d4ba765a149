// Package subtree removes directories with all that is in them, and nothing else. The
// kernel of a sandbox follows the links of /proc even where it is told not to, and one
// of them leads to the root. So each opened directory is compared with the entry that
// was seen before.
package subtree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/agent/proc"
)

const (
	// batch is how many names of a directory are held in memory.
	batch = 1024
	// staleMax is how many batches in a row may have nothing but names that are
	// not there: others remove them, too, or the file system lists what is gone.
	staleMax = 1024
)

// Remove removes name, which must not end with a slash, and what is below it. It
// follows no link and enters no other file system: a mount point is EBUSY, after
// the rest is gone. A name that is not there is no error; one in [Kernel]'s hands
// is EPERM. It ends with ctx, with a part of the tree left.
func Remove(ctx context.Context, name string) error {
	dir, err := os.OpenFile(filepath.Dir(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if Kernel(dir) {
		return &fs.PathError{Op: "remove", Path: name, Err: unix.EPERM}
	}
	var st unix.Stat_t
	if err := again(func() error { return unix.Fstat(int(dir.Fd()), &st) }); err != nil {
		return &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	_, err = remove(ctx, dir, st.Dev, filepath.Base(name))
	return err
}

// again repeats a call that a signal cut off: a file system that is served by a
// process may say so at any time.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Kernel reports whether dir is in one of the file systems that show what the
// kernel has. Nothing there is a file of anybody, and links may lead anywhere.
func Kernel(dir *os.File) bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return false
	}
	return st.Type == unix.PROC_SUPER_MAGIC || st.Type == unix.SYSFS_MAGIC
}

// remove removes a name of dir, which is of the file system dev. It was there if
// gone says so.
func remove(ctx context.Context, dir *os.File, dev uint64, name string) (gone bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	fd, full := int(dir.Fd()), filepath.Join(dir.Name(), name)
	var st unix.Stat_t
	err = again(func() error { return unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "stat", Path: full, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unlink(fd, name, full, 0)
	case st.Dev != dev:
		return false, &fs.PathError{Op: "remove", Path: full, Err: unix.EBUSY}
	}
	if err := enter(ctx, fd, name, full, st); err != nil {
		return false, err
	}
	return unlink(fd, name, full, unix.AT_REMOVEDIR)
}

func unlink(fd int, name, full string, flags int) (gone bool, err error) {
	err = again(func() error { return unix.Unlinkat(fd, name, flags) })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "remove", Path: full, Err: err}
	}
	return true, nil
}

// enter removes what is in a directory that looked like seen.
func enter(ctx context.Context, parent int, name, full string, seen unix.Stat_t) error {
	var fd int
	err := again(func() (err error) {
		fd, err = unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: full, Err: err}
	}
	dir := os.NewFile(uintptr(fd), full)
	defer func() { _ = dir.Close() }()
	var st unix.Stat_t
	if err := again(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return &fs.PathError{Op: "stat", Path: full, Err: err}
	}
	if st.Dev != seen.Dev || st.Ino != seen.Ino {
		return &fs.PathError{Op: "remove", Path: full, Err: unix.EBUSY} // it is another one by now
	}
	return empty(dir, full, func(name string) (bool, error) { return remove(ctx, dir, st.Dev, name) })
}

// listing is an open directory.
type listing interface {
	Readdirnames(n int) ([]string, error)
	Seek(offset int64, whence int) (int64, error)
}

// empty removes what is in dir, as far as it can. The error is the first one. It
// begins again only after something is gone, so that it ends even where a file
// system lists what is not there.
func empty(dir listing, full string, remove func(name string) (gone bool, err error)) error {
	for stale := 0; stale < staleMax; stale++ {
		names, err := dir.Readdirnames(batch)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var first error
		some := false
		for _, name := range names {
			gone, err := remove(name)
			some = some || gone
			if err != nil && first == nil {
				first = err
			}
		}
		if !some && first != nil {
			return first
		}
		if !some {
			continue // others may be behind them
		}
		stale = -1
		if _, err := dir.Seek(0, io.SeekStart); err != nil { // the names have moved
			return err
		}
	}
	return &fs.PathError{Op: "remove", Path: full, Err: errStale}
}

// errStale ends a walk that would have no end.
var errStale = errors.New("its file system goes on listing names that are not there; remove what is in it by name")

// Mounts returns the mount points at and below name, which has no links in it.
func Mounts(name string) (points []string, err error) {
	all, err := proc.Root.Mounts()
	for _, m := range all {
		if m.Point == name || strings.HasPrefix(m.Point, strings.TrimSuffix(name, "/")+"/") {
			points = append(points, m.Point)
		}
	}
	return points, err
}
