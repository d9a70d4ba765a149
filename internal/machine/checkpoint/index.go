package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"

	"github.com/dozehq/doze/internal/machine"
)

// The memory of a machine is in layers. A checkpoint writes those chunks that
// are not in the checkpoint before it, each at its place, to a file of its own. For
// all others it has that checkpoint's files as well, under a second name: nobody ever
// writes to one again, and the file system counts its owners. The index says
// which chunk is in which layer.

const (
	// PageChunk is how much memory is written, or shared, at a time. Smaller
	// chunks write less for scattered changes, and make the index larger: it has
	// 60 bytes for each, which is 1/4369 of the memory.
	PageChunk = 256 << 10
	// LayersMost is how many files the memory of a checkpoint is in at most. A wake
	// opens all of them.
	LayersMost = 16
	// indexMagic is the begin of an index, with its version.
	indexMagic = "dozeidx\x01"
	// indexMax bounds what we read of one: 1 TiB of memory needs less.
	indexMax = 256 << 20
	// MemoryMost is where the memory of a machine ends at the latest, with its
	// holes.
	MemoryMost = 1 << 40
	headBytes  = len(indexMagic) + 16 + 8 + 4*4
	rangeBytes = 16
	chunkBytes = 3*4 + len(Mark{}) + len(Name{})
)

// Mark tells the content of a chunk from all others of the same index, even from
// content that a guest makes up. It is an authentication code, whose key is in the
// index. It costs a third of a [Name].
type Mark [16]byte

// Name is the SHA-256 of a chunk. It is the same in all checkpoints on all hosts.
type Name [sha256.Size]byte

// Chunk says where a part of a machine's memory is, and what it is.
type Chunk struct {
	Number uint32 // it begins at so many times the size of a chunk
	Layer  uint32
	Sum    uint32 // CRC-32C, which a wake compares: it finds accidents, in little time
	Mark   Mark
	Name   Name
}

// Index says where the memory of a machine is. What has no chunk is zero.
type Index struct {
	Key    [16]byte // of all marks
	Bytes  int64    // where the memory ends; holes count
	Size   int64    // of a chunk; the last one may be shorter
	Layers int
	Ranges []Range // where the bytes are that the engine reads one after the other
	Chunks []Chunk // by number

	starts []int64 // what the engine reads as the first byte of each range; made by Parse
}

// LayerName is the name of a layer's file. The first one is what the checkpoint
// itself wrote.
func LayerName(layer int) string {
	if layer == 0 {
		return FilePages
	}
	return "pages." + strconv.Itoa(layer) + ".img"
}

// NewKey returns a key for the marks of a checkpoint that shares nothing.
func NewKey() (key [16]byte) {
	_, _ = rand.Read(key[:]) // never fails
	return key
}

// Marker returns the function that computes marks. It may be called at any time.
func Marker(key [16]byte) (func(chunk []byte) Mark, error) {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	// With one nonce for all, the code is a hash with a secret key: two chunks
	// have the same with a chance of 2^-114, for those who never see a mark.
	nonce := make([]byte, seal.NonceSize())
	return func(chunk []byte) (m Mark) {
		seal.Seal(m[:0], nonce, nil, chunk)
		return m
	}, nil
}

// Sum returns the checksum of a chunk.
func Sum(chunk []byte) uint32 { return crc32.Checksum(chunk, castagnoli) }

// Find returns the chunk of a number, if it is not zero.
func (x *Index) Find(number uint32) (Chunk, bool) {
	i, ok := slices.BinarySearchFunc(x.Chunks, number, func(c Chunk, n uint32) int { return cmp.Compare(c.Number, n) })
	if !ok {
		return Chunk{}, false
	}
	return x.Chunks[i], true
}

// At returns where a chunk begins and how long it is.
func (x *Index) At(number uint32) (at, length int64) {
	at = int64(number) * x.Size
	return at, min(x.Size, x.Bytes-at)
}

// Locate returns where the byte is that the engine reads at an offset, and how
// many follow it there. It returns no bytes behind the last.
func (x *Index) Locate(offset int64) (at, bytes int64) {
	i := sort.Search(len(x.starts), func(i int) bool { return x.starts[i] > offset }) - 1
	if i < 0 || offset-x.starts[i] >= x.Ranges[i].Bytes {
		return x.Bytes, 0
	}
	r := x.Ranges[i]
	return r.At + offset - x.starts[i], r.Bytes - (offset - x.starts[i])
}

// count makes what Locate needs.
func (x *Index) count() {
	x.starts = make([]int64, len(x.Ranges))
	var total int64
	for i, r := range x.Ranges {
		x.starts[i] = total
		total += r.Bytes
	}
}

// Append adds the index to raw as it is on disk.
func (x *Index) Append(raw []byte) []byte {
	raw = slices.Grow(raw, headBytes+len(x.Ranges)*rangeBytes+len(x.Chunks)*chunkBytes)
	le := binary.LittleEndian
	raw = append(raw, indexMagic...)
	raw = append(raw, x.Key[:]...)
	raw = le.AppendUint64(raw, uint64(x.Bytes))       //nolint:gosec // G115: it is positive
	raw = le.AppendUint32(raw, uint32(x.Size))        //nolint:gosec // G115: a chunk is small
	raw = le.AppendUint32(raw, uint32(x.Layers))      //nolint:gosec // G115: at most LayersMost
	raw = le.AppendUint32(raw, uint32(len(x.Ranges))) //nolint:gosec // G115: at most one for each page
	raw = le.AppendUint32(raw, uint32(len(x.Chunks))) //nolint:gosec // G115: at most one for each chunk
	for _, r := range x.Ranges {
		raw = le.AppendUint64(raw, uint64(r.At))    //nolint:gosec // G115: it is positive
		raw = le.AppendUint64(raw, uint64(r.Bytes)) //nolint:gosec // G115: likewise
	}
	for _, c := range x.Chunks {
		raw = le.AppendUint32(raw, c.Number)
		raw = le.AppendUint32(raw, c.Layer)
		raw = le.AppendUint32(raw, c.Sum)
		raw = append(raw, c.Mark[:]...)
		raw = append(raw, c.Name[:]...)
	}
	return raw
}

// ParseIndex reads what Append wrote. It accepts nothing else.
func ParseIndex(raw []byte) (x Index, err error) {
	bad := func(what string) (Index, error) {
		return Index{}, fmt.Errorf("%w: its index has %s", machine.ErrDamaged, what)
	}
	if len(raw) < headBytes || !bytes.HasPrefix(raw, []byte(indexMagic)) {
		return bad("another version, or none")
	}
	le, head := binary.LittleEndian, raw[len(indexMagic):]
	copy(x.Key[:], head)
	head = head[len(x.Key):]
	total := le.Uint64(head)
	size, layers := le.Uint32(head[8:]), le.Uint32(head[12:])
	ranges, chunks := uint64(le.Uint32(head[16:])), uint64(le.Uint32(head[20:]))
	switch {
	case total > MemoryMost:
		return bad("too much memory")
	case size < 4096 || size > SumChunk || size&(size-1) != 0:
		return bad("chunks of an odd size")
	case layers < 1 || layers > LayersMost:
		return bad("too many layers, or none")
	case uint64(len(raw)) != uint64(headBytes)+ranges*uint64(rangeBytes)+chunks*uint64(chunkBytes):
		return bad("another length")
	}
	x.Bytes, x.Size, x.Layers = int64(total), int64(size), int(layers)
	raw = raw[headBytes:]
	var end uint64
	x.Ranges = make([]Range, ranges)
	for i := range x.Ranges {
		at, n := le.Uint64(raw), le.Uint64(raw[8:])
		if raw = raw[rangeBytes:]; n == 0 || n > total || at > total-n || at < end || (i > 0 && at == end) {
			return bad("ranges in disorder")
		}
		x.Ranges[i] = Range{At: int64(at), Bytes: int64(n)} //nolint:gosec // G115: at most total
		end = at + n
	}
	if end != total {
		return bad("memory that is in no range")
	}
	x.Chunks = make([]Chunk, chunks)
	for i := range x.Chunks {
		c := Chunk{Number: le.Uint32(raw), Layer: le.Uint32(raw[4:]), Sum: le.Uint32(raw[8:])}
		copy(c.Mark[:], raw[12:])
		copy(c.Name[:], raw[12+len(c.Mark):])
		raw = raw[chunkBytes:]
		if c.Layer >= layers || uint64(c.Number)*uint64(size) >= total || (i > 0 && c.Number <= x.Chunks[i-1].Number) {
			return bad("chunks in disorder")
		}
		x.Chunks[i] = c
	}
	x.count()
	return x, nil
}

// Describe returns what a manifest says of a file with this content.
func Describe(name string, raw []byte) File {
	var s Sums
	s.Add(raw)
	return s.File(name)
}

// Sums are the checksums of a file that is written piece by piece.
type Sums struct {
	bytes  int64
	chunks []uint32 // the last one may not be whole
}

// Add takes note of the next bytes of the file.
func (s *Sums) Add(raw []byte) {
	for len(raw) > 0 {
		room := SumChunk - int(s.bytes%SumChunk)
		if room == SumChunk {
			s.chunks = append(s.chunks, 0)
		}
		part := raw[:min(room, len(raw))]
		last := &s.chunks[len(s.chunks)-1]
		*last = crc32.Update(*last, castagnoli, part)
		raw, s.bytes = raw[len(part):], s.bytes+int64(len(part))
	}
}

// Bytes returns how long the file is.
func (s *Sums) Bytes() int64 { return s.bytes }

// File returns what a manifest says of the file.
func (s *Sums) File(name string) File {
	return File{Name: name, Bytes: s.bytes, Chunks: append([]uint32{}, s.chunks...)}
}

// ReadIndex returns the index of the checkpoint in dir, of which f says what it is.
func ReadIndex(dir string, f File) (Index, error) {
	if f.Bytes > indexMax {
		return Index{}, fmt.Errorf("%w: its index is too large", machine.ErrDamaged)
	}
	file, err := os.Open(filepath.Join(dir, FileIndex))
	if err != nil {
		return Index{}, err
	}
	defer func() { _ = file.Close() }()
	raw := make([]byte, f.Bytes)
	if _, err := io.ReadFull(file, raw); err != nil {
		return Index{}, fmt.Errorf("%w: its index is too short", machine.ErrDamaged)
	}
	if err := f.Check(raw); err != nil {
		return Index{}, err
	}
	return ParseIndex(raw)
}

// Worth returns which layers of a checkpoint the next one should share. One half of
// whose bytes counts no more is written anew, and so the files of a checkpoint take
// at most twice what is in it. If there would be too many layers, the smaller
// half is.
func (x *Index) Worth(taken []int64) (worth []bool) {
	live := make([]int64, x.Layers)
	for _, c := range x.Chunks {
		_, length := x.At(c.Number)
		live[c.Layer] += length
	}
	worth = make([]bool, x.Layers)
	var shared []int // layers
	for layer := range worth {
		if worth[layer] = live[layer] > 0 && live[layer]*2 >= taken[layer]; worth[layer] {
			shared = append(shared, layer)
		}
	}
	if len(shared) < LayersMost {
		return worth
	}
	slices.SortStableFunc(shared, func(a, b int) int { return cmp.Compare(live[a], live[b]) })
	for _, layer := range shared[:len(shared)/2] {
		worth[layer] = false
	}
	return worth
}
