package registry

import (
	"archive/tar"
	"bytes"
	"testing"
)

// FuzzHead: whatever a node sends is a head or an error, and no small file is large.
func FuzzHead(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, file := range [][2]string{{"index.json", `{"schemaVersion":2,"manifests":[{"digest":"sha256:00","size":2}]}`}, {"blobs/sha256/00", `{}`}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file[0], Size: int64(len(file[1]))}); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write([]byte(file[1])); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, archive []byte) {
		h, err := readHead(bytes.NewReader(archive))
		if err != nil {
			return
		}
		if _, ok := h.small[h.manifest.Digest]; !ok || len(h.small) > 2 {
			t.Errorf("%+v", h)
		}
	})
}
