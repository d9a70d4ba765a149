package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/dozehq/doze/internal/machine"
)

// asleep returns a machine with a disk, and what its checkpoint has of that.
func asleep(t *testing.T) (machine.Config, []byte) {
	t.Helper()
	c := machine.Config{ID: "a", Dir: t.TempDir(), Disk: 1 << 20}
	if err := LayDisk(t.Context(), c, false); err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("disk"), 5000)
	if err := errors.Join(os.WriteFile(Disk(c), content, 0o600), os.Mkdir(Dir(c), 0o700)); err != nil {
		t.Fatal(err)
	}
	d, err := NewDiskCopy(c.ID, Disk(c), Dir(c))
	if err != nil {
		t.Fatal(err)
	}
	about, err := d.Take(t.Context())
	if err != nil || about.Name != FileDisk || about.Bytes != int64(len(content)) || about.Chunks != nil {
		t.Fatalf("the copy of a disk is %+v, %v", about, err)
	}
	return c, content
}

func TestDisk(t *testing.T) {
	t.Parallel()
	c, content := asleep(t)
	for range 2 { // what an engine wrote since is gone
		if err := os.WriteFile(Disk(c), []byte("later"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := LayDisk(t.Context(), c, true); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(Disk(c)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("the disk has %.20q, %v", got, err)
		}
	}
	if got := DiskBytes(c); got < int64(len(content)) {
		t.Errorf("it takes %d bytes", got)
	}
	if err := errors.Join(DropDisk(c), DropDisk(c)); err != nil {
		t.Error(err)
	}
	if got := DiskBytes(c); got < int64(len(content)) {
		t.Errorf("asleep it takes %d bytes", got)
	}
	if err := os.Remove(filepath.Join(Dir(c), FileDisk)); err != nil {
		t.Fatal(err)
	}
	if err := LayDisk(t.Context(), c, true); !errors.Is(err, machine.ErrDamaged) {
		t.Errorf("a checkpoint without its disk: %v", err)
	}
}

func TestDiskCopyStops(t *testing.T) {
	t.Parallel()
	c, _ := asleep(t)
	d, err := NewDiskCopy(c.ID, Disk(c), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := d.Take(ctx); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

func TestVerifyDisk(t *testing.T) {
	t.Parallel()
	c, content := asleep(t)
	about := File{Name: FileDisk, Bytes: int64(len(content))}
	m := Manifest{Format: FormatLayers, Files: []File{about}}
	if err := verifyDisk(Dir(c), about); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(filepath.Join(Dir(c), FileDisk), 7); err != nil {
		t.Fatal(err)
	}
	if err := Verify(t.Context(), Dir(c), m); !errors.Is(err, machine.ErrDamaged) {
		t.Errorf("a disk that was cut: %v", err)
	}
}

// TestManifestDisk: a machine with a disk goes on from a checkpoint with one, and no other.
func TestManifestDisk(t *testing.T) {
	t.Parallel()
	plain := sound()
	plain.Format = FormatLayers
	plain.Files = append(plain.Files, File{Name: FileIndex}, File{Name: LayerName(1)})
	with := plain
	with.Files = append(slices.Clip(plain.Files), File{Name: FileDisk, Bytes: 1})
	c := machine.Config{ID: "a", Root: "root.erofs", Agent: "agent.erofs"}
	disk := c
	disk.Disk = 1
	for name, tc := range map[string]struct {
		m    Manifest
		c    machine.Config
		want error
	}{
		"both":        {with, disk, nil},
		"neither":     {plain, c, nil},
		"the machine": {plain, disk, machine.ErrDamaged},
		"the other":   {with, c, machine.ErrDamaged},
	} {
		if _, err := parse(seal(t, tc.m), tc.c); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
