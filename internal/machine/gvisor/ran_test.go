package gvisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
)

// TestLieBack ends machines in the second after a wake from disk, in which their
// checkpoint counts: who may have answered since goes back to it, and says so.
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
			if err := layout.Commit(t.Context(), new(sync.WaitGroup), c, someEngine, checkpoint.Dir(c)); err != nil {
				t.Fatal(err)
			}
			m, err := layout.Read(checkpoint.Dir(c), c)
			if err != nil {
				t.Fatal(err)
			}
			if m.Other = tt.other; tt.other {
				if err := m.Write(checkpoint.Dir(c)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.empty {
				if err := os.Truncate(filepath.Join(checkpoint.Dir(c), checkpoint.FileManifest), 0); err != nil {
					t.Fatal(err)
				}
			}
			if tt.marked {
				if err := checkpoint.MarkRan(c); err != nil {
					t.Fatal(err)
				}
			}
			s := &sandbox{config: c}
			if err := s.lieBack(tt.state); errors.Is(err, machine.ErrGone) != tt.gone || !tt.gone && err != nil {
				t.Fatal(err)
			}
			if _, ok := checkpoint.Has(c); ok == tt.gone {
				t.Errorf("it has a checkpoint: %t", ok)
			}
			if got := s.WentBack(); got.Equal(m.Made) != tt.want || got.IsZero() == tt.want {
				t.Errorf("it went back to %v, and the checkpoint is of %v", got, m.Made)
			}
			if checkpoint.Ran(c) {
				t.Error("it would say so again")
			}
		})
	}
}

const someEngine = "engine-1"

// making returns a machine with the engine's files of a checkpoint, not committed.
func making(t *testing.T) Config {
	t.Helper()
	c := Config{ID: "a", Dir: t.TempDir(), Root: "/images/root.erofs", Agent: "/images/agent.erofs"}
	dir := checkpoint.Making(checkpoint.Dir(c))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{FileState: 1000, FilePageMeta: 0, checkpoint.FilePages: 2*checkpoint.SumChunk + 5} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte{7}, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}
