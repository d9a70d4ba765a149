// Package layout reads and writes images as the OCI's layout in a tar.
package layout

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// jsonMax bounds an index, a manifest and a configuration, in bytes.
	jsonMax = 4 << 20
	// blobsMax bounds the files of a layout.
	blobsMax = 2000
	// blobDir is where a layout has its blobs.
	blobDir = "blobs/sha256/"
)

// A MistakeError is a layout that cannot be read. Its text is for the sender.
type MistakeError struct {
	Text string
}

// Error implements error.
func (m *MistakeError) Error() string { return m.Text }

// A Blob is a file of a layout.
type Blob struct {
	Digest digest.Digest
	Size   int64
	Open   func() (io.ReadCloser, error)
}

// Write writes a layout with one image: its manifest, and the blobs that it names.
func Write(w io.Writer, manifest []byte, mediaType string, blobs []Blob) error {
	out := tar.NewWriter(w)
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{desc}}
	index.SchemaVersion = 2
	raw, err := json.Marshal(index)
	if err != nil {
		return err
	}
	mark, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		raw  []byte
	}{{ocispec.ImageLayoutFile, mark}, {ocispec.ImageIndexFile, raw}, {blobDir + desc.Digest.Encoded(), manifest}} {
		if err := put(out, f.name, int64(len(f.raw)), bytes.NewReader(f.raw)); err != nil {
			return err
		}
	}
	written := map[digest.Digest]bool{desc.Digest: true}
	for _, b := range blobs {
		if written[b.Digest] { // two layers may be the same
			continue
		}
		written[b.Digest] = true
		if err := copyBlob(out, b); err != nil {
			return err
		}
	}
	return out.Close()
}

// copyBlob writes one blob.
func copyBlob(out *tar.Writer, b Blob) error {
	in, err := b.Open()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return put(out, blobDir+b.Digest.Encoded(), b.Size, in)
}

// put writes one file.
func put(out *tar.Writer, name string, size int64, in io.Reader) error {
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(out, in)
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, not %d", name, n, size)
	}
	return err
}

// Read reads a layout with one image, and calls store for each of its blobs. Store verifies
// the digest. Read returns which of the blobs is the manifest. It does not look into it.
func Read(r io.Reader, store func(dgst digest.Digest, size int64, r io.Reader) error) (ocispec.Descriptor, error) {
	in := tar.NewReader(r)
	var index *ocispec.Index
	for n := 0; ; {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return one(index)
		case errors.Is(err, tar.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
			return ocispec.Descriptor{}, &MistakeError{"the layout is broken: " + err.Error()}
		case err != nil:
			return ocispec.Descriptor{}, err
		case h.Typeflag != tar.TypeReg:
			continue
		}
		name := strings.TrimPrefix(h.Name, "./")
		hex, isBlob := strings.CutPrefix(name, blobDir)
		switch {
		case name == ocispec.ImageIndexFile:
			index = &ocispec.Index{}
			if err := json.NewDecoder(io.LimitReader(in, jsonMax)).Decode(index); err != nil {
				return ocispec.Descriptor{}, &MistakeError{"index.json: " + err.Error()}
			}
		case isBlob && sparse(h):
			return ocispec.Descriptor{}, &MistakeError{fmt.Sprintf("%.200q is a sparse file, which no layout has", name)}
		case isBlob:
			if n++; n > blobsMax {
				return ocispec.Descriptor{}, &MistakeError{fmt.Sprintf("the layout has more than %d blobs", blobsMax)}
			}
			dgst := digest.NewDigestFromEncoded(digest.SHA256, hex)
			if err := dgst.Validate(); err != nil {
				return ocispec.Descriptor{}, &MistakeError{fmt.Sprintf("%.200q is no digest", hex)}
			}
			if err := store(dgst, h.Size, in); err != nil {
				return ocispec.Descriptor{}, err
			}
		}
	}
}

// sparse reports whether a few bytes of a tar may be any number of zeros.
func sparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// one returns the manifest of a layout's only image.
func one(index *ocispec.Index) (ocispec.Descriptor, error) {
	switch {
	case index == nil:
		return ocispec.Descriptor{}, &MistakeError{"the layout has no index.json"}
	case len(index.Manifests) != 1:
		return ocispec.Descriptor{}, &MistakeError{fmt.Sprintf("the layout has %d images, not 1", len(index.Manifests))}
	}
	d := index.Manifests[0]
	if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != digest.SHA256 || d.Size <= 0 || d.Size > jsonMax {
		return ocispec.Descriptor{}, &MistakeError{"index.json: the manifest has no sensible digest and size"}
	}
	return d, nil
}

// Manifest reads a manifest that has a configuration and layers.
func Manifest(raw []byte) (ocispec.Manifest, error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, &MistakeError{"the manifest: " + err.Error()}
	}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if err := d.Digest.Validate(); err != nil {
			return m, &MistakeError{fmt.Sprintf("the manifest: %.200q is no digest", d.Digest)}
		}
	}
	return m, nil
}

// Encode writes a manifest as it is stored.
func Encode(m ocispec.Manifest) ([]byte, error) { return json.Marshal(m) }

// Without marks those layers of a manifest that are the whole of another image, if they are
// its first ones. It returns how many they are.
func Without(m *ocispec.Manifest, layers []digest.Digest, key string) int {
	if len(layers) == 0 || len(m.Layers) < len(layers) {
		return 0
	}
	for i, l := range layers {
		if m.Layers[i].Digest != l {
			return 0
		}
	}
	m.Layers = slices.Clone(m.Layers)
	for i := range layers {
		m.Layers[i].Annotations = map[string]string{buildapi.AnnotationImage: key}
	}
	return len(layers)
}
