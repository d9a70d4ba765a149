package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Trim gives back what the layers of a checkpoint have and its index does not use. A copy
// that was made before it left that. A layer that another checkpoint has too is left alone.
// Preconditions: the caller is the only one that knows of the checkpoint in dir.
func Trim(dir string, files []File) error {
	about, ok := Manifest{Files: files}.Index()
	if !ok {
		return nil
	}
	index, err := ReadIndex(dir, about)
	if err != nil {
		return err
	}
	used := make([][]uint32, index.Layers) // chunks by layer, in order
	for _, c := range index.Chunks {
		used[c.Layer] = append(used[c.Layer], c.Number)
	}
	for layer, chunks := range used {
		if err := trim(filepath.Join(dir, LayerName(layer)), index.Size, chunks); err != nil {
			return fmt.Errorf("trim a layer: %w", err)
		}
	}
	return nil
}

// trim makes holes between the chunks of a layer.
func trim(name string, size int64, chunks []uint32) error {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !unshared(info) {
		return nil
	}
	end := uint32((info.Size() + size - 1) / size) //nolint:gosec // G115: below MemoryMost
	behind := int64(0)                             // of the chunks so far
	for _, number := range append(chunks, end) {
		at := int64(number) * size
		if at > behind {
			err := punch(file, behind, at-behind)
			if errors.Is(err, unix.EOPNOTSUPP) {
				return nil // the file system has no holes
			}
			if err != nil {
				return err
			}
		}
		behind = at + size
	}
	return nil
}
