package host

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/disk"
)

func TestBuildSizes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		builds       Builds
		all          int64 // bytes for all sandboxes
		memory, disk doze.Megabytes
	}{
		"a large host":     {Builds{}, 64 << 30, 4096, 3072},
		"a small host":     {Builds{}, 4 << 30, 2048, 1536},
		"a very small one": {Builds{}, 600 << 20, 512, 384},
		"chosen":           {Builds{MemoryMB: 8192, DiskMB: 2000}, 4 << 30, 8192, 2000},
		"a disk too large": {Builds{DiskMB: 9000}, 4 << 30, 2048, 2048},
	} {
		memory := c.builds.memory(c.all)
		if got := c.builds.disk(memory); memory != c.memory || got != c.disk {
			t.Errorf("%s: %d MB of memory and %d MB of disk, want %d and %d", name, memory, got, c.memory, c.disk)
		}
	}
}

// TestBuilderFile: the root file system of builders is made once for each program, and has
// it.
func TestBuilderFile(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		t.Skip("SKIPPED: there is no mkfs.erofs")
	}
	dir := t.TempDir()
	agents, err := disk.Open(filepath.Join(dir, "agents"), disk.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer agents.Close()
	h := &Host{o: Options{Builds: Builds{Program: filepath.Join(dir, BuilderProgram)}}, agents: agents, rooting: make(chan struct{}, 1)}
	if _, err := h.builderFile(t.Context()); doze.Public(err).Kind != doze.Unsupported {
		t.Errorf("without the program it is %v", err)
	}
	made := func(text string, at time.Time) string {
		t.Helper()
		if err := os.WriteFile(h.o.Builds.Program, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(h.o.Builds.Program, at, at); err != nil {
			t.Fatal(err)
		}
		file, err := h.builderFile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	first := made("one", time.Unix(1000, 0))
	if again := made("one", time.Unix(1000, 0)); again != first {
		t.Errorf("it is made again, as %s and %s", first, again)
	}
	second := made("two", time.Unix(2000, 0))
	if second == first {
		t.Error("a new program has the root file system of the one before")
	}
	if back := made("one", time.Unix(3000, 0)); back != first {
		t.Errorf("the first program is made again, as %s", back)
	}
}

// TestBuilderFiles: what a builder needs is in its root file system.
func TestBuilderFiles(t *testing.T) {
	t.Parallel()
	archive, err := builderFiles([]byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	modes, text := map[string]int64{}, map[string]string{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		modes[h.Name], text[h.Name] = h.Mode, string(raw)
	}
	for name, mode := range map[string]int64{BuilderProgram: 0o755, "tmp/": 0o1777, "proc/": 0o755, "etc/passwd": 0o644} {
		if modes[name] != mode {
			t.Errorf("%s has the mode %o, want %o", name, modes[name], mode)
		}
	}
	if text[BuilderProgram] != "program" {
		t.Errorf("the program is %q", text[BuilderProgram])
	}
}
