package launcher

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/loader/vdsodata"
	"gvisor.dev/gvisor/pkg/sentry/memmap"

	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
)

// generations is how many checkpoints a machine of the tests has: enough for
// layers to come, to be given up, and to be put together.
const generations = 60

// TestLayers takes checkpoints of a machine that changes a little between them.
// Each of them has every byte, also after all earlier ones were removed, and they
// write about what changed.
func TestLayers(t *testing.T) {
	t.Parallel()
	const size = 32 << 20
	random := rand.New(rand.NewChaCha8([32]byte{2}))
	source32 := rand.NewChaCha8([32]byte{3})
	memory := make([]byte, size)
	_, _ = source32.Read(memory)
	copy(memory, vdsodata.Binary)
	fd := memfd(t, size, 0, memory)
	from := source{fd: fd, clock: findClock(fd)}

	var last *gvisor.Base
	var wrote, changed, most int64
	deepest := 0
	for generation := range generations {
		// The machine writes here and there, gives memory back, and takes some.
		named := []memmap.FileRange{{Start: 0, End: size}}
		if generation > 0 {
			for range 2 {
				at := random.IntN(size-1<<20-512<<10) + 512<<10
				n := random.IntN(200 << 10)
				_, _ = source32.Read(memory[at : at+n])
				changed += int64(n)
			}
			if hole := uint64(random.IntN(size/4096-64)+32) * 4096; generation%3 == 0 {
				named = []memmap.FileRange{{Start: 0, End: hole}, {Start: hole + uint64(random.IntN(30)+1)*4096, End: size - uint64(random.IntN(10))*4096}}
			}
			if _, err := unix.Pwrite(fd, memory, 0); err != nil {
				t.Fatal(err)
			}
		}
		want := make([]byte, named[len(named)-1].End)
		for _, r := range named {
			copy(want[r.Start:r.End], memory[r.Start:r.End])
		}
		dir := t.TempDir()
		if generation%5 == 4 { // an earlier copy was stopped
			begun := capturing(t, dir, namedMost*size)
			if err := begun.put(from, memmap.FileRange{Start: 1 << 20, End: 9 << 20}); err != nil {
				t.Fatal(err)
			}
			if err := begun.copy(nil, true); err != nil {
				t.Fatal(err)
			}
		}
		var share *checkpoint.Base
		if last != nil {
			var err error
			if share, err = checkpoint.OpenBase(last.Dir, last.Index, dir); err != nil {
				t.Fatal(err)
			}
		}
		shot := capturingOver(t, dir, share, namedMost*size)
		for _, r := range named {
			if err := shot.put(from, r); err != nil {
				t.Fatal(err)
			}
		}
		if err := shot.copy(nil, true); err != nil {
			t.Fatal(err)
		}
		if err := shot.close(); err != nil {
			t.Fatal(err)
		}
		own := blocks(t, filepath.Join(dir, checkpoint.FilePages))
		if generation > 0 {
			wrote += own
			if _, shared := shot.pages.Reused(); shared == 0 {
				t.Errorf("%d shares nothing", generation)
			}
		}
		m := sealed(t, shot, dir, want)
		deepest = max(deepest, m.Layers)
		if m.Layers > checkpoint.LayersMost {
			t.Errorf("%d is in %d layers", generation, m.Layers)
		}
		all := int64(0)
		for layer := range m.Layers {
			all += blocks(t, filepath.Join(dir, checkpoint.LayerName(layer)))
		}
		most = max(most, all)
		if last != nil { // nobody has it but those who share
			if err := os.RemoveAll(last.Dir); err != nil {
				t.Fatal(err)
			}
		}
		raw, err := os.ReadFile(filepath.Join(dir, checkpoint.FileIndex))
		if err != nil {
			t.Fatal(err)
		}
		last = &gvisor.Base{Dir: dir, Index: checkpoint.Describe(checkpoint.FileIndex, raw)}
	}
	t.Logf("%d checkpoints of %d MB wrote %d MB for %d MB of changes, took %d MB of the disk at most, and had %d layers at most",
		generations, size>>20, wrote>>20, changed>>20, most>>20, deepest)
	if deepest < checkpoint.LayersMost/2 {
		t.Errorf("there were %d layers at most", deepest)
	}
	// A change of 100 KB touches one chunk or two, and each chunk is written once
	// more for its layer.
	if whole := int64(generations * size); wrote > whole/4 {
		t.Errorf("they wrote %d of %d bytes", wrote, whole)
	}
	if most > 2*size+size/4 {
		t.Errorf("a checkpoint takes %d bytes", most)
	}
}

func blocks(t *testing.T, name string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestBaseMissing: a checkpoint that is damaged or gone is shared with by nobody, and
// the next one is whole.
func TestBaseMissing(t *testing.T) {
	t.Parallel()
	memory := bytes.Repeat(vdsodata.Binary, 1+(1<<20)/len(vdsodata.Binary))[:1<<20]
	fd := memfd(t, int64(len(memory)), 0, memory)
	from := source{fd: fd, clock: findClock(fd)}
	take := func(dir string, b *checkpoint.Base) {
		shot := capturingOver(t, dir, b, 1<<30)
		if err := shot.put(from, memmap.FileRange{Start: 0, End: uint64(len(memory))}); err != nil {
			t.Fatal(err)
		}
		if err := shot.copy(nil, true); err != nil {
			t.Fatal(err)
		}
		sealed(t, shot, dir, memory)
		if err := shot.close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, spoil := range map[string]func(dir string, about *checkpoint.File) error{
		"no index":    func(dir string, _ *checkpoint.File) error { return os.Remove(filepath.Join(dir, checkpoint.FileIndex)) },
		"no layer":    func(dir string, _ *checkpoint.File) error { return os.Remove(filepath.Join(dir, checkpoint.FilePages)) },
		"another sum": func(_ string, about *checkpoint.File) error { about.Chunks[0]++; return nil },
		"a short one": func(dir string, _ *checkpoint.File) error {
			return os.Truncate(filepath.Join(dir, checkpoint.FileIndex), 9)
		},
	} {
		old, dir := t.TempDir(), t.TempDir()
		take(old, nil)
		raw, err := os.ReadFile(filepath.Join(old, checkpoint.FileIndex))
		if err != nil {
			t.Fatal(err)
		}
		about := checkpoint.Describe(checkpoint.FileIndex, raw)
		if err := spoil(old, &about); err != nil {
			t.Fatal(err)
		}
		b, err := checkpoint.OpenBase(old, about, dir)
		if err == nil || b != nil {
			t.Errorf("%s: it is shared with, %v", name, err)
		}
		take(dir, b)
	}
}
