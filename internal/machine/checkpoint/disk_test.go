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
	if err := (Manifest{Format: FormatLayers, Files: []File{about}}).Write(Dir(c)); err != nil {
		t.Fatal(err)
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

// TestLayDiskStops: a part of a disk takes no room.
func TestLayDiskStops(t *testing.T) {
	t.Parallel()
	c, _ := asleep(t)
	if shares(t, c) {
		t.Skip("SKIPPED: this file system copies nothing")
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := LayDisk(ctx, c, true); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
	if _, err := os.Stat(Disk(c)); !errors.Is(err, os.ErrNotExist) {
		t.Error("there is a part of a disk:", err)
	}
}

// shares reports whether the file system of a machine shares blocks.
func shares(t *testing.T, c machine.Config) bool {
	t.Helper()
	m, err := ReadManifest(Dir(c))
	if err != nil {
		t.Fatal(err)
	}
	return m.disk().Sum == nil
}

// TestDiskRots: a bit of a disk changes on the host. Nobody touched the file.
func TestDiskRots(t *testing.T) {
	t.Parallel()
	c, content := asleep(t)
	if shares(t, c) {
		t.Skip("SKIPPED: nobody reads a disk on this file system")
	}
	m, err := ReadManifest(Dir(c))
	if err = errors.Join(err, LayDisk(t.Context(), c, true), Verify(t.Context(), Dir(c), m)); err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 4
	if err := os.WriteFile(filepath.Join(Dir(c), FileDisk), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := LayDisk(t.Context(), c, true); !errors.Is(err, machine.ErrDamaged) {
		t.Errorf("a wake: %v", err)
	}
	if err := Verify(t.Context(), Dir(c), m); !errors.Is(err, machine.ErrDamaged) {
		t.Errorf("a wake from a checkpoint that nobody vouches for: %v", err)
	}
}

// TestCopySummed copies disks with holes. The sum tells them apart, and says nothing of what
// is a hole. The copy has no page of zeros.
func TestCopySummed(t *testing.T) {
	t.Parallel()
	const size = 5*SumChunk + 100
	data := func(at ...int) map[int][]byte {
		all := map[int][]byte{}
		for _, at := range at {
			all[at] = bytes.Repeat([]byte{7}, 3000)
		}
		return all
	}
	copied := func(what map[int][]byte, filled bool) (sum uint32) {
		t.Helper()
		dir, want := t.TempDir(), make([]byte, size)
		from, err := os.Create(filepath.Join(dir, "from"))
		to, err2 := os.Create(filepath.Join(dir, "to"))
		if err := errors.Join(err, err2, from.Truncate(size)); err != nil {
			t.Fatal(err)
		}
		if filled { // with zeros
			if _, err := from.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
		}
		for at, raw := range what {
			copy(want[at:], raw)
			if _, err := from.WriteAt(raw, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		sum, err = copySummed(t.Context(), to, from, size)
		if err := errors.Join(err, to.Truncate(size)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(to.Name())
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("the copy of %d differs, %v", len(what), err)
		}
		info, err := to.Stat()
		if err != nil || allocated(info) > int64(len(what))*2*diskPage+64<<10 {
			t.Errorf("the copy of %d takes %d bytes, %v", len(what), allocated(info), err)
		}
		again, err := copySummed(t.Context(), nil, to, size)
		if err != nil || again != sum {
			t.Errorf("the copy of %d has the sum %#x and not %#x, %v", len(what), again, sum, err)
		}
		return sum
	}
	seen := map[uint32]string{}
	for name, what := range map[string]map[int][]byte{
		"none": data(), "first": data(0), "second": data(SumChunk + 4096), "later in it": data(SumChunk + 8192), "third": data(2*SumChunk + 4096),
		"both": data(SumChunk+4096, 2*SumChunk+4096), "over a border": data(3*SumChunk - 1000), "last": {size - 1: {1}},
	} {
		sum := copied(what, false)
		if other, ok := seen[sum]; ok {
			t.Errorf("%s has the sum of %s", name, other)
		}
		seen[sum] = name
		if full := copied(what, true); full != sum {
			t.Errorf("%s has the sum %#x, and %#x without holes", name, sum, full)
		}
	}
}

func TestVerifyDisk(t *testing.T) {
	t.Parallel()
	c, content := asleep(t)
	about := File{Name: FileDisk, Bytes: int64(len(content))}
	m := Manifest{Format: FormatLayers, Files: []File{about}}
	if err := verifyDisk(t.Context(), Dir(c), about); err != nil {
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
