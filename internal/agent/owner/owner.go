// Package owner makes files and directories on behalf of callers. A file is
// replaced whole or not at all, and belongs to the user of the image.
package owner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/agent/watch"
)

const (
	// DirMode and FileMode are the permissions of what is made without any.
	DirMode  fs.FileMode = 0o755
	FileMode fs.FileMode = 0o644
	// Umask is that of the agent, and so of the commands that it starts.
	Umask fs.FileMode = 0o022

	linksMax = 40 // as many links as the kernel follows in one path
)

// Owner is who owns what callers make.
type Owner struct{ uid, gid int }

// AsAgent leaves new files to the owner that the kernel gives them.
var AsAgent = Owner{-1, -1}

// Of returns who owns new files. Those of a user that nobody knows are the
// agent's: files must be writable to repair that.
func Of(w account.User) Owner {
	if w.Self() {
		return AsAgent
	}
	a, err := w.Lookup()
	if err != nil {
		return AsAgent
	}
	return Owner{int(a.UID), int(a.GID)}
}

// take makes f the owner's. A file system without owners is fine as well.
func (o Owner) take(f *os.File) {
	if o != AsAgent {
		_ = f.Chown(o.uid, o.gid) // best effort: see above
	}
}

// directory is what directories are made in.
type directory interface {
	Lstat(name string) (fs.FileInfo, error)
	MkdirAll(name string, perm fs.FileMode) error
	Lchown(name string, uid, gid int) error
}

// Whole is the tree of the system.
type Whole struct{}

// Lstat is [os.Lstat].
func (Whole) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// MkdirAll is [os.MkdirAll].
func (Whole) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }

// Lchown is [os.Lchown].
func (Whole) Lchown(name string, uid, gid int) error { return os.Lchown(name, uid, gid) }

// MkdirAll makes a directory with its missing parents.
func (o Owner) MkdirAll(in directory, dir string, perm fs.FileMode) error {
	var made []string
	for d := dir; o != AsAgent && d != "/" && d != "."; d = filepath.Dir(d) {
		if _, err := in.Lstat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, d)
	}
	if err := in.MkdirAll(dir, perm); err != nil {
		return err
	}
	for _, d := range made {
		_ = in.Lchown(d, o.uid, o.gid) // best effort, as for files
	}
	return nil
}

// Permissions returns those of a new file. It is asked when all of the content
// was read.
type Permissions func() fs.FileMode

// Always returns permissions that do not depend on the content.
func Always(perm fs.FileMode) Permissions { return func() fs.FileMode { return perm } }

// ParseMode reads octal permissions. Only the nine low bits count, and the
// umask takes its share of them.
func ParseMode(s string, without fs.FileMode) (fs.FileMode, error) {
	if s == "" {
		return without, nil
	}
	bits, err := strconv.ParseUint(s, 8, 32)
	if err != nil {
		return 0, doze.Wrap(err, doze.Invalid, "the permissions %q are not octal like 0644", mistake.Clip(s))
	}
	return fs.FileMode(bits) & fs.ModePerm &^ Umask, nil
}

// Write puts src at the place, with its missing parents.
func (o Owner) Write(at place.Place, perm Permissions, src io.Reader) error {
	if strings.HasSuffix(at.Shown, "/") {
		return doze.Errorf(doze.Unprocessable, "%s ends with a slash, as the name of a directory; leave it out, or ask for one with isDirectory", at.Shown)
	}
	if at.Abs == "/" {
		return doze.Errorf(doze.Unprocessable, "%s is a directory", at.Shown)
	}
	abs, err := follow(at.Abs)
	if err != nil {
		return WriteError(err)
	}
	root, err := os.OpenRoot(path.Dir(abs))
	if err != nil {
		if err := o.MkdirAll(Whole{}, path.Dir(abs), DirMode); err != nil {
			return WriteError(err)
		}
		root, err = os.OpenRoot(path.Dir(abs))
	}
	if err != nil {
		return WriteError(err)
	}
	defer func() { _ = root.Close() }()
	return o.Replace(root, path.Base(abs), perm, src)
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

// Replace makes src the content of name, whole or not at all. A new file gets
// perm and its owner; an old one keeps both.
func (o Owner) Replace(root *os.Root, name string, perm Permissions, src io.Reader) error {
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
		return WriteError(err)
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
		return body.CutOff(from.Err, "the file is unchanged")
	}
	return WriteError(err)
}

// fill writes the new file and gives it the mode and the owner of the old one.
func (o Owner) fill(f *os.File, src io.Reader, perm Permissions, old fs.FileInfo) error {
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

func (o Owner) refill(root *os.Root, tmp, name string) error {
	f, err := root.Open(tmp)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return o.overwrite(root, name, 0, f)
}

// overwrite writes into what is there: a link's target, a device, a mounted
// file.
func (o Owner) overwrite(root *os.Root, name string, mode fs.FileMode, src io.Reader) error {
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
	f, err := root.OpenFile(name, flags, FileMode)
	if err != nil {
		return WriteError(err)
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
		return body.CutOff(from.Err, name+" is incomplete")
	case err != nil:
		return WriteError(err)
	}
	return nil
}

// WriteError is [Error] of a write.
func WriteError(err error) error { return Error("write", err) }

// Error reports what cannot be done to the file system, in its own words
// but without the names of our temporary files.
func Error(doing string, err error) error {
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
