package subtree_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/dozehq/doze/internal/agent/subtree"
)

// write makes files, with their directories.
func write(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func gone(name string) bool {
	_, err := os.Lstat(name)
	return errors.Is(err, fs.ErrNotExist)
}

// TestRemove: a tree goes, however large, and what its links lead to stays.
func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir+"/tree/a/b/c/file", dir+"/outside/file")
	for i := range 3000 { // more than are read in one go
		write(t, fmt.Sprintf("%s/tree/many/%d", dir, i))
	}
	for link, target := range map[string]string{"up": "../outside", "loop": ".", "proc": "/proc/self/root"} {
		if err := os.Symlink(target, dir+"/tree/"+link); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"/tree", "/tree", "/none/below"} {
		if err := subtree.Remove(t.Context(), dir+name); err != nil || !gone(dir+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if gone(dir + "/outside/file") {
		t.Error("the target of a link is gone")
	}
}

// TestRemoveLink: a link goes and nothing else.
func TestRemoveLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir+"/target/file")
	if err := os.Symlink("target", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := subtree.Remove(t.Context(), dir+"/link"); err != nil || !gone(dir+"/link") || gone(dir+"/target/file") {
		t.Errorf("%v", err)
	}
}

// TestRemoveStaysInItsFileSystem: what is mounted in a tree keeps what it has,
// and so does the kernel.
func TestRemoveStaysInItsFileSystem(t *testing.T) {
	t.Parallel()
	if err := subtree.Remove(t.Context(), "/proc/self/root"); !errors.Is(err, syscall.EPERM) {
		t.Errorf("a link of the kernel: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounts need root")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := dir + "/tree/other drive"
	write(t, dir+"/tree/file", at+"/hidden")
	if err := syscall.Mount("none", at, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("SKIPPED: nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	write(t, at+"/kept", at+"/inside/gone")
	for _, name := range []string{dir, dir + "/tree", at} {
		if got, err := subtree.Mounts(name); err != nil || !slices.Equal(got, []string{at}) {
			t.Errorf("mounts in %s: %q, %v", name, got, err)
		}
	}
	if got, err := subtree.Mounts(dir + "/tr"); err != nil || len(got) > 0 {
		t.Errorf("mounts elsewhere: %q, %v", got, err)
	}
	for _, name := range []string{at, dir + "/tree"} {
		if err := subtree.Remove(t.Context(), name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if gone(at+"/kept") || !gone(dir+"/tree/file") {
		t.Error("the mount was emptied, or what is beside it was not")
	}
	if err := subtree.Remove(t.Context(), at+"/inside"); err != nil || !gone(at+"/inside") {
		t.Errorf("a directory on the mount: %v", err)
	}
}
