package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"doze/internal/durable"
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
