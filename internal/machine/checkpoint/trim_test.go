package checkpoint

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// TestTrim: what was copied before a checkpoint and changed since then takes no room any
// more, unless another checkpoint has it.
func TestTrim(t *testing.T) {
	t.Parallel()
	const chunks = 8
	memory := make([]byte, chunks*PageChunk-4096)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory)
	all := Range{Bytes: int64(len(memory))}
	before := t.TempDir()
	first, _ := wrote(t, before, nil, memory, all)
	for _, number := range []int{0, 3, 4, 7} {
		memory[number*PageChunk]++
	}
	dir := t.TempDir()
	b, err := OpenBase(before, first[1], dir)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := wrote(t, dir, b, memory, all)
	old := filepath.Join(dir, LayerName(1))
	takes := func() int64 {
		t.Helper()
		info, err := os.Stat(old)
		if err != nil {
			t.Fatal(err)
		}
		return allocated(info)
	}
	if err := Trim(dir, files); err != nil {
		t.Fatal(err)
	}
	if takes() < (chunks-1)*PageChunk {
		t.Error("another checkpoint lost a part of its layer")
	}
	if err := os.RemoveAll(before); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		if err := Trim(dir, files); err != nil {
			t.Fatal(err)
		}
		if got := takes(); got > 4*PageChunk+PageChunk/2 {
			t.Errorf("the layer takes %d bytes, and four chunks of it count", got)
		}
		holds(t, dir, files, memory)
	}
	if info, err := os.Stat(filepath.Join(dir, FilePages)); err != nil || allocated(info) < 3*PageChunk {
		t.Errorf("its own layer is %v, %v", info, err)
	}
}
