package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

// carry is a fetch of [Library.Receive] that copies a file.
func carry(from string) func(context.Context, string) (string, error) {
	return func(_ context.Context, dir string) (string, error) {
		raw, err := os.ReadFile(from)
		to := filepath.Join(dir, "came")
		return to, errors.Join(err, os.WriteFile(to, raw, 0o444))
	}
}

// TestReceive: an image that was built is the same in another library, over a restart too.
func TestReceive(t *testing.T) {
	t.Parallel()
	from, to := library(t, Options{}), library(t, Options{})
	made := load(t, from, "mine", files(t, unpacked(t, picture(t, v1.Config{Env: []string{"A=1"}, Entrypoint: []string{"/bin/a"}}, rich(t)))))
	file, raw, err := from.Built(made.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := to.Built(made.Ref); doze.Public(err).Kind != doze.NotFound || to.HasBuilt(made.Ref) {
		t.Errorf("what did not come yet: %v", err)
	}
	broken := errors.New("the bucket is away")
	if err := to.Receive(t.Context(), made.Ref, raw, func(context.Context, string) (string, error) { return "", broken }); !errors.Is(err, broken) {
		t.Errorf("a file that does not come: %v", err)
	}
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := to.Receive(t.Context(), made.Ref, raw, carry(short)); err == nil || to.HasBuilt(made.Ref) {
		t.Errorf("a file of another size: %v", err)
	}
	for range 2 {
		if err := to.Receive(t.Context(), made.Ref, raw, carry(file)); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(to.tempDir()); err != nil || len(left) > 0 {
		t.Errorf("there is left %v, %v", left, err)
	}
	for l, want := range map[*Library]int{from: 1, to: 1} {
		if lacks, err := Lacking(l.dir, []string{made.Ref, "another"}); err != nil || len(lacks) != want || lacks[0] != "another" {
			t.Errorf("it lacks %v, %v", lacks, err)
		}
	}
	if lacks, err := Lacking(t.TempDir(), []string{made.Ref}); err != nil || len(lacks) != 1 {
		t.Errorf("a directory without images lacks %v, %v", lacks, err)
	}
	again, err := Open(to.dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := again.Ensure(t.Context(), made.Ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	was, is := bytesOf(t, made.Path), bytesOf(t, got.Path)
	made.Path, got.Path = "", ""
	if diff := cmp.Diff(made, got); diff != "" || !bytes.Equal(was, is) {
		t.Errorf("it is another image: %s", diff)
	}
	// A build on it leaves its layers out.
	one, err := readRecord(from.imageDir(), made.hex())
	two, none := readRecord(to.imageDir(), made.hex())
	if diff := cmp.Diff(one.Layers, two.Layers); err != nil || none != nil || diff != "" {
		t.Errorf("its layers are others: %s, %v", diff, errors.Join(err, none))
	}
	gone, err := to.Retain(nil)
	if err != nil || len(gone) != 1 {
		t.Errorf("what nobody needs goes: %v, %v", gone, err)
	}
}

func bytesOf(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// FuzzTravelling: whatever another host says of an image, its name stays in the directory of images.
func FuzzTravelling(f *testing.F) {
	sum := strings.Repeat("a", 64)
	f.Add("built/x@sha256:"+sum, []byte(`{"digest":"sha256:`+sum+`","bytes":5,"layers":["sha256:`+sum+`"],"config":{"env":["A=1"]}}`))
	f.Add("built/x@sha256:"+sum, []byte(`{"digest":"sha256:../../x","bytes":-1}`))
	f.Add("../x@y", []byte(`{"digest":"y"}`))
	f.Fuzz(func(t *testing.T, ref string, raw []byte) {
		got, err := parseTravelling(ref, raw)
		if err != nil {
			return
		}
		img := Image{Digest: got.Digest}
		if filepath.Base(img.hex()) != img.hex() || len(img.hex()) != 64 || got.Bytes <= 0 || !isBuilt(ref) || len(got.Layers) > layersMost {
			t.Errorf("%q of %q is %+v", raw, ref, got)
		}
	})
}
