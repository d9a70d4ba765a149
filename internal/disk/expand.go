package disk

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/dozehq/doze"
)

const (
	// expansionMax is how many times larger a layer may become than it was
	// compressed. Text gets ten times larger, and logs thirty; gzip can do a thousand.
	expansionMax = 100
	// expansionFree may come of any layer, however small: some have one file that is
	// almost empty, such as a database that was just made.
	expansionFree = 256 << 20
	// windowMax is how much a compressed layer may refer back, which takes as much
	// memory: zstd has that much with --long, and hostile frames ask for more.
	windowMax = 128 << 20
)

// expansion is how many bytes may come of so many compressed ones.
func expansion(compressed int64) int64 {
	const most = 1 << 62
	if compressed > most/expansionMax {
		return most
	}
	return max(expansionFree, compressed*expansionMax)
}

// A stretch is what may still come out of something compressed. It is shared by
// the layers of an image.
type stretch struct{ left int64 }

// stretched reads something expanded, and fails when too much comes of it.
type stretched struct {
	r    io.Reader
	both []*stretch
}

func (s *stretched) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	for _, one := range s.both {
		if one.left -= int64(n); one.left < 0 {
			return 0, doze.Errorf(doze.TooLarge, "it expands to more than %d times its compressed size, and to more than %d MB", expansionMax, expansionFree>>20)
		}
	}
	return n, err
}

// lay applies one layer, and compares it with both of its sums: that of the bytes
// that the registry sends, and that of the archive in them.
func lay(ctx context.Context, tree *rootTree, layer v1.Layer, diff v1.Hash, size int64, all *stretch) error {
	sent, err := layer.Compressed() // its reader fails if the bytes are not those of the digest
	if err != nil {
		return err
	}
	defer func() { _ = sent.Close() }()
	return layFrom(ctx, tree, sent, diff, size, all)
}

// layFrom is lay for a layer of whose bytes the first sum is compared elsewhere.
func layFrom(ctx context.Context, tree *rootTree, sent io.Reader, diff v1.Hash, size int64, all *stretch) error {
	content, done, err := expand(sent)
	if err != nil {
		return unreadable(err)
	}
	defer done()
	sum := sha256.New()
	bounded := &stretched{content, []*stretch{{left: expansion(size)}, all}}
	if err := tree.apply(ctx, io.TeeReader(bounded, sum)); err != nil {
		return err
	}
	// The archive may end before the bytes that were sent do.
	if _, err := io.Copy(io.Discard, sent); err != nil {
		return unreadable(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); diff.Algorithm != "sha256" || diff.Hex != got {
		return doze.Errorf(doze.Invalid, "its archive is sha256:%s, and its diff_id in the configuration is %.80s", got, diff)
	}
	return nil
}

var (
	magicGzip = []byte{0x1f, 0x8b}
	magicZstd = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// expand returns what a layer is compressed of, by what it begins with: what a
// manifest says about that is often wrong.
func expand(sent io.Reader) (content io.Reader, done func(), err error) {
	in := bufio.NewReaderSize(sent, 64<<10)
	begin, err := in.Peek(len(magicZstd))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(begin, magicGzip):
		z, err := gzip.NewReader(in)
		return z, func() {}, err
	case bytes.HasPrefix(begin, magicZstd):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowMax), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, fmt.Errorf("begin to decompress: %w", err)
		}
		return z, z.Close, nil
	}
	return in, func() {}, nil
}
