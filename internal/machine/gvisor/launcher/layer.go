package launcher

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
	"gvisor.dev/gvisor/pkg/sentry/memmap"

	"github.com/dozehq/doze/internal/machine/gvisor"
)

// A layer is the file that one checkpoint wrote. A page is where it is in the
// engine's memory file, in all layers, so that it stays in its place when memory
// before it comes or goes, and also when the machine wakes in another engine.
// What the engine did not name, and what another layer has, is a hole.
//
// Whether a chunk is the same as in the last image is decided by its content
// alone: what a guest wrote to, or says that it did, plays no part.

// base is the last image of a machine.
type base struct {
	gvisor.Index

	here []bool // by layer: it has a second name in the new image
}

// as returns what a layer of the base is called in the new image. Layer 0 is the
// new image's own.
func as(layer uint32) uint32 { return layer + 1 }

// openBase gives those layers of the last image a second name in dir that the
// next one should share.
func openBase(from gvisor.Base, dir string) (*base, error) {
	index, err := gvisor.ReadIndex(from.Dir, from.Index)
	if err != nil {
		return nil, err
	}
	if index.Size != gvisor.PageChunk {
		return nil, fmt.Errorf("it has chunks of %d bytes", index.Size)
	}
	taken := make([]int64, index.Layers)
	for layer := range taken {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(from.Dir, gvisor.LayerName(layer)), &st); err != nil {
			return nil, fmt.Errorf("look at a layer: %w", err)
		}
		taken[layer] = st.Blocks * statBlock
	}
	b := &base{Index: index, here: index.Worth(taken)}
	for layer, worth := range b.here {
		if !worth {
			continue
		}
		name := gvisor.LayerName(int(as(uint32(layer))))
		if err := os.Link(filepath.Join(from.Dir, gvisor.LayerName(layer)), filepath.Join(dir, name)); err != nil {
			b.here[layer] = false // it has too many names, or the new image is on another disk
		}
	}
	return b, nil
}

// statBlock is the unit of stat's blocks, whatever the file system's is.
const statBlock = 512

// pagesOut is the layer that a checkpoint writes, and the index of its image.
type pagesOut struct {
	file *os.File
	base *base // may be nil
	key  [16]byte
	mark func([]byte) gvisor.Mark
	was  uint64 // size of what an earlier copy wrote
	end  uint64 // of what was named

	ranges []gvisor.ImageRange

	mu     sync.Mutex
	chunks []gvisor.Chunk // guarded by mu; in any order, and with the layers of the base
	same   int            // guarded by mu; chunks that an earlier copy wrote
	shared int            // guarded by mu; chunks that the base has
}

func newPagesOut(file *os.File, b *base) (*pagesOut, error) {
	p := &pagesOut{file: file, base: b, key: gvisor.NewKey()}
	if b != nil {
		p.key = b.Key
	}
	var err error
	if p.mark, err = gvisor.Marker(p.key); err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	p.was = uint64(info.Size()) //nolint:gosec // G115: it is positive
	return p, nil
}

// errStopped is what a copy returns that was told to stop.
var errStopped = errors.New("the copy was stopped")

// extend takes note of a range that was named. Ranges come in the order of the
// file.
func (p *pagesOut) extend(r memmap.FileRange) error {
	if r.Start < p.end || r.End > fileMost || r.Start >= r.End {
		return fmt.Errorf("the engine names memory at %v, after that before %d", r, p.end)
	}
	p.end = r.End
	if last := len(p.ranges) - 1; last >= 0 && p.ranges[last].End() == int64(r.Start) { //nolint:gosec // G115: below fileMost
		p.ranges[last].Bytes += int64(r.Length()) //nolint:gosec // G115: likewise
	} else {
		p.ranges = append(p.ranges, gvisor.ImageRange{At: int64(r.Start), Bytes: int64(r.Length())}) //nolint:gosec // G115: likewise
	}
	return nil
}

// scratch is room for a chunk, and for what a file has in its place.
type scratch struct{ chunk, have []byte }

// rooms is room for chunks that nobody uses at the moment. A checkpoint and a wake
// of a small machine would pay more for new memory than for what they copy into it.
var rooms = sync.Pool{New: func() any { return new([gvisor.PageChunk]byte) }}

// newRoom returns room for a chunk, with anything in it. freeRoom takes it back.
func newRoom() []byte {
	room, _ := rooms.Get().(*[gvisor.PageChunk]byte) // nothing else is ever put there
	return room[:]
}

func freeRoom(room []byte) { rooms.Put((*[gvisor.PageChunk]byte)(room)) }

func newScratch() *scratch { return &scratch{newRoom(), newRoom()} }

func (s *scratch) release() {
	freeRoom(s.chunk)
	freeRoom(s.have)
}

// write reads a chunk of memory, and writes it if neither the base nor an earlier
// copy has it. It may be called for several chunks at a time, when all memory
// behind them in the same chunks was named.
func (p *pagesOut) write(named part, room *scratch) error {
	start := uint64(named.number) * gvisor.PageChunk
	chunk := room.chunk[:min(gvisor.PageChunk, p.end-start)]
	clear(chunk) // zero where nothing was named
	for _, piece := range named.pieces {
		at := piece.from.place(piece.at)
		into := chunk[at.Start-start : at.End-start]
		if piece.copy != nil {
			copy(into, piece.copy)
		} else if err := readFull(piece.from.fd, into, piece.at.Start); err != nil {
			return err
		}
	}
	if allZero(chunk) {
		return p.punch(start, gvisor.PageChunk)
	}
	now := gvisor.Chunk{Number: named.number, Mark: p.mark(chunk)}
	if p.base != nil {
		if then, ok := p.base.Find(now.Number); ok && p.base.here[then.Layer] && then.Mark == now.Mark && p.base.whole(now.Number, len(chunk)) {
			now.Layer, now.Sum, now.Name = as(then.Layer), then.Sum, then.Name
			p.add(now, &p.shared)
			return p.punch(start, gvisor.PageChunk)
		}
	}
	now.Sum, now.Name = gvisor.Sum(chunk), sha256.Sum256(chunk)
	have := room.have[:len(chunk)]
	n := 0
	if start < p.was {
		var err error
		if n, err = p.file.ReadAt(have, int64(start)); err != nil && !errors.Is(err, io.EOF) { //nolint:gosec // G115: below fileMost
			return fmt.Errorf("read the pages of an earlier copy: %w", err)
		}
	}
	if clear(have[n:]); n > 0 && bytes.Equal(have, chunk) {
		p.add(now, &p.same)
		return nil
	}
	if err := p.punch(start, gvisor.PageChunk); err != nil {
		return err
	}
	if err := p.put(chunk, int64(start)); err != nil { //nolint:gosec // G115: likewise
		return err
	}
	p.add(now, new(int))
	return nil
}

// whole reports whether a chunk of the base has so many bytes.
func (b *base) whole(number uint32, n int) bool {
	_, length := b.At(number)
	return length == int64(n)
}

// add adds a chunk to the index.
func (p *pagesOut) add(c gvisor.Chunk, count *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunks = append(p.chunks, c)
	*count++
}

// put writes a chunk. Pages without a bit set stay holes.
func (p *pagesOut) put(chunk []byte, at int64) error {
	size := os.Getpagesize()
	for from := 0; from < len(chunk); {
		if allZero(chunk[from:min(from+size, len(chunk))]) {
			from += size
			continue
		}
		to := from + size
		for to < len(chunk) && !allZero(chunk[to:min(to+size, len(chunk))]) {
			to += size
		}
		to = min(to, len(chunk))
		if _, err := p.file.WriteAt(chunk[from:to], at+int64(from)); err != nil {
			return fmt.Errorf("write pages: %w", err)
		}
		from = to
	}
	return nil
}

// punch makes a hole where an earlier copy may have written.
func (p *pagesOut) punch(at, n uint64) error {
	if at >= p.was {
		return nil
	}
	err := unix.Fallocate(int(p.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(at), int64(n)) //nolint:gosec // G115: below fileMost
	if err != nil {
		return fmt.Errorf("make a hole in the pages: %w", err)
	}
	return nil
}

// allZero reports whether no bit is set.
func allZero(some []byte) bool {
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

// finish removes what an earlier copy wrote where now nothing was named.
func (p *pagesOut) finish() error {
	behind := uint64(0) // of the chunks so far
	for _, r := range p.ranges {
		first := uint64(r.At) / gvisor.PageChunk * gvisor.PageChunk //nolint:gosec // G115: it is positive
		if first > behind {
			if err := p.punch(behind, first-behind); err != nil {
				return err
			}
		}
		behind = (uint64(r.End()) + gvisor.PageChunk - 1) / gvisor.PageChunk * gvisor.PageChunk //nolint:gosec // G115: likewise
	}
	return p.file.Truncate(int64(p.end)) //nolint:gosec // G115: below fileMost
}

// seal writes the index into the directory of the image, and removes the layers
// that have no chunk in it. It returns what it knows of the files. Preconditions:
// all chunks were written.
func (p *pagesOut) seal(dir string) ([]gvisor.ImageFile, error) {
	x := gvisor.Index{Key: p.key, Bytes: int64(p.end), Size: gvisor.PageChunk, Layers: 1, Ranges: p.ranges, Chunks: p.chunks} //nolint:gosec // G115: below fileMost
	slices.SortFunc(x.Chunks, func(a, b gvisor.Chunk) int { return cmp.Compare(a.Number, b.Number) })
	made := []gvisor.ImageFile{{Name: gvisor.FilePages, Bytes: x.Bytes}}
	if p.base != nil {
		used := make([]bool, p.base.Layers)
		for _, c := range x.Chunks {
			if c.Layer > 0 {
				used[c.Layer-1] = true
			}
		}
		to := make([]uint32, p.base.Layers)
		for layer, here := range p.base.here {
			if !here {
				continue
			}
			name := filepath.Join(dir, gvisor.LayerName(int(as(uint32(layer)))))
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
			to[layer] = uint32(x.Layers) //nolint:gosec // G115: likewise
			own := gvisor.LayerName(x.Layers)
			if err := os.Rename(name, filepath.Join(dir, own)); err != nil {
				return nil, fmt.Errorf("number a layer: %w", err)
			}
			made = append(made, gvisor.ImageFile{Name: own, Bytes: info.Size()})
			x.Layers++
		}
		for i, c := range x.Chunks {
			if c.Layer > 0 {
				x.Chunks[i].Layer = to[c.Layer-1]
			}
		}
	}
	raw := x.Append(nil)
	if err := os.WriteFile(filepath.Join(dir, gvisor.FileIndex), raw, 0o600); err != nil {
		return nil, fmt.Errorf("write the index: %w", err)
	}
	return slices.Insert(made, 1, gvisor.Describe(gvisor.FileIndex, raw)), nil
}
