package unpack

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// file is an entry of an archive that a test makes.
type file struct {
	name, body, link string
	kind             byte // of a tar
	mode             int64
	time             time.Time
}

var old = time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)

func tarOf(tb testing.TB, files ...file) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.link, Mode: f.mode, Size: int64(len(f.body)), ModTime: f.time}
		if f.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func zipOf(tb testing.TB, files ...file) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: f.time}
		mode, body := fs.FileMode(f.mode&0o777), f.body
		if f.mode&0o4000 != 0 {
			mode |= fs.ModeSetuid
		}
		if f.kind == tar.TypeSymlink {
			mode, body = mode|fs.ModeSymlink, f.link
		}
		if f.kind == tar.TypeChar {
			mode |= fs.ModeDevice | fs.ModeCharDevice
		}
		if f.mode != 0 || f.kind != 0 {
			h.SetMode(mode)
		}
		in, err := w.CreateHeader(h)
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(in, body); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// lying is a zip of one large file that says that it has another size.
func lying(tb testing.TB, size uint64) []byte {
	tb.Helper()
	var packed, out bytes.Buffer
	z, err := flate.NewWriter(&packed, flate.BestCompression)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := z.Write(make([]byte, 1<<20)); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	w := zip.NewWriter(&out)
	f, err := w.CreateRaw(&zip.FileHeader{Name: "bomb", Method: zip.Deflate, UncompressedSize64: size, CompressedSize64: uint64(packed.Len())})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := packed.WriteTo(f); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func gzipOf(tb testing.TB, raw []byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(raw); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// place returns an empty directory in one of its own, which has what an archive must not
// reach.
func place(tb testing.TB) (dir, secret string) {
	tb.Helper()
	above := tb.TempDir()
	dir, secret = filepath.Join(above, "files"), filepath.Join(above, "secret")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(secret, []byte("secret"), 0o600)); err != nil {
		tb.Fatal(err)
	}
	return dir, secret
}

func TestArchive(t *testing.T) {
	t.Parallel()
	files := []file{
		{name: "./", kind: tar.TypeDir, mode: 0o755, time: old},
		{name: "Dockerfile", body: "FROM scratch\n", mode: 0o644, time: old},
		{name: "src/", kind: tar.TypeDir, mode: 0o750, time: old},
		{name: "src/run.sh", body: "#!/bin/sh\n", mode: 0o4755, time: old},
		{name: "deep/er/file", body: "x", mode: 0o600, time: old},
		{name: "src/link", kind: tar.TypeSymlink, link: "/usr/bin/python3", mode: 0o777, time: old},
		{name: "src/within", kind: tar.TypeSymlink, link: "../deep", mode: 0o777, time: old},
		{name: "src/within/again", body: "through a link", mode: 0o644, time: old},
		{name: "Dockerfile", body: "FROM scratch AS later\n", mode: 0o640, time: old},
	}
	hard := append(slices.Clip(files), file{name: "hard", kind: tar.TypeLink, link: "src/run.sh"})
	for name, raw := range map[string][]byte{"tar": tarOf(t, hard...), "tar.gz": gzipOf(t, tarOf(t, hard...)), "zip": zipOf(t, files...)} {
		dir, _ := place(t)
		stats, err := Archive(bytes.NewReader(raw), dir, Default)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if stats.Files < len(files) || stats.Bytes == 0 {
			t.Errorf("%s: counted %+v", name, stats)
		}
		for file, want := range map[string]struct {
			body string
			mode fs.FileMode
		}{
			"Dockerfile": {"FROM scratch AS later\n", 0o640}, "src/run.sh": {"#!/bin/sh\n", 0o755 | fs.ModeSetuid},
			"deep/er/file": {"x", 0o600}, "deep/again": {"through a link", 0o644},
		} {
			st, err := os.Lstat(filepath.Join(dir, file))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if st.Mode() != want.mode || !st.ModTime().Equal(old) {
				t.Errorf("%s: %s has mode %v and time %v", name, file, st.Mode(), st.ModTime())
			}
			if body, _ := os.ReadFile(filepath.Join(dir, file)); string(body) != want.body {
				t.Errorf("%s: %s has %q", name, file, body)
			}
		}
		if to, _ := os.Readlink(filepath.Join(dir, "src/link")); to != "/usr/bin/python3" {
			t.Errorf("%s: the link leads to %q", name, to)
		}
		if st, err := os.Stat(filepath.Join(dir, "src")); err != nil || st.Mode().Perm() != 0o750 || !st.ModTime().Equal(old) {
			t.Errorf("%s: src is %v, %v", name, st, err)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "zip-*")); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// TestModesOfOtherSystems: a zip of a system without modes has files that everybody reads.
func TestModesOfOtherSystems(t *testing.T) {
	t.Parallel()
	dir, _ := place(t)
	if _, err := Archive(bytes.NewReader(zipOf(t, file{name: "a", body: "x"})), dir, Default); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, "a")); err != nil || st.Mode() != 0o644 {
		t.Errorf("got %v, %v", st, err)
	}
}

// TestHostile: nothing leaves the directory, and the sender hears why.
func TestHostile(t *testing.T) {
	t.Parallel()
	small := Limits{Archive: 1 << 20, Files: 20, Bytes: 1 << 16, Depth: 8}
	many := make([]file, small.Files+1)
	for i := range many {
		many[i] = file{name: fmt.Sprint("f", i)}
	}
	bomb := file{name: "bomb", body: strings.Repeat("\x00", 1<<17), mode: 0o644}
	truncated := tarOf(t, file{name: "a", body: strings.Repeat("x", 4096)})[:1024]
	encrypted := zipOf(t, file{name: "a", body: "x", mode: 0o644})
	encrypted[bytes.Index(encrypted, []byte("PK\x01\x02"))+8] |= 1
	for name, c := range map[string]struct {
		raw  []byte
		want string
		big  bool
	}{
		"slip":              {tarOf(t, file{name: "../secret", body: "x"}), "leads out", false},
		"slip in a zip":     {zipOf(t, file{name: "../secret", body: "x"}), "leads out", false},
		"slip later":        {tarOf(t, file{name: "a/../../secret", body: "x"}), "leads out", false},
		"dots":              {tarOf(t, file{name: "a/../b", body: "x"}), "..", false},
		"absolute":          {tarOf(t, file{name: "/etc/passwd", body: "x"}), "absolute", false},
		"absolute in a zip": {zipOf(t, file{name: "/etc/passwd", body: "x"}), "absolute", false},
		"through a link": {
			tarOf(t, file{name: "l", kind: tar.TypeSymlink, link: ".."}, file{name: "l/secret", body: "x"}),
			"leads out", false,
		},
		"through an absolute link": {
			zipOf(t, file{name: "l", kind: tar.TypeSymlink, link: "/tmp", mode: 0o777}, file{name: "l/x", body: "x"}),
			"leads out", false,
		},
		"hard link out":           {tarOf(t, file{name: "h", kind: tar.TypeLink, link: "../secret"}), "leads out", false},
		"hard link by link":       {tarOf(t, file{name: "l", kind: tar.TypeSymlink, link: ".."}, file{name: "h", kind: tar.TypeLink, link: "l/secret"}), "leads out", false},
		"hard link to none":       {tarOf(t, file{name: "h", kind: tar.TypeLink, link: "none"}), "did not come before", false},
		"device":                  {tarOf(t, file{name: "d", kind: tar.TypeChar}), "device", false},
		"device in a zip":         {zipOf(t, file{name: "d", kind: tar.TypeChar, mode: 0o666}), "device", false},
		"pipe":                    {tarOf(t, file{name: "d", kind: tar.TypeFifo}), "pipe", false},
		"too many":                {tarOf(t, many...), "more than 20 entries, and \"", true},
		"too many in a zip":       {zipOf(t, many...), "more than 20 entries", true},
		"bomb":                    {tarOf(t, bomb), "more than 65536 bytes, which is the limit, with entry \"" + bomb.name, true},
		"bomb in a zip":           {zipOf(t, bomb), "more than 65536 bytes", true},
		"bomb in a gzip":          {gzipOf(t, tarOf(t, bomb)), "more than 65536 bytes", true},
		"a bomb by its directory": {lying(t, 1<<40), "more than 65536 bytes", true},
		"a bomb by a lie":         {lying(t, 1), "broken", false},
		"an empty tar":            {tarOf(t), "the archive is empty", false},
		"deep":                    {tarOf(t, file{name: strings.Repeat("d/", 10) + "f"}), "below 10 directories", false},
		"a long path":             {tarOf(t, file{name: strings.Repeat("d", 5000)}), "bytes", false},
		"a file above":            {tarOf(t, file{name: "f"}, file{name: "f/g", body: "x"}), "a file is in its path", false},
		"over a directory":        {tarOf(t, file{name: "d/f"}, file{name: "d", body: "x"}), "replaces a directory", false},
		"an empty link":           {tarOf(t, file{name: "l", kind: tar.TypeSymlink}), "where the link leads", false},
		"encrypted":               {encrypted, "encrypted", false},
		"cut":                     {truncated, "broken in or after entry", false},
		"cut gzip":                {gzipOf(t, tarOf(t, bomb))[:60], "broken", false},
		"a broken zip":            {[]byte("PK\x03\x04 and no more"), "broken", false},
		"text":                    {[]byte("FROM scratch\n"), "neither a zip", false},
		"nothing":                 {nil, "neither a zip", false},
	} {
		dir, secret := place(t)
		_, err := Archive(bytes.NewReader(c.raw), dir, small)
		m, ok := errors.AsType[*MistakeError](err)
		if !ok || !strings.Contains(m.Text, c.want) || m.TooLarge != c.big {
			t.Errorf("%s: %v, want a mistake about %q (too large: %v)", name, err, c.want, c.big)
		}
		if body, _ := os.ReadFile(secret); string(body) != "secret" {
			t.Errorf("%s: it changed a file outside: %q", name, body)
		}
		if all, _ := os.ReadDir(filepath.Dir(dir)); len(all) != 2 {
			t.Errorf("%s: it left %v outside", name, all)
		}
	}
}

// TestTooLarge: an archive ends where the bound is, however long it goes on.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	dir, _ := place(t)
	for name, raw := range map[string][]byte{"tar": tarOf(t, file{name: "a", body: strings.Repeat("x", 1<<20)}), "zip": append([]byte("PK\x03\x04"), make([]byte, 1<<20)...)} {
		_, err := Archive(bytes.NewReader(raw), dir, Limits{Archive: 1 << 16, Files: 10, Bytes: 1 << 30, Depth: 8})
		if m, ok := errors.AsType[*MistakeError](err); !ok || !m.TooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyFiles: as many as a large node_modules has are unpacked, within some seconds.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it writes 100,000 files")
	}
	const n = 100_000
	files := make([]file, n)
	for i := range files {
		files[i] = file{name: fmt.Sprintf("node_modules/p%d/f%d.js", i/100, i), body: "x", mode: 0o644, time: old}
	}
	dir, _ := place(t)
	stats, err := Archive(bytes.NewReader(tarOf(t, files...)), dir, Default)
	if err != nil || stats.Files != n {
		t.Errorf("got %+v, %v", stats, err)
	}
}

func FuzzArchive(f *testing.F) {
	f.Add(tarOf(f, file{name: "a/b", body: "x", mode: 0o644}, file{name: "l", kind: tar.TypeSymlink, link: ".."}, file{name: "l/x", body: "y"}))
	f.Add(zipOf(f, file{name: "a/b", body: "x", mode: 0o644}, file{name: "l", kind: tar.TypeSymlink, link: "..", mode: 0o777}, file{name: "l/x", body: "y"}))
	f.Add(gzipOf(f, tarOf(f, file{name: "../a", body: "x"})))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir, secret := place(t)
		_, _ = Archive(bytes.NewReader(raw), dir, Limits{Archive: 1 << 20, Files: 50, Bytes: 1 << 20, Depth: 16})
		if body, _ := os.ReadFile(secret); string(body) != "secret" {
			t.Errorf("it changed a file outside: %q", body)
		}
		if all, _ := os.ReadDir(filepath.Dir(dir)); len(all) != 2 {
			t.Errorf("it left %v outside", all)
		}
	})
}
