package layout

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func blob(text string) Blob {
	return Blob{Digest: digest.FromString(text), Size: int64(len(text)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(text)), nil
	}}
}

// manifest is of an image with some layers.
func manifest(tb testing.TB, config string, layers ...string) (raw []byte, blobs []Blob) {
	tb.Helper()
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest}
	m.SchemaVersion = 2
	add := func(mediaType, text string) ocispec.Descriptor {
		b := blob(text)
		blobs = append(blobs, b)
		return ocispec.Descriptor{MediaType: mediaType, Digest: b.Digest, Size: b.Size}
	}
	m.Config = add(ocispec.MediaTypeImageConfig, config)
	for _, l := range layers {
		m.Layers = append(m.Layers, add(ocispec.MediaTypeImageLayer, l))
	}
	raw, err := Encode(m)
	if err != nil {
		tb.Fatal(err)
	}
	return raw, blobs
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	raw, blobs := manifest(t, "{}", "one", "two", "one")
	var out bytes.Buffer
	if err := Write(&out, raw, ocispec.MediaTypeImageManifest, blobs); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	desc, err := Read(&out, func(d digest.Digest, size int64, r io.Reader) error {
		text, err := io.ReadAll(r)
		if int64(len(text)) != size {
			t.Errorf("%s has %d bytes, not %d", d, len(text), size)
		}
		got[d.String()] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{desc.Digest.String(): string(raw)}
	for _, text := range []string{"{}", "one", "two"} {
		want[digest.FromString(text).String()] = text
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if m, err := Manifest(raw); err != nil || len(m.Layers) != 3 {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestWithout(t *testing.T) {
	t.Parallel()
	raw, _ := manifest(t, "{}", "a", "b", "c")
	dgst := func(texts ...string) (all []digest.Digest) {
		for _, text := range texts {
			all = append(all, digest.FromString(text))
		}
		return all
	}
	for name, c := range map[string]struct {
		layers []digest.Digest
		want   int
	}{
		"prefix": {dgst("a", "b"), 2}, "all": {dgst("a", "b", "c"), 3}, "none": {nil, 0}, "not first": {dgst("b"), 0},
		"more": {dgst("a", "b", "c", "d"), 0}, "another": {dgst("a", "x"), 0},
	} {
		m, err := Manifest(raw)
		if err != nil {
			t.Fatal(err)
		}
		before := len(m.Layers)
		if got := Without(&m, c.layers, "sha256:00"); got != c.want || len(m.Layers) != before {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		for i, l := range m.Layers {
			if marked := l.Annotations[buildapi.AnnotationImage] == "sha256:00"; marked != (i < c.want) {
				t.Errorf("%s: layer %d is marked: %v", name, i, marked)
			}
		}
	}
}

// files makes a tar of some files.
func files(tb testing.TB, all map[string]string) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, text := range all {
		if err := put(w, name, int64(len(text)), strings.NewReader(text)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// sparseTar has a blob of a gigabyte of zeros in a few bytes.
func sparseTar(t *testing.T) []byte {
	t.Helper()
	hex := strings.Repeat("0", 64)
	record := func(key, value string) string {
		text := " " + key + "=" + value + "\n"
		n := len(text) + 2
		if n >= 100 {
			n++
		}
		return strconv.Itoa(n) + text
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", blobDir+hex) + record("GNU.sparse.realsize", "1073741824")
	head := func(name string, kind byte, size int) []byte {
		b := make([]byte, 512)
		copy(b, name)
		copy(b[100:], "0000644\x000000000\x000000000\x00")
		copy(b[124:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
		b[156] = kind
		copy(b[257:], "ustar\x0000")
		copy(b[148:], "        ")
		sum := 0
		for _, c := range b {
			sum += int(c)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
		return b
	}
	pad := func(text string) []byte { return append([]byte(text), make([]byte, (512-len(text)%512)%512)...) }
	return slices.Concat(head("pax", tar.TypeXHeader, len(pax)), pad(pax), head("x", tar.TypeReg, 512), pad("1\n1073741824\n0\n"), make([]byte, 1024))
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	index := func(manifests ...ocispec.Descriptor) string {
		raw, err := json.Marshal(ocispec.Index{Manifests: manifests})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	one := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"nothing":    {files(t, nil), "no index.json"},
		"no JSON":    {files(t, map[string]string{"index.json": "{"}), "index.json"},
		"two images": {files(t, map[string]string{"index.json": index(one, one)}), "2 images"},
		"no image":   {files(t, map[string]string{"index.json": index()}), "0 images"},
		"no digest":  {files(t, map[string]string{"index.json": index(ocispec.Descriptor{Digest: "../x", Size: 1})}), "no sensible digest"},
		"no size":    {files(t, map[string]string{"index.json": index(ocispec.Descriptor{Digest: one.Digest})}), "no sensible digest"},
		"odd blob":   {files(t, map[string]string{"blobs/sha256/../../x": "x"}), "no digest"},
		"zeros":      {sparseTar(t), "sparse"},
		"cut":        {files(t, map[string]string{"index.json": index(one)})[:560], "index.json"},
		"no archive": {[]byte(strings.Repeat("x", 2000)), "broken"},
	} {
		_, err := Read(bytes.NewReader(c.raw), func(digest.Digest, int64, io.Reader) error { return nil })
		if m, ok := errors.AsType[*MistakeError](err); !ok || !strings.Contains(m.Text, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for name, raw := range map[string]string{"no JSON": "{", "an odd digest": `{"config":{"digest":"../x"}}`} {
		if _, err := Manifest([]byte(raw)); err == nil {
			t.Errorf("%s: a manifest of %s is no mistake", name, raw)
		}
	}
}

func FuzzRead(f *testing.F) {
	raw, blobs := manifest(f, "{}", "one")
	var out bytes.Buffer
	if err := Write(&out, raw, ocispec.MediaTypeImageManifest, blobs); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		desc, err := Read(bytes.NewReader(raw), func(d digest.Digest, _ int64, r io.Reader) error {
			if err := d.Validate(); err != nil {
				t.Errorf("handed over %q", d)
			}
			_, err := io.Copy(io.Discard, r)
			return err
		})
		if err == nil && desc.Digest.Validate() != nil {
			t.Errorf("returned %q", desc.Digest)
		}
		if m, err := Manifest(raw); err == nil {
			for _, l := range m.Layers {
				if l.Digest.Validate() != nil {
					t.Errorf("a layer has the digest %q", l.Digest)
				}
			}
		}
	})
}
