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

// Copy copies what of the first size bytes of a file is no hole, to the same
// offsets. It leaves the size of the target to the caller. A context that ends stops
// it between two extents, with the cause of the context.
func Copy(ctx context.Context, to, from *os.File, size int64) error {
	for e, err := range Extents(from, size) {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := to.Seek(e.Offset, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(to, io.NewSectionReader(from, e.Offset, e.Length)); err != nil {
			return err
		}
	}
	return nil
}
