package engine

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// ballastPart is which part of the disk the ballast takes.
	ballastPart = 200
	// ballastMax bounds the ballast, in bytes. The databases of the cache need some pages each.
	ballastMax = 4 << 20
)

// A ballast is a file that takes room on the disk. A full disk would leave the cache unable to
// delete anything, as each deletion writes to its databases first. So the file goes when the
// disk is full, and comes back when there is room again.
type ballast struct {
	dir string
}

func (b ballast) file() string { return filepath.Join(b.dir, "ballast") }

// load makes the file. If there is no room for it, there is none until the next call.
func (b ballast) load() error {
	size, free, err := disk(b.dir)
	if err != nil {
		return err
	}
	want := min(size/ballastPart, ballastMax)
	if at, err := os.Stat(b.file()); err == nil && at.Size() == want || free < 2*want {
		return nil
	}
	half := b.file() + ".new"
	err = os.WriteFile(half, make([]byte, want), 0o600)
	if errors.Is(err, syscall.ENOSPC) { // a step was faster
		return os.Remove(half)
	}
	if err != nil {
		return err
	}
	return os.Rename(half, b.file())
}

// drop deletes the file, if the disk is full.
func (b ballast) drop() {
	if full(b.dir) {
		_ = os.Remove(b.file()) // if it is not there, there is nothing to drop
	}
}
