package checkpoint

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/machine"
)

// TestUnmark makes a checkpoint count no more, and again.
func TestUnmark(t *testing.T) {
	t.Parallel()
	c := making(t)
	c.GoBack = true
	if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c)); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func(machine.Config) error{
		"retire": Retire,
		"go back": func(c machine.Config) error {
			if err := Retire(c); err != nil {
				return err
			}
			if err := MarkRan(c); err != nil { // a cut of the power may leave both
				return err
			}
			_, err := GoBack(c)
			return err
		},
	} {
		if err := MarkRan(c); err != nil {
			t.Fatal(err)
		}
		if err := do(c); err != nil {
			t.Fatal(err)
		}
		if Ran(c) {
			t.Errorf("%s: it is marked still", what)
		}
		if err := os.Rename(Last(c), Dir(c)); err != nil && what == "retire" {
			t.Fatal(err)
		}
	}
}

// TestFreed counts what the end of a checkpoint gives back, when another one has some
// of its files too.
func TestFreed(t *testing.T) {
	t.Parallel()
	c := making(t)
	if _, ok := Freed(Dir(c)); ok {
		t.Error("there is a checkpoint")
	}
	if err := someLayout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, Dir(c)); err != nil {
		t.Fatal(err)
	}
	all, ok := Freed(Dir(c))
	if size, _ := Has(c); !ok || all != size {
		t.Errorf("%d bytes of %d, %t", all, size, ok)
	}
	pages := filepath.Join(Dir(c), FilePages)
	info, err := os.Stat(pages)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(pages, filepath.Join(c.Dir, "copy")); err != nil {
		t.Fatal(err)
	}
	if got, _ := Freed(Dir(c)); got != all-allocated(info) {
		t.Errorf("%d bytes, want %d without the %d of a file with two names", got, all, allocated(info))
	}
}
