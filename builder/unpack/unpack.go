// Package unpack makes a directory of an archive that a stranger sent.
//
// It writes by an [os.Root], so nothing leaves the directory, whatever names and links
// the archive has. A symbolic link may lead anywhere, as in images: it is only a text,
// and no entry is written through one that leads out.
package unpack

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
)

const (
	// sniff is how many of the first bytes tell what an archive is.
	sniff = 512
	// tarMagicAt is where a tar has "ustar".
	tarMagicAt = 257
	// directoryBytes is what an entry of a zip's directory takes, with a long name. It
	// bounds the memory for a directory, which is read as a whole.
	directoryBytes = 256
	// linkMax bounds the target of a symbolic link, in bytes.
	linkMax = 4095
	// excerpt is how much of a name a message repeats.
	excerpt = 200
)

// A MistakeError is an archive that is hostile or broken. Its text is for the sender.
type MistakeError struct {
	Text string
	// TooLarge says that the archive exceeds a bound.
	TooLarge bool
}

// Error implements error.
func (m *MistakeError) Error() string { return m.Text }

// mistake returns an error about one entry.
func mistake(name, format string, args ...any) error {
	return &MistakeError{Text: fmt.Sprintf("entry %.*q of the archive: ", excerpt, name) + fmt.Sprintf(format, args...)}
}

// Limits bound what an archive may have.
type Limits struct {
	Archive int64 // bytes as it was sent
	Files   int   // entries
	Bytes   int64 // of all files together
	Depth   int   // directories in a path
}

// Default are the limits of the protocol.
var Default = Limits{
	Archive: buildapi.ContextBytesMax, Files: buildapi.ContextFilesMax, Bytes: buildapi.ContextUnpackedMax, Depth: buildapi.ContextDepthMax,
}

// Stats is what an archive had.
type Stats struct {
	Files int
	Bytes int64
}

// Archive unpacks a zip, a tar, or a tar compressed by gzip into a directory that exists and
// is empty. A zip is spooled into a file beside it, as it begins with its end. Errors are
// *[MistakeError], or those of the disk and of r. The directory has a part then.
func Archive(r io.Reader, dir string, limits Limits) (Stats, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Stats{}, err
	}
	defer func() { _ = root.Close() }()
	u := &unpacker{root: root, limits: limits, times: map[string]time.Time{}}
	in := bufio.NewReaderSize(&bounded{r: r, left: limits.Archive}, 64<<10)
	head, err := in.Peek(sniff)
	if err != nil && !errors.Is(err, io.EOF) {
		return Stats{}, err
	}
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		err = u.spooled(in, filepath.Dir(dir))
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		var z *gzip.Reader
		if z, err = gzip.NewReader(in); err == nil {
			err = u.tar(z)
		}
	case len(head) > tarMagicAt && bytes.HasPrefix(head[tarMagicAt:], []byte("ustar")):
		err = u.tar(in)
	case len(head) == sniff && len(bytes.Trim(head, "\x00")) == 0:
		err = &MistakeError{Text: "the archive is empty: it needs a Dockerfile"}
	default:
		err = &MistakeError{Text: "the body is neither a zip nor a tar nor a tar compressed by gzip"}
	}
	if err == nil {
		err = u.finish()
	}
	return u.stats, classify(err, u.at)
}

// classify names the errors of readers that are mistakes of the sender. At is the last entry.
func classify(err error, at string) error {
	for _, broken := range []error{
		tar.ErrHeader, zip.ErrFormat, zip.ErrAlgorithm, zip.ErrChecksum, gzip.ErrHeader, gzip.ErrChecksum, io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, broken) {
			text := "the archive is broken"
			if at != "" {
				text += fmt.Sprintf(" in or after entry %.*q", excerpt, at)
			}
			return &MistakeError{Text: text + ": " + err.Error()}
		}
	}
	return err
}

// bounded is a reader that fails beyond a bound.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, &MistakeError{Text: "the archive is too large", TooLarge: true}
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}

// unpacker is at work on one archive.
type unpacker struct {
	root   *os.Root
	limits Limits
	stats  Stats
	at     string // the name of the last entry
	// times are those of directories, which change with each file in them.
	times map[string]time.Time
}

// entry is a file of any archive.
type entry struct {
	name string
	mode fs.FileMode
	time time.Time
	link string // of a symbolic link, or of another name of a file
	hard bool
	size int64 // as the archive says
	open func() (io.ReadCloser, error)
}

// tar unpacks a tar.
func (u *unpacker) tar(r io.Reader) error {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		e := entry{name: h.Name, mode: h.FileInfo().Mode(), time: h.ModTime, link: h.Linkname, size: h.Size}
		e.open = func() (io.ReadCloser, error) { return io.NopCloser(in), nil }
		switch h.Typeflag {
		case tar.TypeXGlobalHeader:
			continue
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeGNUSparse:
		case tar.TypeLink:
			e.hard = true
		default:
			return mistake(h.Name, "it is a device, a pipe or a socket; leave it out")
		}
		if err := u.add(e); err != nil {
			return err
		}
	}
}

// spooled unpacks a zip by a file beside the directory.
func (u *unpacker) spooled(r io.Reader, beside string) error {
	f, err := os.CreateTemp(beside, "zip-*")
	if err != nil {
		return err
	}
	defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
	size, err := io.Copy(f, r)
	if err != nil {
		return err
	}
	return u.zip(f, size)
}

// zip unpacks a zip.
func (u *unpacker) zip(r io.ReaderAt, size int64) error {
	budget := &budget{r: r, left: int64(u.limits.Files+1)*directoryBytes + 1<<20}
	in, err := zip.NewReader(budget, size)
	if err != nil {
		return err
	}
	budget.off = true // its files are bounded otherwise
	if err := u.checkDeclared(in.File); err != nil {
		return err
	}
	for _, f := range in.File {
		if f.Flags&1 != 0 {
			return mistake(f.Name, "it is encrypted")
		}
		e := entry{name: f.Name, mode: f.Mode(), time: f.Modified, open: f.Open}
		if unix := f.CreatorVersion>>8 == 3 || f.CreatorVersion>>8 == 19; !unix { // made by a system without modes
			e.mode = e.mode.Type() | 0o644
			if e.mode.IsDir() {
				e.mode = fs.ModeDir | 0o755
			}
		}
		if e.mode&fs.ModeSymlink != 0 {
			if e.link, err = target(f); err != nil {
				return err
			}
		}
		if err := u.add(e); err != nil {
			return err
		}
	}
	return nil
}

// checkDeclared refuses a zip whose directory says that it is too large, before anything of it
// is written.
func (u *unpacker) checkDeclared(files []*zip.File) error {
	left := uint64(max(u.limits.Bytes, 0))
	for _, f := range files {
		if f.UncompressedSize64 > left {
			return u.tooLarge(f.Name)
		}
		left -= f.UncompressedSize64
	}
	return nil
}

// tooLarge is the error of an archive whose files have more than fits. Name is the entry that
// does not fit.
func (u *unpacker) tooLarge(name string) error {
	limit := fmt.Sprintf("%d bytes", u.limits.Bytes)
	if u.limits.Bytes >= 1<<20 {
		limit = fmt.Sprintf("%d MB", u.limits.Bytes>>20)
	}
	return &MistakeError{TooLarge: true, Text: fmt.Sprintf(
		"the archive unpacks to more than %s, which is the limit, with entry %.*q: leave out what the Dockerfile does not copy, or have the operator raise --build-disk-mb", limit, excerpt, name)}
}

// target reads where a symbolic link of a zip leads.
func target(f *zip.File) (string, error) {
	in, err := f.Open()
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	raw, err := io.ReadAll(io.LimitReader(in, linkMax+1))
	return string(raw), err
}

// budget bounds how much is read of a file.
type budget struct {
	r    io.ReaderAt
	left int64
	off  bool
}

func (b *budget) ReadAt(p []byte, at int64) (int, error) {
	if b.off {
		return b.r.ReadAt(p, at)
	}
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, &MistakeError{Text: "the archive has too many entries", TooLarge: true}
	}
	return b.r.ReadAt(p, at)
}

// add writes one entry.
func (u *unpacker) add(e entry) error {
	u.at = e.name
	name, err := u.clean(e.name)
	if err != nil {
		return err
	}
	if u.stats.Files++; u.stats.Files > u.limits.Files {
		return &MistakeError{
			Text:     fmt.Sprintf("the archive has more than %d entries, and %.*q is beyond; leave out what the Dockerfile does not copy", u.limits.Files, excerpt, e.name),
			TooLarge: true,
		}
	}
	if name == "." {
		return nil
	}
	if err := u.write(name, e); err != nil {
		if strings.Contains(err.Error(), "path escapes from parent") { // package os has no error for it
			return mistake(e.name, "a link in its path leads out of the archive")
		}
		return err
	}
	return nil
}

// clean returns the path of an entry below the directory.
func (u *unpacker) clean(name string) (string, error) {
	switch {
	case len(name) > buildapi.ContextPathMax:
		return "", mistake(name, "its path has %d bytes, more than %d", len(name), buildapi.ContextPathMax)
	case strings.ContainsRune(name, 0):
		return "", mistake(name, "its path has a byte 0")
	case strings.HasPrefix(name, "/"):
		return "", mistake(name, "its path is absolute; make it relative to the directory with the Dockerfile")
	}
	clean := path.Clean(name)
	if !filepath.IsLocal(clean) && clean != "." {
		return "", mistake(name, "its path leads out of the archive")
	}
	if strings.Contains("/"+name+"/", "/../") { // "a/../b" is harmless, and no tool writes it
		return "", mistake(name, "its path has \"..\"")
	}
	if depth := strings.Count(clean, "/"); depth > u.limits.Depth {
		return "", mistake(name, "it is below %d directories, more than %d", depth, u.limits.Depth)
	}
	return clean, nil
}

// write makes what an entry is.
func (u *unpacker) write(name string, e entry) error {
	if dir := path.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return u.collides(e, err)
		}
	}
	old, err := u.root.Lstat(name)
	switch {
	case err == nil && old.IsDir() && e.mode.IsDir() && !e.hard:
		return u.directory(name, e)
	case err == nil && old.IsDir():
		return mistake(e.name, "it replaces a directory")
	case err == nil:
		if err := u.root.Remove(name); err != nil { // the later entry counts
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	switch {
	case e.hard:
		return u.again(name, e)
	case e.mode.IsDir():
		if err := u.root.Mkdir(name, 0o755); err != nil {
			return err
		}
		return u.directory(name, e)
	case e.mode&fs.ModeSymlink != 0:
		if e.link == "" || len(e.link) > linkMax || strings.ContainsRune(e.link, 0) {
			return mistake(e.name, "where the link leads must have 1 to %d bytes, and none of them 0", linkMax)
		}
		return u.root.Symlink(e.link, name)
	case e.mode.IsRegular():
		return u.file(name, e)
	default:
		return mistake(e.name, "it is a device, a pipe or a socket; leave it out")
	}
}

// collides explains why the directories above an entry cannot be made.
func (u *unpacker) collides(e entry, err error) error {
	if errors.Is(err, fs.ErrExist) || strings.Contains(err.Error(), "not a directory") {
		return mistake(e.name, "a file is in its path")
	}
	return err
}

// directory remembers the time of a directory, and sets its mode.
func (u *unpacker) directory(name string, e entry) error {
	u.times[name] = e.time
	return u.root.Chmod(name, modeOf(e.mode)|0o700) // its files come later
}

// again gives a file that the archive had another name.
func (u *unpacker) again(name string, e entry) error {
	of, err := u.clean(e.link)
	if err != nil {
		return err
	}
	if err := u.root.Link(of, name); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return mistake(e.name, "it is another name of %.*q, which did not come before", excerpt, e.link)
		}
		return err
	}
	return nil
}

// file writes the bytes of a file.
func (u *unpacker) file(name string, e entry) error {
	left := u.limits.Bytes - u.stats.Bytes
	if e.size > left {
		return u.tooLarge(e.name)
	}
	in, err := e.open()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, left+1))
	u.stats.Bytes += n
	if err == nil && n > left {
		err = u.tooLarge(e.name)
	}
	if err == nil {
		err = out.Chmod(modeOf(e.mode)) // by the open file: no umask
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return err
	}
	return u.stamp(name, e.time)
}

// modeOf returns the bits of a mode that a file may have.
func modeOf(m fs.FileMode) fs.FileMode {
	return m & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
}

// stamp sets the time of a file. Without a time in the archive, it is 1970: what a build
// makes of it must not differ from day to day.
func (u *unpacker) stamp(name string, t time.Time) error {
	if t.IsZero() || t.Year() < 1970 || t.Year() > 2262 {
		t = time.Unix(0, 0)
	}
	return u.root.Chtimes(name, t, t)
}

// finish sets the times of directories, those below first.
func (u *unpacker) finish() error {
	names := make([]string, 0, len(u.times))
	for name := range u.times {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) })
	for _, name := range names {
		if err := u.stamp(name, u.times[name]); err != nil {
			return err
		}
	}
	return nil
}
