package disk

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// limits bound what one image may cost. What exceeds them is refused.
type limits struct {
	bytes  int64 // of all files of all layers, unpacked, in whole blocks
	files  int   // entries of all layers
	layers int
}

// limitsDefault are far above the images that people run, and far below what
// fills a disk or keeps it busy for an hour. Images with the tools of machine
// learning have 20 GB and a hundred thousand files; builders stop at 127 layers.
var limitsDefault = limits{bytes: BytesDefault, files: 1_000_000, layers: 256}

// BytesDefault is [Options.BytesMax] where the operator says nothing.
const BytesDefault = 32 << 30

const (
	// blockSize is what a file takes at least of most file systems, ours included:
	// many small files fill a disk too.
	blockSize = 4 << 10
	// namesMax bounds the paths of all entries of an image together, which are in
	// memory while a layer is applied. A million files of real images have 100 MB.
	namesMax = 256 << 20
	// stepsMax bounds how often whiteouts may look at a name, for each entry that an
	// image may have: many layers could each hide one directory that is large.
	stepsMax = 8
)

// Limits of names: those of the kernel, but for the depth, which bounds the
// work of one entry. Packages of real languages are some forty deep.
const (
	nameMax  = 255
	pathMax  = 4095
	linksMax = 40
	depthMax = 256
	// placeMax bounds the path of a file behind all links of directories. Some of the
	// kernel's limit is for the directory in which the image is made.
	placeMax = pathMax - 512
)

// headersMax is what the headers of one file take in an archive, generously.
const headersMax = 4 << 10

// Whiteouts are files of a layer that stand for the absence of others.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	internal = ".wh..wh." // names of an old driver; they mean nothing
)

// A rootTree is a directory that layers are applied to, lowest first. Names and links
// in a layer may be hostile. This type resolves them as if the tree were the root
// directory, and opens the result through [os.Root]. So a mistake here still cannot
// leave the tree.
type rootTree struct {
	root  *os.Root
	left  limits
	most  limits                                        // what was left before the first entry
	names int64                                         // bytes of paths that are left
	steps int64                                         // of whiteouts that are left
	room  func(bytes int64) (release func(), err error) // of the disk, for what is about to be written
	last  *place                                        // the directory of the entry before, still open
	times map[string]time.Time                          // of directories that may have changed; set at the end, since what is put into one changes it
}

// A place is an open directory of the tree.
type place struct {
	name string // as it is written in an entry
	path string // without links; "." for the root
	root *os.Root
	dir  *os.File
}

func openTree(dir string, l limits) (*rootTree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the tree: %w", err)
	}
	return &rootTree{
		root: root, left: l, most: l, names: namesMax, steps: int64(l.files) * stepsMax, room: unlimited, times: map[string]time.Time{".": time.Unix(0, 0)},
	}, nil
}

// unlimited is the room of a disk that nobody else needs.
func unlimited(int64) (release func(), err error) { return func() {}, nil }

// count takes one more entry into account.
func (t *rootTree) count() error {
	if t.left.files--; t.left.files < 0 {
		return doze.Errorf(doze.TooLarge, "the image has more than %d files, which is the limit", t.most.files)
	}
	return nil
}

// name takes the path of a file into account, which is kept in memory.
func (t *rootTree) name(name string) error {
	if t.names -= int64(len(name)); t.names < 0 {
		return doze.Errorf(doze.TooLarge, "the paths of the image are longer than %d MB together, which is the limit", namesMax>>20)
	}
	return nil
}

// take takes blocks of the disk for n bytes. They may be written until release is called,
// which is to be called when they are.
func (t *rootTree) take(n int64) (release func(), err error) {
	if n < 0 || n > t.left.bytes {
		return nil, t.tooLarge()
	}
	n = (n + blockSize - 1) / blockSize * blockSize
	if t.left.bytes -= n; t.left.bytes < 0 {
		return nil, t.tooLarge()
	}
	return t.room(n)
}

// bytes is what the tree takes of the disk at most.
func (t *rootTree) bytes() int64 { return t.most.bytes - t.left.bytes }

func (t *rootTree) tooLarge() error {
	return doze.Errorf(doze.TooLarge, "the image is larger than %d MB, which is the limit: the operator sets it with --image-max-mb", t.most.bytes>>20)
}

// Close sets the times of directories and closes the tree.
func (t *rootTree) Close() error {
	t.forget()
	var errs []error
	for name, at := range t.times {
		if info, err := t.root.Lstat(name); err != nil || !info.IsDir() {
			continue // it was replaced or removed later
		}
		errs = append(errs, t.root.Chtimes(name, at, at))
	}
	return errors.Join(append(errs, t.root.Close())...)
}

// forget closes the directory of the entry before.
func (t *rootTree) forget() {
	if t.last != nil {
		_ = t.last.root.Close() // directories, only read
		_ = t.last.dir.Close()
		t.last = nil
	}
}

// importTar applies one archive, which may be compressed.
func importTar(ctx context.Context, dir string, archive io.Reader, l limits) (_ config, err error) {
	in := bufio.NewReader(archive)
	if magic, err := in.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(in)
		if err != nil {
			return config{}, doze.Wrap(err, doze.Invalid, "the archive is not a gzip file")
		}
		in = bufio.NewReader(z)
	}
	t, err := openTree(dir, l)
	if err != nil {
		return config{}, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := t.apply(ctx, in); err != nil {
		return config{}, err
	}
	return config{ImageConfig: doze.ImageConfig{Env: []string{pathDefault}, WorkDir: "/"}, bytes: t.bytes()}, nil
}

// apply puts the entries of one layer into the tree.
func (t *rootTree) apply(ctx context.Context, layer io.Reader) error {
	in := &meter{layer, t.left.bytes + int64(t.left.files)*headersMax, t.tooLarge()}
	l := laying{rootTree: t, made: map[string]bool{}, bare: map[string]bool{}}
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return unreadable(err)
		}
		if err := t.count(); err != nil {
			return err
		}
		if err := l.entry(h, r); err != nil {
			return fmt.Errorf("entry %.80q: %w", h.Name, fault(err))
		}
	}
	// The sum of a layer is checked at its end, which is behind that of the
	// archive.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return unreadable(err)
	}
	return nil
}

// unreadable classifies what a reader of a layer returned.
func unreadable(err error) error {
	if known(err) {
		return err
	}
	return doze.Wrap(err, doze.Invalid, "a layer of the image cannot be read to its end: it is damaged, or no archive")
}

// known reports whether an error says whose fault it is.
func known(err error) bool {
	_, ok := errors.AsType[*doze.Error](err)
	_, broken := errors.AsType[*transferError](err)
	return ok || broken || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ours are the errors of a file system that no layer can cause.
var ours = []error{unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES}

// fault classifies why an entry could not be made: if it is not the fault of this
// host, the layer wants something that no file system does.
func fault(err error) error {
	switch {
	case known(err):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return doze.Wrap(err, doze.Unavailable, "the disk of this host is full: delete what is not needed, or ask its operator")
	case slices.ContainsFunc(ours, func(own error) bool { return errors.Is(err, own) }):
		return err
	}
	return doze.Wrap(err, doze.Invalid, "the image has a file that cannot be made")
}

// A meter fails with over when more than left bytes are read: a small compressed
// file may have an end that is far away.
type meter struct {
	r    io.Reader
	left int64
	over error
}

func (m *meter) Read(b []byte) (int, error) {
	if m.left <= 0 {
		return 0, m.over
	}
	n, err := m.r.Read(b[:min(int64(len(b)), m.left)])
	m.left -= int64(n)
	return n, err
}

// A laying is the application of one layer. It knows what the layer made,
// because whiteouts only hide what lies below.
type laying struct {
	*rootTree
	made map[string]bool // what the layer has, and the directories above it
	bare map[string]bool // directories that have nothing of lower layers any more
}

func (l *laying) mark(name string) {
	for ; !l.made[name]; name = path.Dir(name) {
		l.made[name] = true
	}
}

func (l *laying) entry(h *tar.Header, content io.Reader) error {
	name, err := inside(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock:
		return nil // a sandbox has devices of its own
	}
	if name == "." {
		return l.owner(h)
	}
	dir, base := path.Split(name)
	if strings.HasPrefix(base, whiteout) {
		return l.hide(dir, base)
	}
	p, err := l.enter(dir, true)
	if err != nil {
		return err
	}
	if len(p.path)+len("/")+len(base) > placeMax {
		return doze.Errorf(doze.Invalid, "the image has a path that is too long: at most %d bytes, behind all links, are possible", placeMax)
	}
	if err := l.clear(p, base, h); err != nil {
		return err
	}
	if err := l.put(p, base, h, content); err != nil {
		return err
	}
	made := path.Join(p.path, base)
	if err := l.name(made); err != nil {
		return err
	}
	l.mark(made)
	return nil
}

// owner gives the root directory its metadata.
func (l *laying) owner(h *tar.Header) error {
	if h.Typeflag != tar.TypeDir {
		return doze.Errorf(doze.Invalid, "the image has something in the place of its root directory")
	}
	p, err := l.enter("", true)
	if err != nil {
		return err
	}
	return l.metadata(p, ".", h)
}

// clear removes what is in the place of a new entry; a directory stays if the
// entry is one too.
func (l *laying) clear(p *place, base string, h *tar.Header) error {
	old, err := p.root.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if old.IsDir() && h.Typeflag == tar.TypeDir {
		return nil
	}
	if old.Mode().IsRegular() {
		return p.root.Remove(base)
	}
	p.name = stale // through base it may have been reached; it stays open for this entry
	return p.root.RemoveAll(base)
}

// stale is a name that no entry has.
const stale = "\x00"

// put makes the entry.
func (l *laying) put(p *place, base string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		if err := l.file(p, base, h.Size, content); err != nil {
			return err
		}
	case tar.TypeDir:
		if err := p.root.Mkdir(base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		release, err := l.take(blockSize)
		if err != nil {
			return err
		}
		defer release()
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > pathMax || strings.ContainsRune(h.Linkname, 0) {
			return doze.Errorf(doze.Invalid, "the image has a symbolic link to nothing")
		}
		release, err := l.take(int64(len(h.Linkname)))
		if err != nil {
			return err
		}
		defer release()
		if err := p.root.Symlink(h.Linkname, base); err != nil {
			return err
		}
	case tar.TypeFifo:
		if err := unix.Mkfifoat(int(p.dir.Fd()), base, 0o600); err != nil {
			return err
		}
	case tar.TypeLink:
		return l.link(p, base, h.Linkname) // its metadata are those of the target
	default:
		return doze.Errorf(doze.Invalid, "the image has an entry of an unknown type %q", h.Typeflag)
	}
	return l.metadata(p, base, h)
}

func (l *laying) file(p *place, base string, size int64, content io.Reader) error {
	release, err := l.take(size)
	if err != nil {
		return err
	}
	defer release()
	f, err := p.root.OpenFile(base, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	if err != nil {
		err = unreadable(err)
	} else if n != size {
		err = doze.Errorf(doze.Invalid, "the image has a file that is shorter than it says")
	}
	return errors.Join(err, f.Close())
}

// link makes a hard link to what is there already.
func (l *laying) link(p *place, base, target string) error {
	name, err := inside(target)
	if err != nil {
		return err
	}
	newPath := path.Join(p.path, base)
	at, err := l.walk(path.Dir(name), false)
	if err != nil {
		return doze.Wrap(err, doze.Invalid, "the image has a hard link to a file that it does not have")
	}
	if err := l.root.Link(path.Join(at, path.Base(name)), newPath); err != nil {
		return doze.Wrap(err, doze.Invalid, "the image has a hard link that cannot be made")
	}
	return nil
}

// metadata sets owner, mode and time. The mode comes after the owner, since a
// change of owner clears the set-user-ID bit.
func (l *laying) metadata(p *place, base string, h *tar.Header) error {
	const idMax = math.MaxUint32 - 1 // the last one means "leave it"
	if h.Uid < 0 || h.Uid > idMax || h.Gid < 0 || h.Gid > idMax {
		return doze.Errorf(doze.Invalid, "the image has a file of an impossible owner %d:%d", h.Uid, h.Gid)
	}
	if err := p.root.Lchown(base, h.Uid, h.Gid); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink {
		// The type bits of the header's mode are not to be trusted.
		mode := h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
		if err := p.root.Chmod(base, mode); err != nil {
			return err
		}
	}
	at := h.ModTime
	if at.Unix() < 0 || at.Unix() > math.MaxUint32 {
		at = time.Unix(0, 0)
	}
	if h.Typeflag == tar.TypeDir {
		l.times[path.Join(p.path, base)] = at
		return nil
	}
	when := unix.NsecToTimespec(at.UnixNano())
	if err := unix.UtimesNanoAt(int(p.dir.Fd()), base, []unix.Timespec{when, when}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimensat", Path: base, Err: err}
	}
	return nil
}

// hide obeys a whiteout: it removes what lower layers have.
func (l *laying) hide(dir, base string) error {
	at, err := l.walk(dir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	l.forget()
	name := strings.TrimPrefix(base, whiteout)
	switch {
	case base == opaque:
		return l.hideAll(at)
	case strings.HasPrefix(base, internal):
		return nil
	case name == "" || name == "." || name == "..":
		return doze.Errorf(doze.Invalid, "the image has a whiteout of nothing")
	}
	return l.hideLower(path.Join(at, name))
}

// hideAll hides what lower layers have in a directory. It reads a directory
// once only, however many whiteouts a layer has.
func (l *laying) hideAll(dir string) error {
	if l.bare[dir] {
		return nil
	}
	l.bare[dir] = true
	d, err := l.root.Open(dir)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	if l.steps -= int64(len(names)); l.steps < 0 {
		return doze.Errorf(doze.TooLarge, "the whiteouts of the image hide too many files")
	}
	for _, name := range names {
		if err := l.hideLower(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (l *laying) hideLower(name string) error {
	if !l.made[name] {
		return l.root.RemoveAll(name)
	}
	info, err := l.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.IsDir() {
		return err
	}
	return l.hideAll(name)
}

// enter opens a directory of the tree.
func (t *rootTree) enter(name string, create bool) (*place, error) {
	if t.last != nil && t.last.name == name {
		return t.last, nil
	}
	at, err := t.walk(name, create)
	if err != nil {
		return nil, err
	}
	root, err := t.root.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	dir, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	t.forget()
	t.last = &place{name, at, root, dir}
	return t.last, nil
}

// walk returns the path of a directory of the tree without links, which it
// follows as a process would whose root directory is the tree. With create it
// makes directories that are missing; those that exist keep their metadata.
func (t *rootTree) walk(name string, create bool) (string, error) {
	at, links, steps := ".", 0, 0
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		if steps++; steps > 2*depthMax {
			return "", doze.Errorf(doze.Invalid, "the image has a name that leads through more than %d directories", 2*depthMax)
		}
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..": // of a link's target; entries have none
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		if len(next) > placeMax {
			return "", doze.Errorf(doze.Invalid, "the image has a path that is too long: at most %d bytes, behind all links, are possible", placeMax)
		}
		info, err := t.root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && create:
			if err := errors.Join(t.count(), t.name(next)); err != nil {
				return "", err
			}
			if err := t.root.Mkdir(next, 0o755); err != nil {
				return "", err
			}
			t.times[next] = time.Unix(0, 0) // not today: equal layers make equal trees
			at = next
		case err != nil:
			return "", err
		case info.IsDir():
			if _, known := t.times[next]; !known { // it was there before the first layer
				t.times[next] = info.ModTime()
			}
			at = next
		case info.Mode().Type() == fs.ModeSymlink:
			if links++; links > linksMax {
				return "", doze.Errorf(doze.Invalid, "the image has a directory behind more than %d symbolic links", linksMax)
			}
			target, err := t.root.Readlink(next)
			if err != nil {
				return "", err
			}
			if path.IsAbs(target) {
				at = "."
			}
			rest = append(strings.Split(target, "/"), rest...)
		default:
			return "", doze.Errorf(doze.Invalid, "the image has a file and a directory in the same place")
		}
	}
	return at, nil
}

// inside makes a name of an archive a relative one without dots; the root is
// ".". An absolute name means the same file as a relative one.
func inside(name string) (string, error) {
	if len(name) > pathMax || strings.ContainsRune(name, 0) {
		return "", doze.Errorf(doze.Invalid, "the image has a file name that no system takes")
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		if depth++; part == ".." || len(part) > nameMax || depth > depthMax {
			return "", doze.Errorf(doze.Invalid, "the image has a file name that leads out of its directory, or is too long or too deep")
		}
	}
	return path.Clean("./" + strings.TrimLeft(name, "/")), nil
}
