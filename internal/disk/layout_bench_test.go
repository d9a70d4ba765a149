package disk

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// bulk is a layer of files of random bytes: as many of them, and as large, as an image of
// a language with its packages has.
func bulk(tb testing.TB, name string, files int, bytesEach int) []byte {
	tb.Helper()
	source := rand.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", name))))
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	content := make([]byte, bytesEach)
	for i := range files {
		if i%100 == 0 {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("%s/%d/", name, i/100), Mode: 0o755, ModTime: day}); err != nil {
				tb.Fatal(err)
			}
		}
		_, _ = source.Read(content) // never fails
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s/%d/%d", name, i/100, i), Mode: 0o644, Size: int64(len(content)), ModTime: day}); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// BenchmarkImport compares what an image of 400 MB in 20,000 files costs that has one
// small layer more than one that is here: with all layers as if nothing were here, over
// the mounted image, over a copy of it, and with other words alone.
func BenchmarkImport(b *testing.B) {
	base, small := bulk(b, "base", 20_000, 20<<10), bulk(b, "small", 10, 1<<10)
	for _, bm := range []struct {
		name, dir string
		here      bool // the base
		layers    int
	}{
		{"whole", "lib", false, 2},
		{"mounted", "lib", true, 2},
		{"copied", "a,lib", true, 2},
		{"words", "lib", true, 1},
	} {
		b.Run(bm.name, func(b *testing.B) {
			library(b, Options{}) // or skip
			l, err := Open(filepath.Join(b.TempDir(), bm.dir), Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			in := func(id string, without bool, bases []Image, c v1.Config, layers ...[]byte) Image {
				all := unpacked(b, picture(b, c, layers...))
				if without {
					delete(all, blobsDir+descriptorOf("", layers[0]).Digest.Hex)
				}
				archive := files(b, all)
				b.StartTimer()
				img, err := l.ImportLayout(b.Context(), id, bytes.NewReader(archive), bases, nil)
				b.StopTimer()
				if err != nil {
					b.Fatal(err)
				}
				return img
			}
			b.StopTimer()
			lowest := base
			var bases []Image
			if bm.here {
				under := in("base", false, nil, v1.Config{}, base)
				var archive bytes.Buffer
				if _, err := l.Export(b.Context(), under.Ref, nil, &archive); err != nil {
					b.Fatal(err)
				}
				lowest, bases = lastFile(b, archive.Bytes()), []Image{under}
			}
			b.ResetTimer()
			for i := range b.N {
				layers := [][]byte{lowest, small}[:bm.layers]
				made := in(fmt.Sprint(i), bm.here, bases, v1.Config{Env: []string{fmt.Sprint("N=", i)}}, layers...)
				var stay []string
				for _, base := range bases {
					stay = append(stay, base.Path)
				}
				if _, err := l.Retain(stay); err != nil { // or the next one is words alone
					b.Fatal(err)
				}
				b.ReportMetric(float64(made.Bytes>>20), "MB")
			}
		})
	}
}

// BenchmarkExport writes an image of 400 MB: the second time, when its digest is known.
func BenchmarkExport(b *testing.B) {
	l := library(b, Options{})
	img, err := l.ImportLayout(b.Context(), "base", bytes.NewReader(files(b, unpacked(b, picture(b, v1.Config{}, bulk(b, "base", 20_000, 20<<10))))), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		count := &counter{w: nothing{}}
		if _, err := l.Export(b.Context(), img.Ref, nil, count); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(count.n)
	}
}

type nothing struct{}

func (nothing) Write(b []byte) (int, error) { return len(b), nil }
