package agent

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
	"github.com/dozehq/doze/internal/agent/scratch"
	"github.com/dozehq/doze/internal/agent/upload"
	"github.com/dozehq/doze/internal/agent/watch"
)

// owner is who owns what callers make.
type owner struct{ uid, gid int }

// asAgent leaves new files to whom the kernel gives them.
var asAgent = owner{-1, -1}

// ownerOf returns who owns new files. Those of a user that nobody knows are the
// agent's: files must be writable to mend that.
func ownerOf(w workload) owner {
	if w.self() {
		return asAgent
	}
	a, err := w.account()
	if err != nil {
		return asAgent
	}
	return owner{int(a.uid), int(a.gid)}
}

// take makes f the owner's. A file system without owners is fine as well.
func (o owner) take(f *os.File) {
	if o != asAgent {
		_ = f.Chown(o.uid, o.gid) // best effort: see above
	}
}

// tree is what directories are made in.
type tree interface {
	Lstat(name string) (fs.FileInfo, error)
	MkdirAll(name string, perm fs.FileMode) error
	Lchown(name string, uid, gid int) error
}

// whole is the tree of the system.
type whole struct{}

func (whole) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (whole) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (whole) Lchown(name string, uid, gid int) error       { return os.Lchown(name, uid, gid) }

// mkdirAll makes a directory with its missing parents.
func (o owner) mkdirAll(in tree, dir string, perm fs.FileMode) error {
	var made []string
	for d := dir; o != asAgent && d != "/" && d != "."; d = filepath.Dir(d) {
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

const (
	dirMode  fs.FileMode = 0o755
	linksMax             = 40 // as many links as the kernel follows in one path
	fileMode fs.FileMode = 0o644
	umask    fs.FileMode = 0o022
)

// permissions returns those of a new file. It is asked when all of the content
// was read.
type permissions func() fs.FileMode

func always(perm fs.FileMode) permissions { return func() fs.FileMode { return perm } }

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
