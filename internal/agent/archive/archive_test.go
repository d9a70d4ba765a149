package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/archive"
)

func do(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

// roots makes an image and a root that began as it.
func roots(t *testing.T) (root, image string) {
	t.Helper()
	root, image = t.TempDir(), t.TempDir()
	old := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, dir := range []string{image, root} {
		do(t,
			os.MkdirAll(dir+"/etc/deep", 0o755), os.MkdirAll(dir+"/gone/below", 0o755), os.MkdirAll(dir+"/proc", 0o755),
			os.WriteFile(dir+"/etc/same", []byte("same"), 0o644), os.WriteFile(dir+"/etc/edited", []byte("old"), 0o644),
			os.WriteFile(dir+"/etc/mode", nil, 0o644), os.WriteFile(dir+"/etc/deleted", nil, 0o644), os.WriteFile(dir+"/etc/turned", nil, 0o644),
			os.WriteFile(dir+"/gone/below/f", nil, 0o644), os.Symlink("same", dir+"/etc/link"), os.Symlink("same", dir+"/etc/moved"),
		)
		for _, f := range []string{"same", "edited", "mode", "deleted", "turned"} {
			do(t, os.Chtimes(dir+"/etc/"+f, old, old))
		}
	}
	do(t,
		os.WriteFile(root+"/etc/edited", []byte("new"), 0o644), os.Chmod(root+"/etc/mode", 0o600), os.Remove(root+"/etc/deleted"),
		os.RemoveAll(root+"/gone"), os.Remove(root+"/etc/moved"), os.Symlink("edited", root+"/etc/moved"),
		os.Remove(root+"/etc/turned"), os.Mkdir(root+"/etc/turned", 0o755), os.WriteFile(root+"/etc/turned/in", []byte("x"), 0o644),
		os.MkdirAll(root+"/new/deep", 0o750), os.WriteFile(root+"/new/deep/f", bytes.Repeat([]byte("x"), 1000), 0o640),
		os.Link(root+"/new/deep/f", root+"/new/linked"), syscall.Mkfifo(root+"/new/pipe", 0o600),
		os.WriteFile(root+"/proc/self", nil, 0o644), os.MkdirAll(root+"/cache/x", 0o755), os.MkdirAll(root+"/var/log/doze", 0o755),
		os.WriteFile(root+"/new/"+strings.Repeat("ä", 120), nil, 0o644), // longer than a plain header takes
	)
	return root, image
}

func TestPack(t *testing.T) {
	t.Parallel()
	root, image := roots(t)
	changes, err := archive.Scan(t.Context(), root, image, []string{"/cache"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, fmt.Sprintf("%s %s %d", c.Kind, c.Path, c.Size))
	}
	long := "new/" + strings.Repeat("ä", 120)
	want := []string{
		"deleted etc/deleted 0", "modified etc/edited 3", "modified etc/mode 0", "modified etc/moved 0", "modified etc/turned 0", "added etc/turned/in 1",
		"deleted gone 0", "added new 0", "added new/deep 0", "added new/deep/f 1000", "added new/linked 1000", "added new/pipe 0", "added " + long + " 0",
		"added var 0", "added var/log 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	p, err := archive.New(root, changes, []string{"/cache"}, []byte("[]"), "v1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := p.Manifest
	if m.Added != 9 || m.Modified != 4 || strings.Join(m.Deleted, " ") != "etc/deleted gone" || m.PayloadBytes != 1004 || !m.Processes || m.Version != 1 {
		t.Errorf("manifest %+v", m)
	}
	var b bytes.Buffer
	if err := p.Write(t.Context(), &b); err != nil || int64(b.Len()) != p.Size {
		t.Errorf("%d bytes, want %d, %v", b.Len(), p.Size, err)
	}
	members := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, _ := io.ReadAll(r)
		members[h.Name] = fmt.Sprintf("%c %o %s %d", h.Typeflag, h.Mode, h.Linkname, len(content))
	}
	for name, want := range map[string]string{
		".doze-archive/processes.json": "0 600  2", "etc/edited": "0 644  3", "etc/mode": "0 600  0", "etc/moved": "2 777 edited 0", "etc/turned/": "5 755  0",
		"new/deep/": "5 750  0", "new/deep/f": "0 640  1000", "new/linked": "1 640 new/deep/f 0", "new/pipe": "6 600  0", long: "0 644  0",
	} {
		if members[name] != want {
			t.Errorf("%s: %q, want %q", name, members[name], want)
		}
	}
	if len(members) != 15 {
		t.Errorf("%d members: %v", len(members), members)
	}

	// A file that shrinks under the writer must not make a pack that looks whole.
	do(t, os.Truncate(filepath.Join(root, "new/deep/f"), 10))
	if err := p.Write(t.Context(), io.Discard); err == nil {
		t.Error("a change went unnoticed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := archive.Scan(ctx, root, image, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after the caller left: %v", err)
	}
	if _, err := archive.Scan(t.Context(), root, image+"/none", nil); err == nil {
		t.Error("no image is no error")
	}
}

// FuzzTarget checks that no address gets into an error.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{`{"url":"http://h/secret"}`, `{"url":"secret"}`, `{"multipart":{"partSize":1,"partUrls":["http://h"],"completeUrl":"::secret"}}`, `{"multipart":{}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var target archive.Target
		if json.Unmarshal(b, &target) != nil {
			return
		}
		var p doze.Problems
		if target.Check(&p); strings.Contains(strings.Join(p, ";"), "secret") {
			t.Errorf("%v", p)
		}
	})
}
