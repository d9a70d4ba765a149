package backup_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/backup"
)

var manifest = backup.Manifest{Format: backup.Format, Version: "test", Made: time.Unix(7, 0).UTC(), Data: "/d", Images: "/d/images"}

// sample is a directory with every kind of file that a data directory has.
func sample(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "a", "empty"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "a", "text"), []byte("hello"), 0o600))
	must(os.WriteFile(filepath.Join(dir, "a", "program"), []byte("#!"), 0o600))
	must(os.Chmod(filepath.Join(dir, "a", "program"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "none"), nil, 0o600))
	must(os.Link(filepath.Join(dir, "a", "text"), filepath.Join(dir, "b")))
	must(os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	f, err := os.Create(filepath.Join(dir, "sparse"))
	must(err)
	for _, at := range []int64{1 << 20, 9 << 20} {
		_, err = f.WriteAt(bytes.Repeat([]byte{7}, 100_000), at)
		must(err)
	}
	must(errors.Join(f.Truncate(64<<20), f.Close()))
	must(os.WriteFile(filepath.Join(dir, "hole"), nil, 0o600))
	must(os.Truncate(filepath.Join(dir, "hole"), 1<<20))
	return dir
}

// archive is one of a directory.
func archive(tb testing.TB, dir string) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := backup.NewWriter(&b, manifest)
	if err == nil {
		err = w.Tree(tb.Context(), "data", dir, func(rel string) bool { return rel == "skipped" })
	}
	if err == nil {
		err = w.Close(map[string]string{"u": "its memory"})
	}
	if err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// extract reads an archive into a new directory.
func extract(tb testing.TB, r io.Reader) (dir string, m backup.Manifest, end backup.End, err error) {
	tb.Helper()
	dir = tb.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	m, end, err = backup.Extract(tb.Context(), r, root, func(backup.Manifest) error { return nil })
	return dir, m, end, err
}

// contents are the files below a directory, with their modes and contents.
func contents(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if e.IsDir() {
			all[rel] = "a directory"
			return nil
		}
		raw, err := os.ReadFile(name)
		all[rel] = fmt.Sprint(info.Mode(), len(raw), string(bytes.ReplaceAll(raw, []byte{0}, nil)))
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

func TestArchiveComesBackAsItWas(t *testing.T) {
	t.Parallel()
	dir := sample(t)
	if err := os.Mkdir(filepath.Join(dir, "skipped"), 0o700); err != nil {
		t.Fatal(err)
	}
	raw := archive(t, dir)
	if len(raw) > 2<<20 {
		t.Errorf("holes were written: %d bytes", len(raw))
	}
	got, m, end, err := extract(t, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	want := contents(t, dir)
	delete(want, "skipped")
	if diff := cmp.Diff(want, contents(t, filepath.Join(got, "data"))); diff != "" {
		t.Error(diff)
	}
	if m != manifest || end.Left["u"] != "its memory" {
		t.Errorf("%+v, %+v", m, end)
	}
	a, errA := os.Stat(filepath.Join(got, "data", "a", "text"))
	b, errB := os.Stat(filepath.Join(got, "data", "b"))
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		t.Error("two names of one file are two files:", errA, errB)
	}
}

// TestArchiveThatWasCut: wherever it ends, it is refused.
func TestArchiveThatWasCut(t *testing.T) {
	t.Parallel()
	raw := archive(t, sample(t))
	whole := len(raw) - 3*512 // the last block of the last entry has padding, and two of zeros follow
	for at := 0; at < whole; at += 509 {
		if _, _, _, err := extract(t, bytes.NewReader(raw[:at])); err == nil {
			t.Errorf("the first %d bytes of %d are a backup", at, len(raw))
		}
	}
}

// TestArchiveThatWasAltered: every bit of contents counts.
func TestArchiveThatWasAltered(t *testing.T) {
	t.Parallel()
	raw := archive(t, sample(t))
	at := bytes.Index(raw, []byte("hello"))
	raw[at] ^= 1
	if _, _, _, err := extract(t, bytes.NewReader(raw)); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v", err)
	}
}

// TestHostileArchive: no name leads out of the directory.
func TestHostileArchive(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]tar.Header{
		"up":            {Typeflag: tar.TypeReg, Name: "data/../../x"},
		"absolute":      {Typeflag: tar.TypeReg, Name: "/data/x"},
		"elsewhere":     {Typeflag: tar.TypeReg, Name: "doze.db"},
		"a link out":    {Typeflag: tar.TypeLink, Name: "data/x", Linkname: "../../etc/passwd"},
		"a symlink":     {Typeflag: tar.TypeSymlink, Name: "data/x", Linkname: "/etc"},
		"a device":      {Typeflag: tar.TypeBlock, Name: "data/x"},
		"parts":         {Typeflag: tar.TypeReg, Name: "data/x", PAXRecords: map[string]string{"DOZE.size": "5", "DOZE.extents": "3:9"}},
		"parts again":   {Typeflag: tar.TypeReg, Name: "data/x", PAXRecords: map[string]string{"DOZE.size": "-5", "DOZE.extents": ""}},
		"parts of what": {Typeflag: tar.TypeReg, Name: "data/x", PAXRecords: map[string]string{"DOZE.size": "99999999999999999999", "DOZE.extents": "a"}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		m := `{"format":1}`
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Size: int64(len(m))})
		if err == nil {
			_, err = io.WriteString(w, m)
		}
		h.Format = tar.FormatPAX
		if err = errors.Join(err, w.WriteHeader(&h), w.Close()); err != nil {
			t.Fatal(err)
		}
		dir, _, _, err := extract(t, &b)
		if err == nil || strings.Contains(err.Error(), "end.json") {
			t.Errorf("%s: %v", name, err)
		}
		if left := slices.Sorted(maps.Keys(contents(t, dir))); len(left) > 2 { // . and data
			t.Errorf("%s: it made %q", name, left)
		}
	}
}

func TestOtherFormats(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	m := manifest
	m.Format = backup.FormatControl + 1
	w, err := backup.NewWriter(&b, m)
	if err == nil {
		err = w.Close(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := extract(t, &b); err == nil || !strings.Contains(err.Error(), "use the dozed of version") {
		t.Errorf("%v", err)
	}
}

// FuzzExtract: whatever the bytes are, nothing is written out of the directory, and what is
// accepted has an end.
func FuzzExtract(f *testing.F) {
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("hello"), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Add(archive(f, dir))
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir, m, end, err := extract(t, bytes.NewReader(raw))
		if err == nil && (m.Format != backup.Format && m.Format != backup.FormatControl || end.Sum == "") {
			t.Errorf("%+v, %+v", m, end)
		}
		for name := range contents(t, dir) {
			if top, _, _ := strings.Cut(name, "/"); !slices.Contains([]string{".", "data", "images", "records.db", "config.json"}, top) {
				t.Errorf("it made %q", name)
			}
		}
	})
}
