package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/machine"
)

// TestLieBack ends machines in the second after a wake from disk, in which their
// image counts: who may have answered since goes back to it, and says so.
func TestLieBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		state  string
		marked bool
		goBack bool
		other  bool
		empty  bool // its manifest was never synced
		want   bool
		gone   bool
	}{
		"it ran":                       {marked: true, goBack: true, want: true},
		"it slept":                     {goBack: true},
		"its process was created only": {state: StateCreated, marked: true, goBack: true},
		"it may not go back":           {marked: true},
		"it began as a copy":           {marked: true, goBack: true, other: true, gone: true},
		"its copy is not on disk":      {marked: true, goBack: true, other: true, empty: true, gone: true},
		"its copy never ran":           {goBack: true, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := making(t)
			c.GoBack = tt.goBack
			if err := commit(t.Context(), new(sync.WaitGroup), c, someEngine, imageDir(c)); err != nil {
				t.Fatal(err)
			}
			m, err := readManifest(imageDir(c), c, []string{someEngine})
			if err != nil {
				t.Fatal(err)
			}
			if m.Other = tt.other; tt.other {
				if err := writeManifest(filepath.Join(imageDir(c), FileManifest), m); err != nil {
					t.Fatal(err)
				}
			}
			if tt.empty {
				if err := os.Truncate(filepath.Join(imageDir(c), FileManifest), 0); err != nil {
					t.Fatal(err)
				}
			}
			if tt.marked {
				if err := mark(c); err != nil {
					t.Fatal(err)
				}
			}
			s := &sandbox{config: c}
			if err := s.lieBack(tt.state); errors.Is(err, machine.ErrGone) != tt.gone || !tt.gone && err != nil {
				t.Fatal(err)
			}
			if _, ok := hasImage(c); ok == tt.gone {
				t.Errorf("it has an image: %t", ok)
			}
			if got := s.WentBack(); got.Equal(m.Made) != tt.want || got.IsZero() == tt.want {
				t.Errorf("it went back to %v, and the image is of %v", got, m.Made)
			}
			if marked(c) {
				t.Error("it would say so again")
			}
		})
	}
}

// TestUnmark makes an image count no more, and again.
func TestUnmark(t *testing.T) {
	t.Parallel()
	c := making(t)
	c.GoBack = true
	if err := commit(t.Context(), new(sync.WaitGroup), c, someEngine, imageDir(c)); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func(Config) error{
		"retire": retire,
		"go back": func(c Config) error {
			if err := retire(c); err != nil {
				return err
			}
			if err := mark(c); err != nil { // a cut of the power may leave both
				return err
			}
			_, err := goBack(c)
			return err
		},
	} {
		if err := mark(c); err != nil {
			t.Fatal(err)
		}
		if err := do(c); err != nil {
			t.Fatal(err)
		}
		if marked(c) {
			t.Errorf("%s: it is marked still", what)
		}
		if err := os.Rename(filepath.Join(c.Dir, dirLast), imageDir(c)); err != nil && what == "retire" {
			t.Fatal(err)
		}
	}
}

// TestFreed counts what the end of an image gives back, when another one has some
// of its files too.
func TestFreed(t *testing.T) {
	t.Parallel()
	c := making(t)
	if _, ok := freed(imageDir(c)); ok {
		t.Error("there is an image")
	}
	if err := commit(t.Context(), new(sync.WaitGroup), c, someEngine, imageDir(c)); err != nil {
		t.Fatal(err)
	}
	all, ok := freed(imageDir(c))
	if size, _ := hasImage(c); !ok || all != size {
		t.Errorf("%d bytes of %d, %t", all, size, ok)
	}
	pages := filepath.Join(imageDir(c), FilePages)
	info, err := os.Stat(pages)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(pages, filepath.Join(c.Dir, "copy")); err != nil {
		t.Fatal(err)
	}
	if got, _ := freed(imageDir(c)); got != all-allocated(info) {
		t.Errorf("%d bytes, want %d without the %d of a file with two names", got, all, allocated(info))
	}
}
