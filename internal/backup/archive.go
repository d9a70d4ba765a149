package backup

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/sparse"
)

// The versions of the archive that this dozed writes. It reads no other.
const (
	Format        = 1 // of dozed all
	FormatControl = 2 // of dozed control: its records, and its keys
)

// Names of the first entry, of the last one, and of the parts between them.
const (
	manifestName = "manifest.json"
	endName      = "end.json"
	recordsName  = "records.db"  // the records, as a file of SQLite
	configName   = "config.json" // the configuration, if dozed backup got one
	dataName     = "data"        // what is in the data directory
	imagesName   = "images"      // what is in the directory of images
)

const (
	// documentMax bounds the first and the last entry.
	documentMax = 16 << 20
	// extentsMax bounds the parts of a file with holes, which are in its header. Headers
	// have a bound of 1 MiB.
	extentsMax = 8192
	// extentGap is the shortest hole that a file keeps, in bytes.
	extentGap = 64 << 10
	// fileMax bounds a file, as ext4 does.
	fileMax = 16 << 40
	// nameMax bounds a name in the archive.
	nameMax = 4096
	// extentsRecord is the extended header with the parts of a file: "OFFSET:LENGTH,…",
	// and sizeRecord that with its size.
	extentsRecord = "DOZE.extents"
	sizeRecord    = "DOZE.size"
)

// Manifest is the first entry of an archive.
type Manifest struct {
	Format  int       `json:"format"`
	Version string    `json:"version"` // of the dozed that wrote it
	Made    time.Time `json:"made"`
	Data    string    `json:"data"`   // its data directory
	Images  string    `json:"images"` // its directory of images
}

// End is the last entry. An archive without it was cut off.
type End struct {
	Entries int64  `json:"entries"` // before this one
	Bytes   int64  `json:"bytes"`   // of their contents
	Sum     string `json:"sum"`     // SHA-256 of their headers and contents, in hex
	// Left says what is missing of some sandboxes, by UID.
	Left map[string]string `json:"left,omitempty"`
}

// errDamaged is what reading an archive returns that is none, or was altered.
var errDamaged = errors.New("the backup is damaged")

// damaged is an error of an archive.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamaged, fmt.Sprintf(format, args...))
}

// identity tells files apart, over time too: an inode is used again when its file is gone.
type identity struct {
	major, minor uint32
	inode        uint64
	size         int64
	born         unix.StatxTimestamp
}

// Writer writes an archive. It is a tar, in which a file with holes has its parts alone.
// A file that another one shares its content with is a link to it.
type Writer struct {
	tar  *tar.Writer
	hash hash.Hash
	end  End
	seen map[identity]string // files with several names, and the name that has the content
}

// NewWriter begins an archive.
func NewWriter(w io.Writer, m Manifest) (*Writer, error) {
	b := &Writer{tar: tar.NewWriter(w), hash: sha256.New(), seen: map[identity]string{}}
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return b, b.Text(manifestName, raw)
}

// Close writes the end. Without it the archive is refused.
func (w *Writer) Close(left map[string]string) error {
	w.end.Sum, w.end.Left = hex.EncodeToString(w.hash.Sum(nil)), left
	raw, err := json.Marshal(w.end)
	if err != nil {
		return err
	}
	return errors.Join(w.Text(endName, raw), w.tar.Close())
}

// Written is how many bytes of contents there are so far.
func (w *Writer) Written() int64 { return w.end.Bytes }

// Text writes a small file.
func (w *Writer) Text(name string, raw []byte) error {
	if err := w.begin(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(raw))}); err != nil {
		return err
	}
	return w.content(raw)
}

func (w *Writer) begin(h *tar.Header) error {
	h.Format = tar.FormatPAX
	if len(h.Name) > nameMax {
		return fmt.Errorf("back up %.80q: its name is too long", h.Name)
	}
	if err := w.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("back up %s: %w", h.Name, err)
	}
	w.end.Entries++
	w.end.Bytes += h.Size
	sumHeader(w.hash, h)
	return nil
}

// sumHeader adds to a checksum what counts of a header.
func sumHeader(to hash.Hash, h *tar.Header) {
	fmt.Fprintf(to, "%q %c %o %d %q %q %q\n", h.Name, h.Typeflag, h.Mode&0o777, h.Size, h.Linkname, h.PAXRecords[extentsRecord], h.PAXRecords[sizeRecord])
}

func (w *Writer) content(raw []byte) error {
	_, _ = w.hash.Write(raw)
	_, err := w.tar.Write(raw)
	return err
}

// Tree writes a directory with all files and directories in it. Links and devices are left
// out, and so is what skip names, by its path in the directory. What is removed meanwhile
// is not there.
func (w *Writer) Tree(ctx context.Context, name, dir string, skip func(rel string) bool) error {
	return filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if skip != nil && skip(rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		to := path.Join(name, filepath.ToSlash(rel))
		switch {
		case e.IsDir():
			return w.begin(&tar.Header{Typeflag: tar.TypeDir, Name: to, Mode: 0o700})
		case e.Type().IsRegular():
			if err := w.File(ctx, to, file); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// File writes one file. One that grows meanwhile has the size of its beginning.
func (w *Writer) File(ctx context.Context, name, file string) (err error) {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was read
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return fmt.Errorf("look at %s: %w", file, err)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(st.Mode & 0o777)}
	size := int64(st.Size) //nolint:gosec // G115: a file has fewer bytes
	if st.Nlink > 1 && st.Mask&unix.STATX_BTIME != 0 {
		is := identity{st.Dev_major, st.Dev_minor, st.Ino, size, st.Btime}
		if first := w.seen[is]; first != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return w.begin(h)
		}
		w.seen[is] = name
	}
	parts, err := partsOf(f, size)
	if err != nil {
		return err
	}
	for _, p := range parts {
		h.Size += p.Length
	}
	if len(parts) != 1 || parts[0].Length != size {
		h.PAXRecords = map[string]string{extentsRecord: formatParts(parts), sizeRecord: strconv.FormatInt(size, 10)}
	}
	if err := w.begin(h); err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	for _, p := range parts {
		if err := w.part(ctx, f, p, buffer); err != nil {
			return fmt.Errorf("back up %s: %w", file, err)
		}
	}
	return nil
}

// part writes a part of a file. What is missing of it, since the file became shorter, is
// zero.
func (w *Writer) part(ctx context.Context, f *os.File, p sparse.Extent, buffer []byte) error {
	for done := int64(0); done < p.Length; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		piece := buffer[:min(int64(len(buffer)), p.Length-done)]
		n, err := f.ReadAt(piece, p.Offset+done)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		clear(piece[n:])
		if err := w.content(piece); err != nil {
			return err
		}
		done += int64(len(piece))
	}
	return nil
}

// partsOf returns what of a file is no long hole.
func partsOf(f *os.File, size int64) ([]sparse.Extent, error) {
	for gap := int64(extentGap); ; gap *= 4 {
		var parts []sparse.Extent
		for e, err := range sparse.Extents(f, size) {
			if err != nil {
				return nil, err
			}
			last := len(parts) - 1
			if last >= 0 && e.Offset-parts[last].Offset-parts[last].Length < gap {
				parts[last].Length = e.Offset + e.Length - parts[last].Offset
				continue
			}
			if parts = append(parts, e); len(parts) > extentsMax {
				break
			}
		}
		if len(parts) <= extentsMax {
			return parts, nil
		}
	}
}

func formatParts(parts []sparse.Extent) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d:%d", p.Offset, p.Length)
	}
	return b.String()
}

// parseParts reads what formatParts wrote, of a file of some size.
func parseParts(text string, size, length int64) (parts []sparse.Extent, err error) {
	end, total := int64(0), int64(0)
	for part := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		at, n, ok := strings.Cut(part, ":")
		offset, bad := strconv.ParseInt(at, 10, 64)
		bytes, worse := strconv.ParseInt(n, 10, 64)
		if !ok || bad != nil || worse != nil || offset < end || bytes < 0 || offset > size || bytes > size-offset || len(parts) == extentsMax {
			return nil, damaged("a file has parts that do not fit")
		}
		end, total = offset+bytes, total+bytes
		parts = append(parts, sparse.Extent{Offset: offset, Length: bytes})
	}
	if total != length {
		return nil, damaged("a file has parts of %d bytes, and a content of %d", total, length)
	}
	return parts, nil
}

// Extract reads an archive into an empty directory. It gives back the first and the last
// entry. On an error, what it made so far is still there. Begin hears of the manifest
// before anything is made.
func Extract(ctx context.Context, r io.Reader, to *os.Root, begin func(Manifest) error) (m Manifest, end End, err error) {
	x := extraction{tar: tar.NewReader(r), to: to, hash: sha256.New()}
	h, err := x.next()
	if err != nil {
		return m, end, err
	}
	if h.Name != manifestName {
		return m, end, damaged("it does not begin with %s", manifestName)
	}
	if err := x.document(h, &m); err != nil {
		return m, end, err
	}
	if m.Format != Format && m.Format != FormatControl {
		return m, end, doze.Errorf(doze.Unsupported, "the backup has the format %d, and this dozed reads up to %d: use the dozed of version %.40q", m.Format, FormatControl, m.Version)
	}
	if err := begin(m); err != nil {
		return m, end, err
	}
	for {
		if ctx.Err() != nil {
			return m, end, context.Cause(ctx)
		}
		want := End{Entries: x.end.Entries, Bytes: x.end.Bytes, Sum: hex.EncodeToString(x.hash.Sum(nil))}
		h, err := x.next()
		if err != nil {
			return m, end, err
		}
		if h.Name != endName {
			if err := x.entry(ctx, h); err != nil {
				return m, end, err
			}
			continue
		}
		if err := x.document(h, &end); err != nil {
			return m, end, err
		}
		if end.Entries != want.Entries || end.Bytes != want.Bytes || end.Sum != want.Sum {
			return m, end, damaged("it has %d entries with the checksum %.12s, and should have %d with %.12s", want.Entries, want.Sum, end.Entries, end.Sum)
		}
		return m, end, nil
	}
}

// extraction is an archive that is being read.
type extraction struct {
	tar  *tar.Reader
	to   *os.Root
	hash hash.Hash
	end  End
}

// next returns the header of the next entry.
func (x *extraction) next() (*tar.Header, error) {
	h, err := x.tar.Next()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, damaged("it was cut off, and has no %s", endName)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	case len(h.Name) > nameMax || !filepath.IsLocal(h.Name) || path.Clean(h.Name) != h.Name:
		return nil, damaged("an entry has the name %.80q", h.Name)
	}
	x.end.Entries++
	x.end.Bytes += h.Size
	sumHeader(x.hash, h)
	return h, nil
}

// document reads a small entry.
func (x *extraction) document(h *tar.Header, to any) error {
	if h.Typeflag != tar.TypeReg || h.Size > documentMax {
		return damaged("%s is no small file", h.Name)
	}
	raw, err := io.ReadAll(x.tar)
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	_, _ = x.hash.Write(raw)
	if err := json.Unmarshal(raw, to); err != nil {
		return damaged("%s is no JSON of ours", h.Name)
	}
	return nil
}

// entry makes what an entry is of.
func (x *extraction) entry(ctx context.Context, h *tar.Header) error {
	if top, _, _ := strings.Cut(h.Name, "/"); top != dataName && top != imagesName && h.Name != recordsName && h.Name != configName {
		return damaged("an entry has the name %.80q", h.Name)
	}
	if dir := path.Dir(h.Name); dir != "." {
		if err := x.to.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return x.to.MkdirAll(h.Name, 0o700)
	case tar.TypeLink:
		if !filepath.IsLocal(h.Linkname) {
			return damaged("an entry links to %.80q", h.Linkname)
		}
		return x.to.Link(h.Linkname, h.Name)
	case tar.TypeReg:
		return x.file(ctx, h)
	}
	return damaged("the entry %.80q is no file", h.Name)
}

// file makes a file.
func (x *extraction) file(ctx context.Context, h *tar.Header) (err error) {
	size, parts := h.Size, []sparse.Extent{{Length: h.Size}}
	if text, sparse := h.PAXRecords[sizeRecord]; sparse {
		size, err = strconv.ParseInt(text, 10, 64)
		if err != nil || size < 0 || size > fileMax {
			return damaged("%.80q has the size %.40q", h.Name, text)
		}
		if parts, err = parseParts(h.PAXRecords[extentsRecord], size, h.Size); err != nil {
			return err
		}
	}
	mode := fs.FileMode(h.Mode & 0o755)
	if err := x.to.Remove(h.Name); err != nil && !errors.Is(err, fs.ErrNotExist) { // a later entry replaces it
		return err
	}
	f, err := x.to.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content := io.TeeReader(x.tar, x.hash)
	for _, p := range parts {
		to := io.NewOffsetWriter(f, p.Offset)
		for done := int64(0); done < p.Length; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n, err := io.CopyN(to, content, min(8<<20, p.Length-done))
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return damaged("it was cut off in %.80q", h.Name)
			}
			if err != nil {
				return fmt.Errorf("restore %.80q: %w", h.Name, err)
			}
			done += n
		}
	}
	return errors.Join(f.Truncate(size), f.Chmod(mode))
}
