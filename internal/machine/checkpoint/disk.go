package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/sparse"
)

// A machine can have the layer above its root file system on disk, in a file that its
// engine writes to: its disk. A checkpoint has that file as it was when the machine stood
// still. Nobody writes to this one any more. So a machine that goes on, goes back or is
// forked gets a disk of its own, made of the checkpoint's. A file system that can share
// blocks between files copies none of them.

const (
	// FileDisk is the disk of a machine in its checkpoint.
	FileDisk = "disk.img"
	// fileLive is the disk that the engine of a machine writes to.
	fileLive = "disk.live"
)

// Disk is where the disk is that the engine of a machine writes to.
func Disk(c machine.Config) string { return filepath.Join(c.Dir, fileLive) }

// LayDisk makes the disk of a machine that is about to get an engine: empty, or that of its
// checkpoint. What an earlier engine wrote is gone. Preconditions: there is no such engine.
func LayDisk(ctx context.Context, c machine.Config, asleep bool) error {
	if err := cmp.Or(failpoint.Reach(failpoint.Lay, c.ID), DropDisk(c)); err != nil {
		return err
	}
	if err := layDisk(ctx, c, asleep); err != nil {
		return errors.Join(err, DropDisk(c)) // a part of it takes room for nothing
	}
	return nil
}

// layDisk is LayDisk where there is no disk. If it fails, it may leave a part of one.
func layDisk(ctx context.Context, c machine.Config, asleep bool) error {
	live, err := os.OpenFile(Disk(c), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make the disk: %w", err)
	}
	defer func() { _ = live.Close() }() // it need not last
	if err := failpoint.Reach(failpoint.Laid, c.ID); err != nil {
		return fmt.Errorf("make the disk: %w", err)
	}
	if !asleep {
		return nil
	}
	still, err := os.Open(filepath.Join(Dir(c), FileDisk))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: it has no disk", machine.ErrDamaged)
	}
	if err != nil {
		return fmt.Errorf("open the disk of the checkpoint: %w", err)
	}
	defer func() { _ = still.Close() }() // it was read
	sum, err := cloneDisk(ctx, live, still)
	if err != nil {
		return fmt.Errorf("make the disk out of the checkpoint: %w", err)
	}
	m, err := ReadManifest(Dir(c))
	if err != nil {
		return err
	}
	return m.disk().checkSum(sum) // a wake refuses a checkpoint that names none
}

// WriteDisk has the host write what it has in memory of a disk.
func WriteDisk(live string) error {
	if err := durable.Sync(live); err != nil {
		return fmt.Errorf("write the disk: %w", err)
	}
	return nil
}

// DropDisk removes the disk that the engine of a machine wrote to. Preconditions: that
// engine is gone.
func DropDisk(c machine.Config) error { return RemoveDisk(Disk(c)) }

// RemoveDisk is DropDisk, of a disk in a file.
func RemoveDisk(live string) error {
	if err := os.Remove(live); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the disk: %w", err)
	}
	return nil
}

// DiskBytes is how much of the host's disk the disk of a machine takes, whether or not it
// shares blocks with others. It is that of the checkpoint if the machine has no engine.
func DiskBytes(c machine.Config) int64 {
	for _, name := range []string{Disk(c), filepath.Join(Dir(c), FileDisk)} {
		if bytes, ok := Allocated(name); ok {
			return bytes
		}
	}
	return 0
}

// Allocated is how much of the host's disk a file takes, in bytes, if it is there.
func Allocated(name string) (bytes int64, ok bool) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, false
	}
	return allocated(info), true
}

// DiskCopy is the copy of a disk that a checkpoint gets.
type DiskCopy struct {
	id          string // of the machine
	live, still *os.File
}

// NewDiskCopy begins a copy of the disk of a machine, which is in a file, in the directory of
// a checkpoint that is being made.
func NewDiskCopy(id, live, dir string) (*DiskCopy, error) {
	from, err := os.Open(live)
	if err != nil {
		return nil, fmt.Errorf("open the disk: %w", err)
	}
	to, err := os.OpenFile(filepath.Join(dir, FileDisk), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the copy of the disk: %w", err), from.Close())
	}
	return &DiskCopy{id, from, to}, nil
}

// Take takes the copy of a disk that nobody writes to, and returns what the manifest says of
// it. It ends early when ctx does.
func (d *DiskCopy) Take(ctx context.Context) (_ File, err error) {
	defer func() { err = errors.Join(err, d.live.Close(), d.still.Close()) }()
	if err := failpoint.Reach(failpoint.Clone, d.id); err != nil {
		return File{}, fmt.Errorf("copy the disk: %w", err)
	}
	info, err := d.live.Stat()
	if err != nil {
		return File{}, fmt.Errorf("look at the disk: %w", err)
	}
	// A file system that shares blocks writes them first, and lets nobody write meanwhile. Here,
	// a guest that is needed can go on.
	if sparse.Shares(d.still, d.live) {
		if err := unix.Fdatasync(int(d.live.Fd())); err != nil {
			return File{}, fmt.Errorf("write the disk: %w", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return File{}, context.Cause(ctx)
	}
	sum, err := cloneDisk(ctx, d.still, d.live)
	if err != nil {
		return File{}, fmt.Errorf("copy the disk: %w", err)
	}
	return File{Name: FileDisk, Bytes: info.Size(), Sum: sum}, nil
}

// verifyDisk compares the disk in dir with what the manifest says of it: its size, and its
// checksum if it has one.
func verifyDisk(ctx context.Context, dir string, want File) error {
	f, err := os.Open(filepath.Join(dir, FileDisk))
	if err != nil {
		return unreadable(FileDisk, err)
	}
	defer func() { _ = f.Close() }() // it was read
	info, err := f.Stat()
	if err != nil {
		return unreadable(FileDisk, err)
	}
	if info.Size() != want.Bytes {
		return fmt.Errorf("%w: %s has %d bytes and should have %d", machine.ErrDamaged, FileDisk, info.Size(), want.Bytes)
	}
	if want.Sum == nil {
		return nil
	}
	sum, err := copySummed(ctx, nil, f, info.Size())
	if err != nil {
		return unreadable(FileDisk, err)
	}
	return want.checkSum(&sum)
}
