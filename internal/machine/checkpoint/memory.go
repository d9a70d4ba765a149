package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
)

// Memory reads the chunks of a checkpoint.
type Memory struct {
	Index

	layers []*os.File
}

// OpenMemory opens the memory of the checkpoint in dir, which has these files.
func OpenMemory(dir string, files []File) (_ *Memory, err error) {
	m := &Memory{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if i := slices.IndexFunc(files, func(f File) bool { return f.Name == FileIndex }); i >= 0 {
		if m.Index, err = ReadIndex(dir, files[i]); err != nil {
			return nil, err
		}
	} else if err := m.old(files); err != nil {
		return nil, err
	}
	for layer := range m.Layers {
		file, err := os.Open(filepath.Join(dir, LayerName(layer)))
		if err != nil {
			return nil, err
		}
		m.layers = append(m.layers, file)
		info, err := file.Stat()
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(files, func(f File) bool { return f.Name == LayerName(layer) && f.Bytes == info.Size() }) {
			return nil, fmt.Errorf("%w: %s has %d bytes and should have another number", machine.ErrDamaged, LayerName(layer), info.Size())
		}
	}
	return m, nil
}

// old makes the index of a checkpoint that has none: all of its memory is in one
// file, and the manifest has the checksums.
func (m *Memory) old(files []File) error {
	i := slices.IndexFunc(files, func(f File) bool { return f.Name == FilePages })
	if i < 0 {
		return fmt.Errorf("%w: it has no memory", machine.ErrDamaged)
	}
	f := files[i]
	m.Index = Index{Bytes: f.Bytes, Size: SumChunk, Layers: 1, Ranges: f.Ranges}
	if len(f.Ranges) == 0 && f.Bytes > 0 {
		m.Ranges = []Range{{Bytes: f.Bytes}}
	}
	for i, sum := range f.Chunks {
		m.Chunks = append(m.Chunks, Chunk{Number: uint32(i), Sum: sum})
	}
	m.count()
	return nil
}

// Load reads a chunk into a buffer and compares it with what it should be. It
// returns the part of the buffer that it takes.
func (m *Memory) Load(number uint32, into []byte) ([]byte, error) {
	at, length := m.At(number)
	if length <= 0 || length > int64(len(into)) {
		return nil, io.EOF
	}
	into = into[:length]
	c, ok := m.Find(number)
	if !ok {
		clear(into)
		return into, nil
	}
	if err := readData(m.layers[c.Layer], into, at); err != nil {
		return nil, err
	}
	if Sum(into) != c.Sum {
		return nil, fmt.Errorf("%w: %s was altered near byte %d", machine.ErrDamaged, LayerName(int(c.Layer)), at)
	}
	return into, nil
}

// readData fills a buffer from an offset of a file. It reads no holes: the kernel would
// clear pages of its cache for them first. What is behind the end of the file is a hole.
func readData(file *os.File, into []byte, from int64) error {
	clear(into)
	return EachData(int(file.Fd()), from, from+int64(len(into)), func(at, end int64) error {
		if _, err := file.ReadAt(into[at-from:end-from], at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	})
}

// EachData calls do for each part of a file between two offsets that is not a hole.
func EachData(fd int, from, to int64, do func(from, to int64) error) error {
	for at := from; at < to; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= to { // there is no more
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for data: %w", err)
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("look for data: %w", err)
		}
		at = min(hole, to)
		if err := do(data, at); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the files.
func (m *Memory) Close() (err error) {
	for _, file := range m.layers {
		err = errors.Join(err, file.Close())
	}
	return err
}

// verify reads all of it, on all processors.
func (m *Memory) verify(ctx context.Context) error {
	var next atomic.Int64
	workers, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(m.Chunks)) {
		workers.Go(func() error {
			buffer := make([]byte, m.Size)
			for {
				i := next.Add(1) - 1
				if i >= int64(len(m.Chunks)) {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				if _, err := m.Load(m.Chunks[i].Number, buffer); err != nil {
					return err
				}
			}
		})
	}
	workers.Go(func() error { return m.empty(ctx) })
	return workers.Wait()
}

// empty fails if the first layer has something that is in no chunk. Nobody would read
// it, but its writer may have written elsewhere. In the other layers that is what later
// ones replaced.
func (m *Memory) empty(ctx context.Context) error {
	buffer, zero := make([]byte, m.Size), make([]byte, m.Size)
	for at := int64(0); at < m.Bytes; {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := m.layers[0].Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		start := data / m.Size * m.Size
		at = start + m.Size
		if c, ok := m.Find(uint32(start / m.Size)); ok && c.Layer == 0 { //nolint:gosec // G115: below MemoryMost/Size
			continue
		}
		n, err := m.layers[0].ReadAt(buffer, start)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !bytes.Equal(buffer[:n], zero[:n]) {
			return fmt.Errorf("%w: %s was altered near byte %d", machine.ErrDamaged, FilePages, start)
		}
	}
	return nil
}
