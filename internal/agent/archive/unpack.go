package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/subtree"
)

const (
	// xattrRecord is the beginning of PAX records that are extended attributes.
	xattrRecord = "SCHILY.xattr."
	// overlayAttr is the beginning of attributes of the layer itself; opaqueAttr
	// says that a directory shows nothing of the layer below.
	overlayAttr = "trusted.overlay."
	opaqueAttr  = xattrRecord + overlayAttr + "opaque"
)

// Unpack makes root what it was when its upper layer was packed. r is a tar of that
// layer as overlay file systems store it: a character device of the number 0 stands for
// a deleted file. What is in [Excluded], or in another file system that is mounted
// there, is left out. Directories come before what is in them. An error says which path
// it is about, and leaves root between what it was and what it shall be.
func Unpack(ctx context.Context, root string, r io.Reader) error {
	info, err := os.Stat(root)
	if err != nil {
		return doze.Wrap(err, doze.Internal, "%v", err)
	}
	u := &unpack{root: root, dev: device(info), times: map[string]time.Time{}, voids: map[string]bool{}}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return doze.Wrap(err, doze.Internal, "read the archive: %v", err)
		}
		if err := u.member(ctx, h, t); err != nil {
			return doze.Wrap(err, kindOf(err), "unpack %.200q: %v", h.Name, err)
		}
	}
}

// kindOf tells a full file system from other errors.
func kindOf(err error) doze.Kind {
	if errors.Is(err, syscall.ENOSPC) {
		return doze.Exhausted
	}
	return doze.Internal
}

type unpack struct {
	root  string
	dev   uint64               // of the root
	times map[string]time.Time // of directories, which what is put into them changes
	voids map[string]bool      // what stands for something deleted: others may be links to it
}

// place is where a name of the archive is in the root, and the name without
// what does not matter.
func (u *unpack) place(name string) (at, rel string) {
	rel = strings.TrimPrefix(path.Clean("/"+name), "/")
	return filepath.Join(u.root, rel), rel
}

func excluded(rel string) bool {
	for _, e := range Excluded {
		if rel == e || strings.HasPrefix(rel, e+"/") {
			return true
		}
	}
	return false
}

// member unpacks one member.
func (u *unpack) member(ctx context.Context, h *tar.Header, content io.Reader) error {
	at, rel := u.place(h.Name)
	if h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 {
		u.voids[at] = true // others may be links to it, wherever it is
	}
	if excluded(rel) {
		return nil
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(ctx, at, h)
	}
	if rel == "" {
		return errors.New("the root is no directory")
	}
	if foreign, err := u.foreign(filepath.Dir(at)); foreign || err != nil {
		return err
	}
	if err := subtree.Remove(ctx, at); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		if err := file(at, content); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := os.Symlink(h.Linkname, at); err != nil {
			return err
		}
		return os.Lchown(at, h.Uid, h.Gid) // a link has no mode
	case tar.TypeLink:
		first, of := u.place(h.Linkname)
		if u.voids[first] {
			return nil
		}
		err := os.Link(first, at)
		if excluded(of) && errors.Is(err, fs.ErrNotExist) { // it was left out, and so is this name for it
			return nil
		}
		return err
	case tar.TypeFifo:
		if err := syscall.Mkfifo(at, 0); err != nil {
			return err
		}
	case tar.TypeChar, tar.TypeBlock:
		if u.voids[at] {
			return nil // it was deleted, and is
		}
		if err := makeDevice(at, h); err != nil {
			return err
		}
	default:
		return fmt.Errorf("it is of the unknown type %q", h.Typeflag)
	}
	if err := attributes(at, h); err != nil {
		return err
	}
	return os.Chtimes(at, time.Time{}, h.ModTime)
}

// directory makes a directory, or what is there already like it.
func (u *unpack) directory(ctx context.Context, at string, h *tar.Header) error {
	info, err := os.Lstat(at)
	switch {
	case err == nil && info.IsDir() && device(info) != u.dev:
		return nil
	case err == nil && info.IsDir() && h.PAXRecords[opaqueAttr] != "":
		if err := empty(ctx, at); err != nil {
			return err
		}
	case err == nil && info.IsDir():
	case err == nil:
		if err := os.Remove(at); err != nil {
			return err
		}
		fallthrough
	case errors.Is(err, fs.ErrNotExist):
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
	default:
		return err
	}
	u.times[at] = h.ModTime
	return attributes(at, h)
}

// foreign reports whether a directory is of another file system.
func (u *unpack) foreign(dir string) (bool, error) {
	info, err := os.Lstat(dir)
	return err == nil && device(info) != u.dev, err
}

// empty removes what is in a directory, but for other file systems that are
// mounted there.
func empty(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := subtree.Remove(ctx, filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, syscall.EBUSY) {
			return err
		}
	}
	return nil
}

// file writes a new regular file.
func file(at string, content io.Reader) error {
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// makeDevice makes a device.
func makeDevice(at string, h *tar.Header) error {
	mode := uint32(syscall.S_IFCHR)
	if h.Typeflag == tar.TypeBlock {
		mode = syscall.S_IFBLK
	}
	const minorLow, minorBits, majorShift = 0xff, 12, 8 // of the kernel's numbers of devices
	number := h.Devminor&minorLow | h.Devmajor<<majorShift | (h.Devminor&^minorLow)<<minorBits
	return syscall.Mknod(at, mode, int(number))
}

// attributes sets owner, mode and extended attributes, in the order in which
// one does not take back another.
func attributes(at string, h *tar.Header) error {
	if err := os.Lchown(at, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := syscall.Chmod(at, uint32(h.Mode&0o7777)); err != nil {
		return err
	}
	for record, value := range h.PAXRecords {
		name, is := strings.CutPrefix(record, xattrRecord)
		if !is || strings.HasPrefix(name, overlayAttr) || strings.HasPrefix(name, "system.posix_acl_") {
			continue // the last ones are not written as they are set
		}
		if err := syscall.Setxattr(at, name, []byte(value), 0); err != nil && !errors.Is(err, syscall.ENOTSUP) {
			return fmt.Errorf("attribute %.80q: %w", name, err)
		}
	}
	return nil
}

// finish sets the times of directories.
func (u *unpack) finish() error {
	for at, mtime := range u.times {
		if err := os.Chtimes(at, time.Time{}, mtime); err != nil && !errors.Is(err, fs.ErrNotExist) { // one that was deleted again
			return doze.Wrap(err, doze.Internal, "unpack: %v", err)
		}
	}
	return nil
}
