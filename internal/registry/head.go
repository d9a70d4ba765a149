package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

// A head is what describes an image: its small files.
type head struct {
	manifest v1.Descriptor
	small    map[v1.Hash][]byte        // manifest and configuration
	large    map[v1.Hash]v1.Descriptor // layers
}

const (
	// smallMax bounds each of these files.
	smallMax = 4 << 20
	// rememberedMax bounds those that are remembered, of one image. Most have a
	// hundredth of it.
	rememberedMax = 256 << 10
	blobs         = "blobs/sha256"
)

// errLayout is in the error of an archive that is not what a node writes.
var errLayout = errors.New("the node sent another archive than an OCI layout with the small files first")

// headOf returns the head of a tag. It reads no layer.
func (s *Server) headOf(ctx context.Context, workspace, name string, tag doze.ImageTag) (*head, error) {
	if h, ok := s.known.Get(tag.Image); ok {
		return h, nil
	}
	archive, err := s.Images.Save(ctx, workspace, name, tag.Name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = archive.Close() }() // the layer is still in it
	h, err := readHead(archive)
	if err != nil {
		return nil, err
	}
	size := 0
	for _, b := range h.small {
		size += len(b)
	}
	if size <= rememberedMax {
		s.known.Add(tag.Image, h)
	}
	return h, nil
}

// readHead reads an archive as far as the layer.
func readHead(archive io.Reader) (*head, error) {
	var index *v1.IndexManifest
	files := map[v1.Hash][]byte{}
	for in := tar.NewReader(archive); ; {
		if index != nil {
			if h, ok, err := complete(index, files); ok || err != nil {
				return h, err
			}
		}
		f, err := in.Next()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errLayout, err)
		}
		if f.Typeflag != tar.TypeReg {
			continue
		}
		if f.Size > smallMax || len(files) > 8 {
			return nil, errLayout
		}
		b, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errLayout, err)
		}
		switch {
		case f.Name == "index.json":
			if index, err = parse(v1.ParseIndexManifest, b); err != nil || len(index.Manifests) != 1 {
				return nil, errLayout
			}
		case path.Dir(f.Name) == blobs:
			sum := sha256.Sum256(b)
			files[v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}] = b
		}
	}
}

// complete makes a head of the files that came, if they are all.
func complete(index *v1.IndexManifest, files map[v1.Hash][]byte) (_ *head, ok bool, err error) {
	d := index.Manifests[0]
	raw, ok := files[d.Digest]
	if !ok {
		return nil, false, nil
	}
	m, err := parse(v1.ParseManifest, raw)
	if err != nil {
		return nil, false, errLayout
	}
	config, ok := files[m.Config.Digest]
	if !ok {
		return nil, false, nil
	}
	h := &head{
		manifest: v1.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: int64(len(raw))},
		small:    map[v1.Hash][]byte{d.Digest: raw, m.Config.Digest: config}, large: map[v1.Hash]v1.Descriptor{},
	}
	for _, l := range m.Layers {
		h.large[l.Digest] = l
	}
	return h, true, nil
}

// layer returns a layer of a tag.
func (s *Server) layer(ctx context.Context, workspace, name string, tag doze.ImageTag, digest v1.Hash) (io.ReadCloser, error) {
	leave, err := s.enter(workspace)
	if err != nil {
		return nil, err
	}
	archive, err := s.Images.Save(ctx, workspace, name, tag.Name)
	if err != nil {
		leave()
		return nil, err
	}
	for in := tar.NewReader(archive); ; {
		f, err := in.Next()
		if err != nil {
			leave()
			s.known.Remove(tag.Image) // the node writes it in another way now
			return nil, errors.Join(doze.Wrap(err, doze.Unavailable, "the image changed on its way: try again"), archive.Close())
		}
		if f.Name == blobs+"/"+digest.Hex {
			return &stream{in, archive, leave}, nil
		}
	}
}

// A stream is a layer on its way.
type stream struct {
	io.Reader
	archive io.Closer
	leave   func()
}

// Close implements [io.Closer].
func (s *stream) Close() error {
	s.leave()
	return s.archive.Close()
}

// parse reads one of the documents of an image.
func parse[T any](read func(io.Reader) (*T, error), raw []byte) (*T, error) {
	return read(bytes.NewReader(raw))
}
