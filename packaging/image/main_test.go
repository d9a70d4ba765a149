package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// layer writes a tar with one file.
func layer(t *testing.T, name string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name+".tar")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestImage: the archive is an image of both layers, and a second one has the same bytes.
func TestImage(t *testing.T) {
	t.Parallel()
	base, doze, dir := layer(t, "base"), layer(t, "doze"), t.TempDir()
	var made [][]byte
	for _, name := range []string{"a", "b"} {
		out := filepath.Join(dir, name)
		if err := run([]string{"--version", "0~2026.abc", "--created", "7", "--out", out, base, doze}); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, raw)
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("two images of the same layers differ")
	}
	img, err := tarball.ImageFromPath(filepath.Join(dir, "a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	config, err := img.ConfigFile()
	if err != nil || len(config.RootFS.DiffIDs) != 2 || config.Config.Entrypoint[0] != "/usr/bin/dozed" || config.Created.Unix() != 7 {
		t.Errorf("%+v, %v", config, err)
	}
	for _, bad := range [][]string{{}, {"--version", "1", "--out", filepath.Join(dir, "c")}, {"--version", "1", "--out", filepath.Join(dir, "c"), "none.tar"}} {
		if err := run(bad); err == nil {
			t.Errorf("%q: an image was made", bad)
		}
	}
}
