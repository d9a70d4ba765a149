package engine

import (
	"os"
	"path/filepath"
)

const (
	// sparePart is which part of the disk the spare file takes.
	sparePart = 200
	// spareMax bounds the spare file, in bytes. The databases of the cache need some pages each.
	spareMax = 4 << 20
)

// A spare is a file that keeps room on the disk. A full disk would leave the cache unable to
// delete anything, as each deletion writes to its databases first. So the file goes when the
// disk is full, and comes back when there is room again.
type spare struct {
	dir string
}

func (s spare) file() string { return filepath.Join(s.dir, "spare") }

// keep makes the file. If there is no room for it, there is none until the next call.
func (s spare) keep() error {
	size, free, err := disk(s.dir)
	if err != nil {
		return err
	}
	want := min(size/sparePart, spareMax)
	if at, err := os.Stat(s.file()); err == nil && at.Size() == want || free < 2*want {
		return nil
	}
	if err := os.WriteFile(s.file()+".new", make([]byte, want), 0o600); err != nil {
		return err
	}
	return os.Rename(s.file()+".new", s.file())
}

// spend deletes the file, if the disk is full.
func (s spare) spend() {
	if full(s.dir) {
		_ = os.Remove(s.file()) // if it is not there, there is nothing to spend
	}
}
