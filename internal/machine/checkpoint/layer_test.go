package checkpoint

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// wrote makes the memory of a checkpoint in dir, out of what an engine has in
// memory and names of it, and returns what it knows of the files.
func wrote(t *testing.T, dir string, b *Base, memory []byte, named ...Range) ([]File, *Layer) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(dir, FilePages), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLayer(file, b)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	numbers := map[uint32]bool{}
	for _, r := range named {
		if err := l.Extend(r); err != nil {
			t.Fatal(err)
		}
		for at := r.At / PageChunk; at*PageChunk < r.End(); at++ {
			numbers[uint32(at)] = true
		}
	}
	room := NewScratch()
	defer room.Release()
	for number := range numbers {
		err := l.Write(number, room, func(chunk []byte, start int64) error {
			for _, r := range named {
				from, to := max(r.At, start), min(r.End(), start+int64(len(chunk)))
				if from < to {
					copy(chunk[from-start:to-start], memory[from:to])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Finish(); err != nil {
		t.Fatal(err)
	}
	files, err := l.Seal(dir)
	if err != nil {
		t.Fatal(err)
	}
	return files, l
}

// holds fails unless the memory in dir is what is wanted.
func holds(t *testing.T, dir string, files []File, want []byte) {
	t.Helper()
	m, err := OpenMemory(dir, files)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if m.Bytes != int64(len(want)) {
		t.Fatalf("the memory has %d bytes, want %d", m.Bytes, len(want))
	}
	room := NewRoom()
	defer FreeRoom(room)
	for at := int64(0); at < m.Bytes; at += m.Size {
		got, err := m.Load(uint32(at/m.Size), room)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want[at:at+int64(len(got))]) {
			t.Errorf("the chunk at %d is another", at)
		}
	}
}

// TestLayer: of a memory that changed a little, a little is written, into a layer of
// its own; a checkpoint that was stopped goes on with what it has; and each has
// every byte when the one before it is gone.
func TestLayer(t *testing.T) {
	t.Parallel()
	const chunks = 8
	memory := make([]byte, chunks*PageChunk)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory)
	clear(memory[2*PageChunk : 3*PageChunk])
	all := Range{Bytes: int64(len(memory))}

	first := t.TempDir()
	wrote(t, first, nil, memory, all)
	files, again := wrote(t, first, nil, memory, all)
	if same, shared := again.Reused(); same != chunks-1 || shared != 0 {
		t.Errorf("of what an earlier copy wrote, %d chunks were left alone, and %d are shared", same, shared)
	}
	holds(t, first, files, memory)

	memory[5*PageChunk]++
	second := t.TempDir()
	b, err := OpenBase(first, files[1], second)
	if err != nil {
		t.Fatal(err)
	}
	files, l := wrote(t, second, b, memory, all)
	if same, shared := l.Reused(); same != 0 || shared != chunks-2 {
		t.Errorf("%d chunks were left alone, and %d are shared", same, shared)
	}
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	holds(t, second, files, memory)
	if info, err := os.Stat(filepath.Join(second, FilePages)); err != nil || allocated(info) > 2*PageChunk {
		t.Errorf("its own layer is %v, %v", info, err)
	}

	// All of it is new: no layer of the base is left in the next one.
	_, _ = rand.NewChaCha8([32]byte{2}).Read(memory)
	third := t.TempDir()
	if b, err = OpenBase(second, files[1], third); err != nil {
		t.Fatal(err)
	}
	files, _ = wrote(t, third, b, memory, Range{Bytes: PageChunk + 4096}, Range{At: 3 * PageChunk, Bytes: PageChunk})
	if left, err := os.ReadDir(third); err != nil || len(left) != 2 {
		t.Errorf("there are %v, %v", left, err)
	}
	want := bytes.Clone(memory[:4*PageChunk])
	clear(want[PageChunk+4096 : 3*PageChunk])
	holds(t, third, files, want)
}

// TestLayerShare: what a caller knows to be the same is taken over unread, and what the
// base does not have is not.
func TestLayerShare(t *testing.T) {
	t.Parallel()
	memory := make([]byte, 3*PageChunk+4096)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(memory)
	clear(memory[PageChunk : 2*PageChunk])
	first, second := t.TempDir(), t.TempDir()
	files, _ := wrote(t, first, nil, memory, Range{Bytes: int64(len(memory))})
	b, err := OpenBase(first, files[1], second)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(second, FilePages))
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLayer(file, b)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := l.Extend(Range{Bytes: 4 * PageChunk}); err != nil {
		t.Fatal(err)
	}
	room := NewScratch()
	defer room.Release()
	fill := func(chunk []byte, start int64) error {
		if start < int64(len(memory)) {
			copy(chunk, memory[start:])
		}
		return nil
	}
	for number, want := range []bool{true, true, true, false} { // the last one was shorter
		if same, err := l.Same(uint32(number), room, fill); err != nil || !same {
			t.Errorf("chunk %d is the same: %v, %v", number, same, err)
		}
		shared, err := l.Share(uint32(number))
		if err != nil || shared != want {
			t.Errorf("chunk %d is shared: %v, %v", number, shared, err)
		}
		if !shared {
			if err := l.Write(uint32(number), room, fill); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, number := range []uint32{0, 1} {
		memory[number*PageChunk]++
		if same, err := l.Same(number, room, fill); err != nil || same {
			t.Errorf("chunk %d, which changed, is the same: %v, %v", number, same, err)
		}
		memory[number*PageChunk]--
	}
	if err := l.Finish(); err != nil {
		t.Fatal(err)
	}
	if files, err = l.Seal(second); err != nil {
		t.Fatal(err)
	}
	holds(t, second, files, slices.Concat(memory, make([]byte, 4*PageChunk-len(memory))))

	alone, err := NewLayer(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if shared, err := alone.Share(0); err != nil || shared {
		t.Errorf("without a base a chunk is shared: %v, %v", shared, err)
	}
}

func TestLayerExtend(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]Range{
		"before the last one": {At: 0, Bytes: 4096},
		"empty":               {At: 1 << 20},
		"negative":            {At: -4096, Bytes: 4096},
		"of a negative size":  {At: 1 << 20, Bytes: -1},
		"too far":             {At: MemoryMost - 4096, Bytes: 8192},
		"far too far":         {At: 1<<63 - 1, Bytes: 1<<63 - 1},
	} {
		l := &Layer{}
		if err := l.Extend(Range{At: 4096, Bytes: 4096}); err != nil {
			t.Fatal(err)
		}
		if err := l.Extend(r); err == nil {
			t.Errorf("%s: memory is named there", name)
		}
	}
}
