package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze/internal/durable"
)

func TestSync(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("content"), 0o400); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, dir} {
		if err := durable.Sync(name); err != nil {
			t.Error(err)
		}
	}
	if err := durable.Sync(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestReplace: the file is the new one with its mode, or, if there is no room for
// the new one, the old one.
func TestReplace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	for _, text := range []string{"old, and longer", "new"} {
		if err := durable.Replace(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(file)
		if err != nil || string(raw) != text {
			t.Errorf("%q, %v; want %q", raw, err, text)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := os.Stat(file + durable.NewSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it leaves the file that it wrote: %v", err)
	}
	if err := os.Symlink("/dev/full", file+durable.NewSuffix); err != nil {
		t.Fatal(err)
	}
	if err := durable.Replace(file, []byte("newer"), 0o600); err == nil {
		t.Error("it wrote to a full disk")
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "new" {
		t.Errorf("after a failure: %q, %v", raw, err)
	}
}
