package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A layer is the file that one checkpoint wrote. In all layers, a page has its place in
// the engine's memory file. So it stays in its place when memory before it comes or
// goes, and when the machine wakes in another engine. Memory that the engine did not
// name, or that another layer has, is a hole.
//
// Whether a chunk is the same as in the last checkpoint is decided by its content. What
// a guest says plays no part. A caller that knows what was written calls [Layer.Share].

// Base is the last checkpoint of a machine, whose memory the next one shares where
// it is the same.
type Base struct {
	Index

	here []bool // by layer: it has a second name in the new checkpoint
}

// as returns what a layer of the base is called in the new checkpoint. Layer 0 is
// the new checkpoint's own.
func as(layer uint32) uint32 { return layer + 1 }

// OpenBase gives those layers of the checkpoint in from a second name in dir that
// the next one should share. What from says of its index is in about.
func OpenBase(from string, about File, dir string) (*Base, error) {
	index, err := ReadIndex(from, about)
	if err != nil {
		return nil, err
	}
	if index.Size != PageChunk {
		return nil, fmt.Errorf("it has chunks of %d bytes", index.Size)
	}
	taken := make([]int64, index.Layers)
	for layer := range taken {
		info, err := os.Lstat(filepath.Join(from, LayerName(layer)))
		if err != nil {
			return nil, fmt.Errorf("look at a layer: %w", err)
		}
		taken[layer] = allocated(info)
	}
	b := &Base{Index: index, here: index.Worth(taken)}
	for layer, worth := range b.here {
		if !worth {
			continue
		}
		if err := os.Link(filepath.Join(from, LayerName(layer)), b.name(layer, dir)); err != nil {
			b.here[layer] = false // it has too many names, or the new checkpoint is on another disk
		}
	}
	return b, nil
}

// name is where a layer of the base is in the directory of the new checkpoint, until
// that is complete.
func (*Base) name(layer int, dir string) string {
	return filepath.Join(dir, LayerName(int(as(uint32(layer))))) //nolint:gosec // G115: at most LayersMost
}

// find returns the chunk of the base that the new checkpoint may share instead of
// one with a mark and a length.
func (b *Base) find(number uint32, mark Mark, length int) (Chunk, bool) {
	if b == nil {
		return Chunk{}, false
	}
	c, ok := b.Find(number)
	if !ok || !b.here[c.Layer] || c.Mark != mark {
		return Chunk{}, false
	}
	_, n := b.At(number)
	return c, n == int64(length)
}

// Layer is the layer that a checkpoint writes, and the index of its memory.
type Layer struct {
	file *os.File
	base *Base // may be nil
	key  [16]byte
	mark func([]byte) Mark
	was  int64 // size of what an earlier copy wrote
	end  int64 // of what was named

	ranges []Range

	mu     sync.Mutex
	chunks []Chunk // guarded by mu; in any order, and with the layers of the base
	same   int     // guarded by mu; chunks that an earlier copy wrote
	shared int     // guarded by mu; chunks that the base has
}

// NewLayer returns the layer that is written to a file, which may hold what an
// earlier copy of the same machine wrote. Close closes it.
func NewLayer(file *os.File, b *Base) (*Layer, error) {
	l := &Layer{file: file, base: b, key: NewKey()}
	if b != nil {
		l.key = b.Key
	}
	var err error
	if l.mark, err = Marker(l.key); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	l.was = info.Size()
	return l, nil
}

// Close closes the file.
func (l *Layer) Close() error { return l.file.Close() }

// Reused returns how many chunks were not written: those that an earlier copy wrote,
// and those that the base has.
func (l *Layer) Reused() (same, shared int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.same, l.shared
}

// Extend takes note of memory that the engine named. It comes in the order of the
// file.
func (l *Layer) Extend(r Range) error {
	if r.At < l.end || r.Bytes <= 0 || r.At > MemoryMost-r.Bytes {
		return fmt.Errorf("the engine names %d bytes of memory at %d, after that before %d", r.Bytes, r.At, l.end)
	}
	l.end = r.End()
	if last := len(l.ranges) - 1; last >= 0 && l.ranges[last].End() == r.At {
		l.ranges[last].Bytes += r.Bytes
	} else {
		l.ranges = append(l.ranges, r)
	}
	return nil
}

// Scratch is room for a chunk, and for what a file has in its place.
type Scratch struct{ chunk, have []byte }

// rooms is room for chunks that nobody uses at the moment. A checkpoint and a wake
// of a small machine would pay more for new memory than for what they copy into it.
var rooms = sync.Pool{New: func() any { return new([PageChunk]byte) }}

// NewRoom returns room for a chunk, with anything in it. FreeRoom takes it back.
func NewRoom() []byte {
	room, _ := rooms.Get().(*[PageChunk]byte) // nothing else is ever put there
	return room[:]
}

// FreeRoom takes back what NewRoom returned, which nobody may use any more.
func FreeRoom(room []byte) { rooms.Put((*[PageChunk]byte)(room)) }

// NewScratch returns room for one caller of [Layer.Write] at a time.
func NewScratch() *Scratch { return &Scratch{NewRoom(), NewRoom()} }

// Release takes it back.
func (s *Scratch) Release() {
	FreeRoom(s.chunk)
	FreeRoom(s.have)
}

// Write writes a chunk of memory if neither the base nor an earlier copy has it.
// It may be called for several chunks at a time, when all memory in them was named.
// fill fills in what the chunk has, which begins at a place of the file and is zero.
func (l *Layer) Write(number uint32, room *Scratch, fill func(chunk []byte, start int64) error) error {
	start := int64(number) * PageChunk
	chunk := room.chunk[:min(PageChunk, l.end-start)]
	clear(chunk) // zero where nothing was named
	if err := fill(chunk, start); err != nil {
		return err
	}
	if Zero(chunk) {
		return l.punch(start, PageChunk)
	}
	now := Chunk{Number: number, Mark: l.mark(chunk)}
	if then, ok := l.base.find(number, now.Mark, len(chunk)); ok {
		now.Layer, now.Sum, now.Name = as(then.Layer), then.Sum, then.Name
		l.add(now, &l.shared)
		return l.punch(start, PageChunk)
	}
	now.Sum, now.Name = Sum(chunk), sha256.Sum256(chunk)
	switch there, err := l.has(chunk, start, room.have); {
	case err != nil:
		return err
	case there:
		l.add(now, &l.same)
		return nil
	}
	if err := l.punch(start, PageChunk); err != nil {
		return err
	}
	if err := l.put(chunk, start); err != nil {
		return err
	}
	l.add(now, new(int))
	return nil
}

// Share adds a chunk as the base has it, for a caller that knows it to be the same. It
// reports false if the new checkpoint cannot have that: then the caller calls Write.
func (l *Layer) Share(number uint32) (bool, error) {
	then, there := l.then(number)
	switch {
	case !there:
		return false, nil
	case then != nil:
		l.add(Chunk{Number: number, Layer: as(then.Layer), Sum: then.Sum, Mark: then.Mark, Name: then.Name}, &l.shared)
	}
	return true, l.punch(int64(number)*PageChunk, PageChunk)
}

// Same reports whether a chunk is what Share would add. It is called as Write is.
func (l *Layer) Same(number uint32, room *Scratch, fill func(chunk []byte, start int64) error) (bool, error) {
	then, there := l.then(number)
	if !there {
		return true, nil // Share adds nothing
	}
	start := int64(number) * PageChunk
	chunk := room.chunk[:min(PageChunk, l.end-start)]
	clear(chunk)
	if err := fill(chunk, start); err != nil {
		return false, err
	}
	if then == nil {
		return Zero(chunk), nil
	}
	return l.mark(chunk) == then.Mark, nil
}

// then returns the chunk of the base that the new checkpoint can share: nil for one that
// is zero. It reports false if there is none.
func (l *Layer) then(number uint32) (*Chunk, bool) {
	if l.base == nil {
		return nil, false
	}
	_, n := l.base.At(number)
	if n != min(PageChunk, l.end-int64(number)*PageChunk) {
		return nil, false
	}
	c, ok := l.base.Find(number)
	switch {
	case !ok:
		return nil, true
	case !l.base.here[c.Layer]:
		return nil, false
	}
	return &c, true
}

// has reports whether an earlier copy wrote a chunk.
func (l *Layer) has(chunk []byte, start int64, room []byte) (bool, error) {
	if start >= l.was {
		return false, nil
	}
	have := room[:len(chunk)]
	n, err := l.file.ReadAt(have, start)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the pages of an earlier copy: %w", err)
	}
	clear(have[n:])
	return n > 0 && bytes.Equal(have, chunk), nil
}

// add adds a chunk to the index.
func (l *Layer) add(c Chunk, count *int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chunks = append(l.chunks, c)
	*count++
}

// put writes a chunk. Pages without a bit set stay holes.
func (l *Layer) put(chunk []byte, at int64) error {
	size := os.Getpagesize()
	for from := 0; from < len(chunk); {
		if Zero(chunk[from:min(from+size, len(chunk))]) {
			from += size
			continue
		}
		to := from + size
		for to < len(chunk) && !Zero(chunk[to:min(to+size, len(chunk))]) {
			to += size
		}
		to = min(to, len(chunk))
		if _, err := l.file.WriteAt(chunk[from:to], at+int64(from)); err != nil {
			return fmt.Errorf("write pages: %w", err)
		}
		from = to
	}
	return nil
}

// punch makes a hole where an earlier copy may have written.
func (l *Layer) punch(at, n int64) error {
	if at >= l.was {
		return nil
	}
	return punch(l.file, at, n)
}

// punch makes a hole in a layer.
func punch(file *os.File, at, n int64) error {
	err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
	if err != nil {
		return fmt.Errorf("make a hole in the pages: %w", err)
	}
	return nil
}

// Zero reports whether no bit is set.
func Zero(some []byte) bool {
	for len(some) > len(zeroPage) {
		if !bytes.Equal(some[:len(zeroPage)], zeroPage) {
			return false
		}
		some = some[len(zeroPage):]
	}
	return bytes.Equal(some, zeroPage[:len(some)])
}

// zeroPage is a page without a bit set.
var zeroPage = make([]byte, os.Getpagesize())

// Finish removes what an earlier copy wrote where now nothing was named.
func (l *Layer) Finish() error {
	behind := int64(0) // of the chunks so far
	for _, r := range l.ranges {
		first := r.At / PageChunk * PageChunk
		if first > behind {
			if err := l.punch(behind, first-behind); err != nil {
				return err
			}
		}
		behind = (r.End() + PageChunk - 1) / PageChunk * PageChunk
	}
	return l.file.Truncate(l.end)
}

// Seal writes the index into the directory of the checkpoint, and removes the layers
// that have no chunk in it. It returns what it knows of the files. Preconditions:
// all chunks were written.
func (l *Layer) Seal(dir string) ([]File, error) {
	x := Index{Key: l.key, Bytes: l.end, Size: PageChunk, Layers: 1, Ranges: l.ranges, Chunks: l.chunks}
	slices.SortFunc(x.Chunks, func(a, b Chunk) int { return cmp.Compare(a.Number, b.Number) })
	made := []File{{Name: FilePages, Bytes: x.Bytes}}
	if l.base != nil {
		layers, err := l.base.number(&x, dir)
		if err != nil {
			return nil, err
		}
		made = append(made, layers...)
	}
	raw := x.Append(nil)
	if err := os.WriteFile(filepath.Join(dir, FileIndex), raw, 0o600); err != nil {
		return nil, fmt.Errorf("write the index: %w", err)
	}
	return slices.Insert(made, 1, Describe(FileIndex, raw)), nil
}

// number gives the layers of the base that an index uses their numbers and names in
// the new checkpoint, and removes the others. It returns the files.
func (b *Base) number(x *Index, dir string) (made []File, err error) {
	used := make([]bool, b.Layers)
	for _, c := range x.Chunks {
		if c.Layer > 0 {
			used[c.Layer-1] = true
		}
	}
	to := make([]uint32, b.Layers)
	for layer, here := range b.here {
		if !here {
			continue
		}
		name := b.name(layer, dir)
		if !used[layer] {
			if err := os.Remove(name); err != nil {
				return nil, fmt.Errorf("leave out a layer: %w", err)
			}
			continue
		}
		info, err := os.Lstat(name)
		if err != nil {
			return nil, fmt.Errorf("look at a layer: %w", err)
		}
		to[layer] = uint32(x.Layers) //nolint:gosec // G115: at most LayersMost
		own := LayerName(x.Layers)
		if err := os.Rename(name, filepath.Join(dir, own)); err != nil {
			return nil, fmt.Errorf("number a layer: %w", err)
		}
		made = append(made, File{Name: own, Bytes: info.Size()})
		x.Layers++
	}
	for i, c := range x.Chunks {
		if c.Layer > 0 {
			x.Chunks[i].Layer = to[c.Layer-1]
		}
	}
	return made, nil
}
