package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/archive"
)

// layer packs members, and the directories as they are given.
func layer(t *testing.T, members ...tar.Header) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range members {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = "content of " + h.Name
			h.Size = int64(len(content))
		}
		h.Uid, h.Gid = h.Uid+os.Geteuid(), h.Gid+os.Getegid()
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: owners and devices need root")
	}
	root := t.TempDir()
	for _, dir := range []string{"keep/below", "opaque/below", "gone/below", "was-dir", "var/lib/doze"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"keep/below/old", "opaque/below/old", "gone/below/old", "was-file", "changed", "deleted", "var/lib/doze/mine"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("image"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mtime := time.Unix(1_000_000_000, 0)
	err := archive.Unpack(t.Context(), root, layer(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755, ModTime: mtime},
		tar.Header{Typeflag: tar.TypeDir, Name: "./keep/", Mode: 0o711, Uid: 5, ModTime: mtime},
		tar.Header{Typeflag: tar.TypeReg, Name: "./keep/new", Mode: 0o4750, Uid: 1000, Gid: 100, ModTime: mtime},
		tar.Header{Typeflag: tar.TypeLink, Name: "./keep/link", Linkname: "./keep/new"},
		tar.Header{Typeflag: tar.TypeDir, Name: "./opaque/", Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}},
		tar.Header{Typeflag: tar.TypeReg, Name: "./opaque/new", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeChar, Name: "./gone", Mode: 0o600},
		tar.Header{Typeflag: tar.TypeLink, Name: "./deleted", Linkname: "./gone"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./was-dir", Mode: 0o600},
		tar.Header{Typeflag: tar.TypeDir, Name: "./was-file/", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "./changed", Linkname: "../nowhere", Uid: 7},
		tar.Header{Typeflag: tar.TypeFifo, Name: "./fifo", Mode: 0o640},
		tar.Header{Typeflag: tar.TypeChar, Name: "./null", Mode: 0o666, Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeChar, Name: "./var/lib/doze/mine", Mode: 0o600},
	))
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Mode     fs.FileMode
		UID, GID uint32
		Text     string
	}
	got := map[string]entry{}
	err = filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		rel, _ := filepath.Rel(root, name)
		text := ""
		switch {
		case info.Mode().IsRegular():
			raw, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text = string(raw)
		case info.Mode()&fs.ModeSymlink != 0:
			text, _ = os.Readlink(name)
		}
		got[rel] = entry{info.Mode(), st.Uid, st.Gid, text}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	setuid := entry{0o750 | fs.ModeSetuid, 1000, 100, "content of ./keep/new"}
	want := map[string]entry{
		".":    {fs.ModeDir | 0o755, 0, 0, ""},
		"keep": {fs.ModeDir | 0o711, 5, 0, ""}, "keep/below": {fs.ModeDir | 0o755, 0, 0, ""}, "keep/below/old": {0o644, 0, 0, "image"},
		"keep/new": setuid, "keep/link": setuid,
		"opaque": {fs.ModeDir | 0o755, 0, 0, ""}, "opaque/new": {0o644, 0, 0, "content of ./opaque/new"},
		"was-dir": {0o600, 0, 0, "content of ./was-dir"}, "was-file": {fs.ModeDir | 0o700, 0, 0, ""},
		"changed": {fs.ModeSymlink | 0o777, 7, 0, "../nowhere"}, "fifo": {fs.ModeNamedPipe | 0o640, 0, 0, ""},
		"null": {fs.ModeDevice | fs.ModeCharDevice | 0o666, 0, 0, ""},
		"var":  {fs.ModeDir | 0o755, 0, 0, ""}, "var/lib": {fs.ModeDir | 0o755, 0, 0, ""}, "var/lib/doze": {fs.ModeDir | 0o755, 0, 0, ""},
		"var/lib/doze/mine": {0o644, 0, 0, "image"}, // it is the agent's
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, name := range []string{"keep", "keep/new"} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || !info.ModTime().Equal(mtime) {
			t.Errorf("%s is of %v, %v", name, info.ModTime(), err)
		}
	}
	mounted := filepath.Join(root, "mounted")
	if err := errors.Join(os.Mkdir(mounted, 0o700), syscall.Mount("tmpfs", mounted, "tmpfs", 0, "mode=1777")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(mounted, 0); err != nil {
			t.Error(err)
		}
	}()
	err = archive.Unpack(t.Context(), root, layer(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./mounted/", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeReg, Name: "./mounted/file", Mode: 0o600},
	))
	if names, err2 := os.ReadDir(mounted); err != nil || err2 != nil || len(names) != 0 {
		t.Errorf("another file system has %v, %v, %v", names, err, err2)
	}
	if info, err := os.Stat(mounted); err != nil || info.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("its root is %v, %v", info.Mode(), err)
	}
	if device, err := os.Stat(filepath.Join(root, "null")); err != nil || device.Sys().(*syscall.Stat_t).Rdev != 1<<8|3 {
		t.Errorf("the device is %+v, %v", device.Sys(), err)
	}
}

// TestUnpackLinksToWhatIsLeftOut: a deleted file can be a link to one that is left out,
// since the engine has one node for all of them.
func TestUnpackLinksToWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: owners and devices need root")
	}
	root := t.TempDir()
	for _, dir := range []string{"etc/doze", "srv"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "srv/deleted"), []byte("image"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := archive.Unpack(t.Context(), root, layer(t,
		tar.Header{Typeflag: tar.TypeChar, Name: "./etc/doze/bundle.new"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./etc/doze/bundle", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeLink, Name: "./srv/deleted", Linkname: "./etc/doze/bundle.new"},
		tar.Header{Typeflag: tar.TypeLink, Name: "./srv/bundle", Linkname: "./etc/doze/bundle"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./srv/last", Mode: 0o644},
	))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(root, "srv"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "last" {
		t.Errorf("there is %v, %v", entries, err)
	}
}

func TestUnpackStaysInside(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	err := archive.Unpack(t.Context(), filepath.Join(root, "in"), layer(t, tar.Header{Typeflag: tar.TypeReg, Name: "../../out", Mode: 0o600}))
	if err == nil {
		t.Error("it unpacked into a root that is not there")
	}
	if names, err := os.ReadDir(root); err != nil || len(names) != 0 {
		t.Errorf("outside there is %v, %v", names, err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	whole, err := io.ReadAll(layer(t, tar.Header{Typeflag: tar.TypeReg, Name: "./a", Mode: 0o600}))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cut bool // the caller went away
		r   io.Reader
	}{
		"no tar":                {false, bytes.NewReader(bytes.Repeat([]byte("nonsense"), 100))},
		"half a tar":            {false, bytes.NewReader(whole[:520])},
		"cut off":               {true, bytes.NewReader(whole)},
		"an unknown type":       {false, layer(t, tar.Header{Typeflag: tar.TypeCont, Name: "./a", Mode: 0o600})},
		"a root that is a file": {false, layer(t, tar.Header{Typeflag: tar.TypeReg, Name: ".", Mode: 0o600})},
		"a link to nothing":     {false, layer(t, tar.Header{Typeflag: tar.TypeLink, Name: "./a", Linkname: "./b"})},
	} {
		ctx := t.Context()
		if tt.cut {
			ctx = cut
		}
		err := archive.Unpack(ctx, t.TempDir(), tt.r)
		if e := (*doze.Error)(nil); !errors.As(err, &e) || e.Message == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte("nonsense"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		root := t.TempDir()
		_ = archive.Unpack(t.Context(), filepath.Join(root, "in"), bytes.NewReader(raw)) // there is no such root: nothing may appear
		if names, err := os.ReadDir(root); err != nil || len(names) != 0 {
			t.Errorf("outside there is %v, %v", names, err)
		}
	})
}
