package vault

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// How a chunk is packed: its first byte.
const (
	packedNot  = 0
	packedZstd = 1
)

// sealedMost is what a chunk in the bucket has at most, in bytes: a byte that says how it
// is packed, and what encryption adds.
const sealedMost = ChunkBytes + 1 + 12 + 16

// zeros is a chunk that nobody stores.
var zeros [ChunkBytes]byte

// slack is memory behind a chunk. With it, the decoder need not look for the end of the memory
// before each copy.
const slack = 64

// buffers are the memory for one chunk.
type buffers struct{ plain, packed []byte }

// unused has buffers that wait for a chunk.
var unused = sync.Pool{New: func() any {
	return &buffers{make([]byte, ChunkBytes, ChunkBytes+slack), make([]byte, 0, ChunkBytes+ChunkBytes/8)}
}}

// slots bound how many chunks are under way.
type slots chan struct{}

// take waits until a chunk may be under way, and returns memory for it.
func (s slots) take(ctx context.Context) (*buffers, error) {
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	b, _ := unused.Get().(*buffers)
	return b, nil
}

// free ends what take began.
func (s slots) free(b *buffers) {
	unused.Put(b)
	<-s
}

// packed returns a chunk as it is encrypted, in memory of b.
func (v *Vault) packed(b *buffers, plain []byte) []byte {
	out := v.pack.EncodeAll(plain, append(b.packed[:0], packedZstd))
	if len(out) > len(plain) {
		out = append(append(b.packed[:0], packedNot), plain...)
	}
	return out
}

// plain returns what a packed chunk has, in memory of b.
func (v *Vault) plain(b *buffers, packed []byte) ([]byte, error) {
	switch {
	case len(packed) > 1 && len(packed) <= 1+ChunkBytes && packed[0] == packedNot:
		return packed[1:], nil
	case len(packed) > 1 && packed[0] == packedZstd:
		return v.unpack.DecodeAll(packed[1:], b.plain[:0])
	}
	return nil, fmt.Errorf("a chunk of %d bytes that is packed in no known form", len(packed))
}

// chunk returns the content of a chunk of length bytes, in memory of b. What is not what
// was saved is ErrDamaged.
func (v *Vault) chunk(ctx context.Context, s *sealer, b *buffers, c chunk, length int) ([]byte, error) {
	sealed, err := v.getInto(ctx, v.key(s.id, kindChunk, c.String()), sealedMost, b.packed)
	if err != nil {
		if errors.Is(err, errAbsent) {
			err = fmt.Errorf("%w: chunk %s of %s is missing", ErrDamaged, c, s.id)
		}
		return nil, err
	}
	packed, err := s.openChunk(sealed, c)
	if err != nil {
		return nil, err
	}
	plain, err := v.plain(b, packed)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: chunk %s of %s: %w", ErrDamaged, c, s.id, err)
	case len(plain) != length || s.name(plain) != c.name:
		return nil, fmt.Errorf("%w: chunk %s of %s has another content", ErrDamaged, c, s.id)
	}
	return plain, nil
}
