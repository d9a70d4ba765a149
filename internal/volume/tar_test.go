package volume

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// entry is one of an archive.
type entry struct {
	name, text string
	kind       byte
	mode       int64
}

func pack(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Linkname: "/etc/passwd"}
		if e.kind == tar.TypeReg {
			h.Size, h.Linkname = int64(len(e.text)), ""
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func inRoot(tb testing.TB, do func(*os.Root)) (dir string) {
	tb.Helper()
	dir = filepath.Join(tb.TempDir(), "volume")
	if err := os.Mkdir(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	do(root)
	return dir
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	whole := pack(t, entry{"a/", "", tar.TypeDir, 0o750}, entry{"a/b", "old", tar.TypeReg, 0o600}, entry{"./c/d", "text", tar.TypeReg, 0o4755}, entry{"a/b", "new", tar.TypeReg, 0o640})
	dir := inRoot(t, func(root *os.Root) {
		if n, err := unpack(t.Context(), root, bytes.NewReader(whole), 1<<20); err != nil || n != 10 {
			t.Errorf("unpacked %d bytes, %v", n, err)
		}
	})
	for name, want := range map[string]fs.FileMode{"a": fs.ModeDir | 0o750, "a/b": 0o640, "c/d": 0o755} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "a/b")); string(raw) != "new" {
		t.Errorf("it reads %q, %v", raw, err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	file := func(name string) []byte { return pack(t, entry{name, "text", tar.TypeReg, 0o644}) }
	for name, tc := range map[string]struct {
		raw  []byte
		want doze.Kind
	}{
		"nothing":            {nil, doze.Invalid},
		"no archive":         {[]byte(strings.Repeat("text", 1000)), doze.Invalid},
		"half":               {file("a")[:514], doze.Invalid},
		"compressed":         {[]byte("\x1f\x8b\x08\x00" + strings.Repeat("x", 1000)), doze.Invalid},
		"absolute":           {file("/etc/passwd"), doze.Invalid},
		"traversal":          {file("../x"), doze.Invalid},
		"inner traversal":    {file("a/../../x"), doze.Invalid},
		"symbolic link":      {pack(t, entry{"l", "", tar.TypeSymlink, 0o777}), doze.Invalid},
		"hard link":          {pack(t, entry{"l", "", tar.TypeLink, 0o644}), doze.Invalid},
		"device":             {pack(t, entry{"d", "", tar.TypeBlock, 0o644}), doze.Invalid},
		"pipe":               {pack(t, entry{"p", "", tar.TypeFifo, 0o644}), doze.Invalid},
		"file and directory": {pack(t, entry{"a", "text", tar.TypeReg, 0o644}, entry{"a/b", "text", tar.TypeReg, 0o644}), doze.Invalid},
		"long name":          {file(strings.Repeat("n", 300)), doze.Invalid},
		"deep name":          {file(strings.Repeat("d/", 300) + "f"), doze.Invalid},
		"too large":          {pack(t, entry{"a", strings.Repeat("x", 600), tar.TypeReg, 0o644}, entry{"b", strings.Repeat("x", 600), tar.TypeReg, 0o644}), doze.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inRoot(t, func(root *os.Root) {
				if _, err := unpack(t.Context(), root, bytes.NewReader(tc.raw), 1000); doze.Public(err).Kind != tc.want {
					t.Errorf("it is %v", err)
				}
			})
		})
	}
}

// FuzzUnpack has archives of hostile strangers: whatever is in them stays below
// the root, is a file or a directory, and no error is ours.
func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, entry{"a/", "", tar.TypeDir, 0o755}, entry{"a/b", "text", tar.TypeReg, 0o6755}))
	f.Add(pack(f, entry{"../x", "text", tar.TypeReg, 0o644}))
	f.Add(pack(f, entry{"l", "", tar.TypeSymlink, 0o777}, entry{"l/x", "text", tar.TypeReg, 0o644}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := inRoot(t, func(root *os.Root) {
			if _, err := unpack(t.Context(), root, bytes.NewReader(raw), 1<<16); err != nil && doze.Public(err).Kind == doze.Internal {
				t.Errorf("an error of ours: %v", err)
			}
		})
		if beside, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(beside) != 1 {
			t.Errorf("beside the root there are %v, %v", beside, err)
		}
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if info, err := d.Info(); err != nil || !d.IsDir() && !info.Mode().IsRegular() || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
				return errors.Join(err, &fs.PathError{Op: "unpack", Path: name, Err: fs.ErrInvalid})
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
