package vault

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// example is a manifest with all that one may have.
func example() *manifest {
	c := func(n byte) chunk { return chunk{name{n}, mark{7: 3, 15: n}} }
	return &manifest{
		generation: Generation{3, 7},
		chunks:     []chunk{c(1), c(2), c(9)},
		files: []entry{
			{name: "dir/pages.img", mode: 0o600, size: 5*ChunkBytes + 1, refs: []ref{{0, 2}, {3, 0}, {5, 2}}},
			{name: "empty", mode: 0o444, refs: []ref{}},
			{name: "f", size: 1, refs: []ref{{0, 1}}},
			{name: "hole", size: FileMost, refs: []ref{}},
		},
	}
}

func TestManifest(t *testing.T) {
	t.Parallel()
	raw, err := example().encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseManifest(raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example(), got, cmp.AllowUnexported(manifest{}, entry{}, ref{}, chunk{})); diff != "" {
		t.Error(diff)
	}
	for i := range raw {
		if _, err := parseManifest(raw[:i]); !errors.Is(err, ErrDamaged) {
			t.Errorf("the first %d bytes: %v", i, err)
		}
	}
	for name, change := range map[string]func(m *manifest){
		"a chunk of no file":  func(m *manifest) { m.chunks = append(m.chunks, chunk{name: name{10}}) },
		"a chunk twice":       func(m *manifest) { m.chunks[1].name = m.chunks[0].name },
		"chunks in disorder":  func(m *manifest) { m.chunks[0], m.chunks[1] = m.chunks[1], m.chunks[0] },
		"files in disorder":   func(m *manifest) { m.files[0], m.files[1] = m.files[1], m.files[0] },
		"a path":              func(m *manifest) { m.files[0].name = "../x" },
		"a ref behind":        func(m *manifest) { m.files[2].refs[0].number = 1 },
		"a ref twice":         func(m *manifest) { m.files[0].refs[1].number = 0 },
		"a ref to none":       func(m *manifest) { m.files[2].refs[0].chunk = 3 },
		"a file as directory": func(m *manifest) { m.files[3].name = "f/x" },
		"a file too long":     func(m *manifest) { m.files[3].size++ },
		"a setuid bit":        func(m *manifest) { m.files[0].mode |= 1 << 23 },
	} {
		m := example()
		change(m)
		if _, err := m.encode(); err == nil {
			t.Errorf("%s: it is written", name)
		}
	}
}

// FuzzParseManifest: what is accepted is what would be written.
func FuzzParseManifest(f *testing.F) {
	raw, err := example().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(raw[:headBytes])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parseManifest(raw)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("it says %v", err)
			}
			return
		}
		again, err := m.encode()
		if err != nil || !bytes.Equal(raw, again) {
			t.Errorf("it would be written as %x, %v", again, err)
		}
	})
}

// FuzzNames: what parses as a name in the bucket prints as that.
func FuzzNames(f *testing.F) {
	f.Add(Generation{1, 2}.String())
	f.Add(chunk{name{1}, newMark(7)}.String())
	f.Add(Generation{}.String())
	f.Fuzz(func(t *testing.T, text string) {
		if g, ok := parseGeneration(text); ok && g.String() != text {
			t.Errorf("%q is %v", text, g)
		}
		if c, ok := parseChunk(text); ok && c.String() != text {
			t.Errorf("%q is %v", text, c)
		}
		if g, err := parseBase(text, 5); err == nil && (g.String() != text || g.Epoch >= 5) {
			t.Errorf("%q is the base %v", text, g)
		}
		if chunks, err := parseDoomed([]byte(text)); err == nil && len(chunks)*chunkBytes != len(text) {
			t.Errorf("%q has %d chunks", text, len(chunks))
		}
	})
}

// FuzzChunk: no packed chunk takes more memory than a chunk has.
func FuzzChunk(f *testing.F) {
	v, err := New(nil, "none", Options{Parallel: 1})
	if err != nil {
		f.Fatal(err)
	}
	b := &buffers{make([]byte, ChunkBytes), make([]byte, 0, ChunkBytes)}
	f.Add(bytes.Clone(v.packed(b, bytes.Repeat([]byte("a"), ChunkBytes))))
	f.Add(bytes.Clone(v.packed(b, []byte("a"))))
	f.Add(bytes.Clone(v.pack.EncodeAll(make([]byte, 2*ChunkBytes), []byte{packedZstd})))
	f.Fuzz(func(t *testing.T, packed []byte) {
		if plain, err := v.plain(b, packed); err == nil && len(plain) > ChunkBytes {
			t.Errorf("%d bytes became %d", len(packed), len(plain))
		}
	})
}

// TestCache: it has the sandboxes that were used last, and no more chunks than it may.
func TestCache(t *testing.T) {
	t.Parallel()
	var c cache
	marks := map[name]mark{}
	for i := range cacheMost / 4 {
		marks[name{byte(i), byte(i >> 8), byte(i >> 16)}] = mark{}
	}
	for i := range 6 {
		c.put(fmt.Sprint(i), maps.Clone(marks))
		if i > 0 { // the first is used all the time
			c.put("0", c.take("0"))
		}
		if c.count > cacheMost {
			t.Errorf("it has %d chunks", c.count)
		}
	}
	for id, want := range map[string]bool{"0": true, "1": false, "2": false, "3": true, "4": true, "5": true} {
		if got := c.take(id) != nil; got != want {
			t.Errorf("it remembers %s: %v", id, got)
		}
	}
	if c.count != 0 || len(c.byID) != 0 || c.order.Len() != 0 {
		t.Errorf("what is left: %d chunks, %d and %d sandboxes", c.count, len(c.byID), c.order.Len())
	}
	marks[name{31: 1}] = mark{}
	for i := range cacheMost {
		marks[name{byte(i), byte(i >> 8), byte(i >> 16), 1}] = mark{}
	}
	if c.put("huge", marks); c.take("huge") != nil {
		t.Error("it remembers more than there is room for")
	}
}
