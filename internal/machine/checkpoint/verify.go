package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze/internal/machine"
)

// Verify reads all of a checkpoint and compares it with its manifest.
func Verify(ctx context.Context, dir string, m Manifest) error {
	_, layers := m.Index()
	for _, want := range m.Files {
		if want.Name == FileDisk {
			if err := verifyDisk(ctx, dir, want); err != nil {
				return err
			}
		}
		if layers && want.Chunks == nil {
			continue
		}
		got, err := measure(ctx, filepath.Join(dir, want.Name))
		if err != nil {
			return unreadable(want.Name, err)
		}
		if got.Bytes != want.Bytes {
			return fmt.Errorf("%w: %s has %d bytes and should have %d", machine.ErrDamaged, want.Name, got.Bytes, want.Bytes)
		}
		for i := range want.Chunks {
			if i >= len(got.Chunks) || got.Chunks[i] != want.Chunks[i] {
				return fmt.Errorf("%w: %s was altered near byte %d", machine.ErrDamaged, want.Name, int64(i)*SumChunk)
			}
		}
	}
	if !layers {
		return nil
	}
	memory, err := OpenMemory(dir, m.Files)
	if err != nil {
		return unreadable("the memory", err)
	}
	if err := errors.Join(memory.verify(ctx), memory.Close()); err != nil {
		return unreadable("the memory", err)
	}
	return nil
}

// unreadable makes an error of reading a checkpoint one about the checkpoint, unless
// nobody wants to read it any more.
func unreadable(name string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, machine.ErrDamaged):
		return err
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err // where we keep it is nobody's business
	}
	return fmt.Errorf("%w: %s: %w", machine.ErrDamaged, name, err)
}

// measure reads a file on all processors.
func measure(ctx context.Context, name string) (File, error) {
	f, err := os.Open(name)
	if err != nil {
		return File{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	out := File{Name: filepath.Base(name), Bytes: info.Size(), Chunks: make([]uint32, (info.Size()+SumChunk-1)/SumChunk)}
	var next atomic.Int64
	workers, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(out.Chunks)) {
		workers.Go(func() error {
			buffer := make([]byte, min(SumChunk, info.Size()))
			for {
				i := next.Add(1) - 1
				if i >= int64(len(out.Chunks)) {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				n, err := f.ReadAt(buffer, i*SumChunk)
				if err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				out.Chunks[i] = crc32.Checksum(buffer[:n], castagnoli)
			}
		})
	}
	return out, workers.Wait()
}
