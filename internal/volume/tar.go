package volume

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

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

const (
	// entriesMax bounds the entries of an archive, far above what people pack.
	entriesMax = 500_000
	// headersMax is what the headers of one entry take in an archive, generously.
	headersMax = 4 << 10
	// nameMax and depthMax bound a name and the work that it makes.
	nameMax  = 4095
	depthMax = 256
)

// importing begins the name of a volume whose files are still coming, which is
// its own owner.
const importing = "importing-"

// Import makes a volume of a size with the files of a tar, and returns how many
// bytes they have. Only files and directories may be in it; they are root's. On
// an error there is no such volume.
func (p *Pool) Import(ctx context.Context, id string, size doze.Megabytes, archive io.Reader) (bytes int64, err error) {
	if err := check(id); err != nil {
		return 0, err
	}
	// A volume of its own takes the files, so that they are bounded by its size;
	// it gets its name when it is whole.
	half := importing + id
	if err := p.Remove(half); err != nil { // of an attempt that was cut short
		return 0, err
	}
	if err := p.Make(ctx, half, size, ""); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Detach(half), p.Remove(half)) }()
	dir, err := p.Attach(ctx, half, half, false)
	if err != nil {
		return 0, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	bytes, err = unpack(ctx, root, archive, size.Bytes())
	if err = errors.Join(err, root.Close()); err != nil {
		return 0, err
	}
	if err := p.Detach(half); err != nil { // with it, everything is on disk
		return 0, err
	}
	if err := p.make(id, func(name string) error { return os.Rename(p.disk(half), name) }); err != nil {
		return 0, err
	}
	p.ledger.Record(id, size.Bytes()) // what was reserved for half, which is removed now
	return bytes, nil
}

// unpack writes the files of a tar into a directory, and refuses what does not
// fit into most bytes.
func unpack(ctx context.Context, root *os.Root, archive io.Reader, most int64) (total int64, err error) {
	limited := &io.LimitedReader{R: archive, N: most + entriesMax*headersMax}
	in := tar.NewReader(limited)
	for entries := 0; ; entries++ {
		if ctx.Err() != nil {
			return total, context.Cause(ctx)
		}
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && entries == 0:
			return total, doze.Errorf(doze.Invalid, "the body is an empty archive: send a tar with files")
		case errors.Is(err, io.EOF):
			return total, nil
		case err != nil:
			return total, unreadable(err, limited.N)
		case entries == entriesMax:
			return total, doze.Errorf(doze.TooLarge, "the archive has more than %d entries", entriesMax)
		}
		if total += max(h.Size, 0); total > most {
			return total, full(nil)
		}
		if err := place(root, h, in); err != nil {
			return total, unreadable(err, limited.N)
		}
	}
}

// full is what a caller hears of files that do not fit.
func full(err error) error {
	return doze.Wrap(err, doze.TooLarge, "the files do not fit into the volume: set a larger spec.defaultSize")
}

// unreadable classifies why an archive ended before its end.
func unreadable(err error, left int64) error {
	_, known := errors.AsType[*doze.Error](err)
	_, ours := errors.AsType[*fs.PathError](err)
	switch {
	case errors.Is(err, unix.ENOSPC) || left <= 0:
		return full(err)
	case known:
		return err
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR):
		return doze.Wrap(err, doze.Invalid, "the archive has a file and a directory of one name")
	case errors.Is(err, unix.ENAMETOOLONG):
		return doze.Wrap(err, doze.Invalid, "the archive has a name that is too long")
	case ours:
		return err
	default:
		return doze.Wrap(err, doze.Invalid, "the body is not a whole tar: send it uncompressed")
	}
}

// place writes one entry. One that comes again replaces the one before.
func place(root *os.Root, h *tar.Header, content io.Reader) error {
	name, err := clean(h.Name)
	if err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode).Perm() //nolint:gosec // G115: only nine bits are looked at
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := write(root, name, content); err != nil {
			return err
		}
	case tar.TypeXGlobalHeader:
		return nil // of what made the archive
	default:
		return doze.Errorf(doze.Invalid, "the archive has %.200q, which is neither a file nor a directory: leave out links and devices", h.Name)
	}
	if err := root.Chmod(name, mode); err != nil {
		return err
	}
	return root.Chtimes(name, h.ModTime, h.ModTime)
}

func write(root *os.Root, name string, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %.200q: %w", name, err)
	}
	return nil
}

// clean is the name of an entry below the root of the volume, or why it is none.
func clean(name string) (string, error) {
	bad := func(why string) (string, error) {
		return "", doze.Errorf(doze.Invalid, "the archive has the name %.200q, which %s", name, why)
	}
	switch {
	case name == "" || strings.ContainsRune(name, 0):
		return bad("is none")
	case strings.HasPrefix(name, "/"):
		return bad("begins with a slash: names must be relative")
	case len(name) > nameMax || strings.Count(name, "/") > depthMax:
		return bad("is too long")
	case !filepath.IsLocal(strings.TrimRight(name, "/")):
		return bad("leads out of the volume")
	}
	return path.Clean(name), nil
}
