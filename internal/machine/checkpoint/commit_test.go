package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestCommit(t *testing.T) {
	t.Parallel()
	c := making(t)
	if _, ok := Has(c); ok {
		t.Fatal("a checkpoint counts before it is committed")
	}
	if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c)); err != nil {
		t.Fatal(err)
	}
	size, ok := Has(c)
	if !ok || size < 2*SumChunk+1005 {
		t.Errorf("a committed checkpoint: %d bytes, %v", size, ok)
	}
	m, err := someLayout.Read(Dir(c), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), Dir(c), m); err != nil {
		t.Error(err)
	}
	if err := Retire(c); err != nil {
		t.Fatal(err)
	}
	if _, ok := Has(c); ok {
		t.Error("a retired checkpoint counts")
	}
	if err := TakeBack(c); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), Dir(c), m); err != nil {
		t.Error("after it was taken back:", err)
	}
}

// dying is a context that ends at the n-th question whether it has.
type dying struct {
	context.Context //nolint:containedctx // it is one

	left int
}

func (d *dying) Err() error {
	if d.left--; d.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestCommitStops stops a commit before each of its steps, as a crash would:
// there is a whole checkpoint or none, and what is left can be swept.
func TestCommitStops(t *testing.T) {
	t.Parallel()
	for step, done := 0, false; !done; step++ {
		if step > 100 {
			t.Fatal("a commit has no end")
		}
		c := making(t)
		err := someLayout.Commit(&dying{Context: t.Context(), left: step}, new(sync.WaitGroup), c, someEngine, Dir(c))
		done = err == nil
		_, saved := Has(c)
		if saved != done {
			t.Errorf("stopped at step %d with %v: a checkpoint counts: %v", step, err, saved)
		}
		if !done && !errors.Is(err, context.Canceled) {
			t.Errorf("step %d: %v", step, err)
		}
		if err := Sweep(c); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob(filepath.Join(c.Dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 0, true: 1}[done]; len(left) != want {
			t.Errorf("step %d: %q is left", step, left)
		}
	}
}

// TestCommitDisk: a machine with a disk gets no checkpoint without one, nor another machine
// one with it.
func TestCommitDisk(t *testing.T) {
	t.Parallel()
	for _, disk := range []bool{false, true} {
		c := making(t)
		known := []File{{Name: FileIndex}}
		if err := os.WriteFile(filepath.Join(Making(Dir(c)), FileIndex), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if disk {
			known = append(known, File{Name: FileDisk})
			if err := os.WriteFile(filepath.Join(Making(Dir(c)), FileDisk), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			c.Disk = 1
		}
		if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c), known...); err == nil {
			t.Errorf("a checkpoint with a disk: %t, of a machine with one: %t", disk, !disk)
		}
		c.Disk = 1 - c.Disk
		if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c), known...); err != nil {
			t.Error(err)
		}
	}
}

func TestCommitIncomplete(t *testing.T) {
	t.Parallel()
	for _, name := range []string{fileState, fileMore, FilePages} {
		c := making(t)
		if err := os.Remove(filepath.Join(Making(Dir(c)), name)); err != nil {
			t.Fatal(err)
		}
		if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c)); err == nil {
			t.Errorf("a checkpoint without %s was committed", name)
		}
		if _, ok := Has(c); ok {
			t.Errorf("a checkpoint without %s counts", name)
		}
	}
}
