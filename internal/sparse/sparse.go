// Package sparse reads and copies files with holes.
package sparse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// An Extent is a part of a file that is no hole.
type Extent struct {
	Offset, Length int64 // in bytes
}

// Extents yields what of the first size bytes of a file is no hole, by offset. A file
// system that knows no holes gives one extent. The first error is the last item.
func Extents(f *os.File, size int64) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		for at := int64(0); at < size; {
			begin, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) { // nothing but a hole is left
				return
			}
			if err != nil {
				yield(Extent{}, fmt.Errorf("find data in %s: %w", f.Name(), err))
				return
			}
			end, err := unix.Seek(int(f.Fd()), begin, unix.SEEK_HOLE)
			if err != nil {
				yield(Extent{}, fmt.Errorf("find a hole in %s: %w", f.Name(), err))
				return
			}
			if begin >= size || !yield(Extent{Offset: begin, Length: min(end, size) - begin}, nil) {
				return
			}
			at = end
		}
	}
}

// piece is how much is copied at a time, in bytes: a context that ends is noticed then.
const piece = 8 << 20

// Copy copies what of the first size bytes of a file is no hole, to the same
// offsets. It leaves the size of the target to the caller. A context that ends stops
// it between two pieces, with the cause of the context.
func Copy(ctx context.Context, to, from *os.File, size int64) error {
	for e, err := range Extents(from, size) {
		if err != nil {
			return err
		}
		if _, err := to.Seek(e.Offset, io.SeekStart); err != nil {
			return err
		}
		for done := int64(0); done < e.Length; done += piece {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			part := io.NewSectionReader(from, e.Offset+done, min(piece, e.Length-done))
			if _, err := io.Copy(to, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// Clone gives an empty file the content and the size of another one. Where the file system
// can, they share their blocks, and nothing is copied. Otherwise Clone is Copy.
func Clone(ctx context.Context, to, from *os.File) error {
	if Share(to, from) {
		return nil
	}
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if err := Copy(ctx, to, from, info.Size()); err != nil {
		return err
	}
	return to.Truncate(info.Size())
}

// Share gives an empty file the content and the size of another one, without a copy, and
// reports whether the file system can do that.
func Share(to, from *os.File) bool {
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil
}

// shared is what Shares tries, in bytes: whole blocks of any file system.
const shared = 64 << 10

// Shares reports whether an empty file can share the blocks of another one. The content of
// the empty one may be anything then, until Clone.
func Shares(to, from *os.File) bool {
	return unix.IoctlFileCloneRange(int(to.Fd()), &unix.FileCloneRange{Src_fd: int64(from.Fd()), Src_length: shared}) == nil //nolint:gosec // G115: a descriptor
}
