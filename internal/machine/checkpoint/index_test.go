package checkpoint

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dozehq/doze/internal/machine"
)

func someIndex() Index {
	x := Index{
		Key: NewKey(), Bytes: 3*PageChunk + 4096, Size: PageChunk, Layers: 3,
		Ranges: []Range{{0, 8192}, {PageChunk, 4096}, {2 * PageChunk, PageChunk + 4096}},
		Chunks: []Chunk{{Number: 0, Layer: 2}, {Number: 2, Sum: 3, Mark: Mark{1}, Name: Name{2}}, {Number: 3, Layer: 1}},
	}
	x.count()
	return x
}

func TestIndex(t *testing.T) {
	t.Parallel()
	want := someIndex()
	raw := want.Append(nil)
	got, err := ParseIndex(raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Index{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	for offset, place := range map[int64][2]int64{
		0: {0, 8192}, 8191: {8191, 1}, 8192: {PageChunk, 4096}, 12287: {PageChunk + 4095, 1}, 12288: {2 * PageChunk, PageChunk + 4096},
		12288 + PageChunk + 4095: {3*PageChunk + 4095, 1}, 12288 + PageChunk + 4096: {want.Bytes, 0}, 1 << 40: {want.Bytes, 0},
	} {
		if at, n := got.Locate(offset); at != place[0] || n != place[1] {
			t.Errorf("byte %d is at %d, and %d follow; want %v", offset, at, n, place)
		}
	}
	if _, ok := got.Find(1); ok {
		t.Error("a hole has a chunk")
	}
	if at, n := got.At(3); at != 3*PageChunk || n != 4096 {
		t.Errorf("the last chunk has %d bytes at %d", n, at)
	}
	for name, change := range map[string]func(x *Index){
		"too much memory":   func(x *Index) { x.Bytes = MemoryMost + 1 },
		"less memory":       func(x *Index) { x.Bytes-- },
		"odd chunks":        func(x *Index) { x.Size++ },
		"large chunks":      func(x *Index) { x.Size = 2 * SumChunk },
		"no layers":         func(x *Index) { x.Layers = 0 },
		"too many layers":   func(x *Index) { x.Layers = LayersMost + 1 },
		"a layer too few":   func(x *Index) { x.Layers = 2 },
		"ranges in halves":  func(x *Index) { x.Ranges = slices.Insert(x.Ranges, 1, Range{8192, 1}) },
		"an empty range":    func(x *Index) { x.Ranges[0].Bytes = 0 },
		"a range over one":  func(x *Index) { x.Ranges[1].At = 0 },
		"a negative range":  func(x *Index) { x.Ranges[1].At = -1 },
		"a chunk twice":     func(x *Index) { x.Chunks[1].Number = 0 },
		"a chunk too far":   func(x *Index) { x.Chunks[2].Number = 4 },
		"chunks in reverse": func(x *Index) { slices.Reverse(x.Chunks) },
	} {
		x := someIndex()
		change(&x)
		if _, err := ParseIndex(x.Append(nil)); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
	for n := range raw {
		if _, err := ParseIndex(raw[:n]); !errors.Is(err, machine.ErrDamaged) {
			t.Errorf("%d bytes: %v, want ErrDamaged", n, err)
		}
	}
	if _, err := ParseIndex(append(bytes.Clone(raw), 0)); !errors.Is(err, machine.ErrDamaged) {
		t.Errorf("a byte more: %v, want ErrDamaged", err)
	}
}

func FuzzParseIndex(f *testing.F) {
	x := someIndex()
	f.Add(x.Append(nil))
	f.Add([]byte(indexMagic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		x, err := ParseIndex(raw)
		if err != nil {
			if !errors.Is(err, machine.ErrDamaged) {
				t.Errorf("%v is not ErrDamaged", err)
			}
			return
		}
		// What is accepted is what we would write, and all of it can be found.
		if again := x.Append(nil); !bytes.Equal(raw, again) {
			t.Error("it would be written otherwise")
		}
		offset := int64(0)
		for _, r := range x.Ranges {
			if at, n := x.Locate(offset); at != r.At || n != r.Bytes {
				t.Errorf("byte %d is at %d, and %d follow; want %v", offset, at, n, r)
			}
			offset += r.Bytes
		}
		if at, n := x.Locate(offset); at != x.Bytes || n != 0 {
			t.Errorf("behind the last: %d, %d", at, n)
		}
		for _, c := range x.Chunks {
			if at, n := x.At(c.Number); n <= 0 || n > x.Size || at+n > x.Bytes {
				t.Errorf("chunk %d has %d bytes at %d of %d", c.Number, n, at, x.Bytes)
			}
		}
	})
}

func TestWorth(t *testing.T) {
	t.Parallel()
	index := func(live ...int) Index { // chunks of each layer
		x := Index{Bytes: 1 << 30, Size: PageChunk, Layers: len(live)}
		for layer, n := range live {
			for range n {
				x.Chunks = append(x.Chunks, Chunk{Number: uint32(len(x.Chunks)), Layer: uint32(layer)})
			}
		}
		return x
	}
	taken := func(chunks ...int64) []int64 {
		for i := range chunks {
			chunks[i] *= PageChunk
		}
		return chunks
	}
	for name, c := range map[string]struct {
		x     Index
		taken []int64
		want  []bool
	}{
		"one":          {index(4), taken(4), []bool{true}},
		"half of it":   {index(4), taken(8), []bool{true}},
		"less than it": {index(4), taken(9), []bool{false}},
		"none of it":   {index(0, 4), taken(0, 4), []bool{false, true}},
		"too many": {
			index(9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9, 7, 9, 8), taken(9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9, 7, 9, 8),
			[]bool{true, false, true, false, true, false, true, false, true, false, true, false, true, false, true, false},
		},
		"nearly": {index(9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), taken(9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), slices.Repeat([]bool{true}, 15)},
	} {
		if got := c.x.Worth(c.taken); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestMark: what differs in a bit has another mark, and so has the same with
// another key.
func TestMark(t *testing.T) {
	t.Parallel()
	mark, err := Marker([16]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	other, err := Marker([16]byte{2})
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, PageChunk)
	seen := map[Mark]int{mark(chunk): -1, other(chunk): -2, mark(chunk[1:]): -3}
	for _, bit := range []int{0, 1, 127, 128, 8*PageChunk - 1} {
		altered := bytes.Clone(chunk)
		altered[bit/8] ^= 1 << (bit % 8)
		if was, ok := seen[mark(altered)]; ok {
			t.Errorf("bit %d has the mark of %d", bit, was)
		}
		seen[mark(altered)] = bit
		if mark(altered) != mark(bytes.Clone(altered)) {
			t.Error("a mark is not the same twice")
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d marks of 8", len(seen))
	}
}

// A file has the same checksums, in whatever pieces it was written.
func TestSums(t *testing.T) {
	t.Parallel()
	raw := make([]byte, 2*SumChunk+5)
	for i := range raw {
		raw[i] = byte(i * i >> 3)
	}
	for _, length := range []int{0, 1, SumChunk, SumChunk + 1, len(raw)} {
		want := File{Name: "any", Bytes: int64(length), Chunks: []uint32{}}
		for part := range slices.Chunk(raw[:length], SumChunk) {
			want.Chunks = append(want.Chunks, Sum(part))
		}
		for _, piece := range []int{SumChunk / 3, SumChunk, 3 * SumChunk} {
			var s Sums
			for part := range slices.Chunk(raw[:length], piece) {
				s.Add(part)
			}
			if diff := cmp.Diff(want, s.File("any")); diff != "" {
				t.Errorf("%d bytes in pieces of %d: %s", length, piece, diff)
			}
		}
	}
}
