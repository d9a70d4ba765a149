package build

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
)

// zipOf is a zip of files that say that they have some bytes, and have one.
func zipOf(tb testing.TB, sizes ...uint64) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for i, size := range sizes {
		f, err := w.CreateRaw(&zip.FileHeader{
			Name: fmt.Sprint("file", i), Method: zip.Deflate, UncompressedSize64: size, CompressedSize64: 1, CRC32: crc32.ChecksumIEEE([]byte("x")),
			Comment: "PK\x05\x06 is no end", Extra: []byte{9, 9, 2, 0, 1, 2},
		})
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := f.Write([]byte("x")); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.SetComment(strings.Repeat("comment ", 999) + "PK\x05\x06 no"); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func gzipOf(t *testing.T, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func tarOf(t *testing.T, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestDeclared: an archive says how large it is when it is unpacked.
func TestDeclared(t *testing.T) {
	t.Parallel()
	const most = 70_000
	prefixed := append([]byte("PK\x03\x04 before the archive"), zipOf(t, 3)...)
	cut := zipOf(t, 3, 4)
	cut = cut[:len(cut)-8010]
	for name, c := range map[string]struct {
		raw  []byte
		want declaration
	}{
		"a zip":            {zipOf(t, 3, 4), declaration{bytes: 7, files: 2}},
		"more than 4 GB":   {zipOf(t, 5<<30, 1<<32-1, 1), declaration{bytes: 5<<30 + 1<<32, files: 3}},
		"many files":       {zipOf(t, make([]uint64, 1<<16+1)...), declaration{files: 1<<16 + 1}},
		"too many files":   {zipOf(t, make([]uint64, most+5)...), declaration{files: most + 1}},
		"beyond all sizes": {zipOf(t, 1<<62, 1<<62, 1<<62), declaration{bytes: 1<<63 - 1, files: 2}},
		"an empty zip":     {zipOf(t), declaration{empty: true}},
		"behind something": {prefixed, declaration{bytes: 3, files: 1}},
		"a cut zip":        {cut, declaration{}},
		"no zip":           {[]byte("PK\x03\x04"), declaration{}},
		"a gzip":           {gzipOf(t, make([]byte, 5000)), declaration{bytes: 5000}},
		"a tar":            {tarOf(t, "a"), declaration{}},
		"an empty tar":     {tarOf(t), declaration{empty: true}},
		"nothing":          {nil, declaration{}},
	} {
		got, err := declared(bytes.NewReader(c.raw), int64(len(c.raw)), most)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// FuzzDeclared: nothing that a stranger sends ends the program, nor is an archive larger than
// Go's reader of a zip says.
func FuzzDeclared(f *testing.F) {
	f.Add(zipOf(f, 3, 4))
	f.Add(zipOf(f, 5<<30))
	f.Add(zipOf(f))
	f.Add(binary.LittleEndian.AppendUint32([]byte("\x1f\x8b123456"), 77))
	f.Fuzz(func(t *testing.T, raw []byte) {
		const most = 100
		d, err := declared(bytes.NewReader(raw), int64(len(raw)), most)
		if err != nil || d.bytes < 0 || d.files < 0 || d.files > most+1 {
			t.Fatalf("%+v, %v", d, err)
		}
	})
}
