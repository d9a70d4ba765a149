package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/sparse"
)

// A file system that cannot share blocks copies the disk of a machine for each checkpoint,
// and again for each wake. So the disk of a checkpoint has a checksum there, and a wake
// compares it. Neither reads more than before. Where blocks are shared nobody reads them,
// and there is no checksum.
//
// The sum is the CRC-32C of the number and the CRC-32C of each chunk, in order. Chunks with
// nothing but zeros are left out: whether they are holes differs between file systems.

const (
	// diskPiece is how much of a disk is read at a time: the cache of a processor has it.
	diskPiece = 64 << 10
	// diskPage is how much is written at a time, at least. What is zero stays a hole.
	diskPage = 4 << 10
)

// copySummed copies a disk of so many bytes into an empty file, and returns its checksum.
// With no target it only reads. It ends early when ctx does.
func copySummed(ctx context.Context, to, from *os.File, size int64) (sum uint32, err error) {
	buffer, next := make([]byte, diskPiece), int64(0)
	for e, err := range sparse.Extents(from, size) {
		if err != nil {
			return 0, err
		}
		for i := max(next, e.Offset/SumChunk); i*SumChunk < e.Offset+e.Length; i++ {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			next = i + 1
			own, data, err := copyChunk(to, from, i*SumChunk, buffer)
			if err != nil {
				return 0, err
			}
			if !data {
				continue
			}
			var about [12]byte
			binary.BigEndian.PutUint64(about[:8], uint64(i)) //nolint:gosec // G115: it is positive
			binary.BigEndian.PutUint32(about[8:], own)
			sum = crc32.Update(sum, castagnoli, about[:])
		}
	}
	return sum, nil
}

// copyChunk copies the chunk at an offset, unless there is no target. It returns the
// checksum of the chunk, and whether it has anything but zeros.
func copyChunk(to, from *os.File, at int64, buffer []byte) (sum uint32, data bool, err error) {
	for end := at + SumChunk; at < end; at += int64(len(buffer)) {
		n, err := from.ReadAt(buffer, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, false, err
		}
		raw := buffer[:n]
		sum = crc32.Update(sum, castagnoli, raw)
		if Zero(raw) {
			continue
		}
		data = true
		if to == nil {
			continue
		}
		if err := writeData(to, raw, at); err != nil {
			return 0, false, err
		}
	}
	return sum, data, nil
}

// writeData writes those pages that are not zero.
func writeData(to *os.File, raw []byte, at int64) error {
	page := func(i int) []byte { return raw[i:min(len(raw), i+diskPage)] }
	for i := 0; i < len(raw); {
		if Zero(page(i)) {
			i += diskPage
			continue
		}
		end := i + diskPage
		for end < len(raw) && !Zero(page(end)) {
			end += diskPage
		}
		if _, err := to.WriteAt(raw[i:min(len(raw), end)], at+int64(i)); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// cloneDisk gives an empty file the content of a disk. It returns the checksum of the disk,
// or nil if nobody had to read it.
func cloneDisk(ctx context.Context, to, from *os.File) (sum *uint32, err error) {
	if sparse.Share(to, from) {
		return nil, nil
	}
	info, err := from.Stat()
	if err != nil {
		return nil, err
	}
	got, err := copySummed(ctx, to, from, info.Size())
	if err != nil {
		return nil, err
	}
	return &got, to.Truncate(info.Size())
}

// checkSum compares the checksum of a disk with what the manifest says. Either may be nil.
func (f File) checkSum(got *uint32) error {
	if f.Sum != nil && got != nil && *f.Sum != *got {
		return fmt.Errorf("%w: %s was altered", machine.ErrDamaged, f.Name)
	}
	return nil
}
