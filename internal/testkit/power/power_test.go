package power_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/testkit/power"
)

// TestCut says what tests that cut the power stand on: what was synced is there
// afterwards, and what was not is gone, content and name.
func TestCut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: mounts need root")
	}
	t.Parallel()
	for kind, size := range map[string]int64{power.Ext4: 64 << 20, power.XFS: 512 << 20} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("mkfs." + kind); err != nil {
				t.Skip("SKIPPED: there is no mkfs." + kind + " on this host")
			}
			cut(t, kind, size)
		})
	}
}

func cut(t *testing.T, kind string, size int64) {
	t.Helper()
	d, err := power.New(t.Context(), t.TempDir(), kind, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	content := bytes.Repeat([]byte("content"), 100_000)
	write := func(name string, sync ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(d.Dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, s := range sync {
			if err := durable.Sync(filepath.Join(d.Dir, s)); err != nil {
				t.Fatal(err)
			}
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(d.Dir, from), filepath.Join(d.Dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // a disk may lose its power more than once
		// The kernel writes the content of a file that replaces another by itself.
		if err := errors.Join(os.RemoveAll(filepath.Join(d.Dir, "nameless")), os.RemoveAll(filepath.Join(d.Dir, "renamed")), durable.Sync(d.Dir)); err != nil {
			t.Fatal(err)
		}
		write("synced", "synced", ".")
		write("renamed.new", "renamed.new", ".")
		rename("renamed.new", "renamed")
		write("nameless") // the next sync is about its name, not about its content
		if err := durable.Sync(d.Dir); err != nil {
			t.Fatal(err)
		}
		rename("renamed", "moved")
		write("lost")
		if err := d.Cut(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Dir, "late"), content, 0o600); err == nil {
			if err := durable.Sync(filepath.Join(d.Dir, "late")); err == nil {
				t.Error("a file can be synced without power")
			}
		}
		if err := d.On(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"synced", "renamed"} {
			if got, err := os.ReadFile(filepath.Join(d.Dir, name)); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s has %d bytes, %v", name, len(got), err)
			}
		}
		if got, err := os.ReadFile(filepath.Join(d.Dir, "nameless")); err != nil || bytes.Equal(got, content) {
			t.Errorf("content that was not synced is there: %d bytes, %v", len(got), err)
		}
		for _, name := range []string{"lost", "moved", "late"} {
			if _, err := os.Stat(filepath.Join(d.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is there: %v", name, err)
			}
		}
	}
}

// TestCutForgets writes past the file system above, so that the device has it: the
// cache of a disk forgets too.
func TestCutForgets(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: mounts need root")
	}
	t.Parallel()
	d, err := power.New(t.Context(), t.TempDir(), power.Ext4, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	name := filepath.Join(d.Dir, "file")
	old := bytes.Repeat([]byte("old."), 1<<18)
	if err := errors.Join(os.WriteFile(name, old, 0o600), durable.Sync(name), durable.Sync(d.Dir)); err != nil {
		t.Fatal(err)
	}
	block, err := unix.Mmap(-1, 0, len(old), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // as aligned as a disk wants it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(block) }()
	copy(block, bytes.Repeat([]byte("new."), 1<<18))
	f, err := os.OpenFile(name, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(block); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Cut(), f.Close(), d.On(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the disk kept what nobody flushed: %.8q…, %v", got, err)
	}
}
