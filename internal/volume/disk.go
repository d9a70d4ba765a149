package volume

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/sparse"
)

const (
	fileSystem = "ext4"
	// blockSize is the same for all sizes: a volume that is made small can grow
	// as far as any other.
	blockSize = 4096
	// mountFlags keep what a guest makes from meaning anything on the host.
	mountFlags = unix.MS_NOSUID | unix.MS_NODEV
	// mountOptions: space that a guest frees goes back to the host, and a volume
	// whose disk is broken or full takes no more writes.
	mountOptions = "discard,errors=remount-ro"

	// runTime bounds one run of a program, of which the check of a large and full
	// file system takes longest.
	runTime = 10 * time.Minute
	// repaired is what the check ends with that found something and repaired it.
	repaired = 1
)

// format makes an empty file system in a new file. Nothing of it is reserved for
// root, and what nobody writes takes no space on the host.
func format(ctx context.Context, name string, size doze.Megabytes) error {
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return err
	}
	if err := lengthen(name, size); err != nil {
		return err
	}
	if err := run(ctx, "mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(blockSize), "-m", "0",
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", name); err != nil {
		return fmt.Errorf("make a file system of %d MB: %w", size, err)
	}
	return nil
}

// run runs a program that changes a file system. Once begun it is not cut short.
func run(ctx context.Context, name string, args ...string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput() //nolint:gosec // G204: a program and a file of ours
	if errors.Is(err, exec.ErrNotFound) {
		return doze.Wrap(err, doze.Unsupported, "this host cannot have volumes: its operator has to install %s, which is in e2fsprogs", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// Where the superblock of a file system has its number of blocks.
const (
	superBlock  = 1024
	blocksLow   = 0x4
	blocksHigh  = 0x150
	superLength = 0x154
)

// grow brings a file system that nobody has mounted to the size of its file.
func grow(ctx context.Context, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	super := make([]byte, superLength)
	if _, err := file.ReadAt(super, superBlock); err != nil {
		return fmt.Errorf("read the superblock: %w", err)
	}
	blocks := int64(binary.LittleEndian.Uint32(super[blocksLow:])) | int64(binary.LittleEndian.Uint32(super[blocksHigh:]))<<32
	if blocks*blockSize >= info.Size() {
		return nil
	}
	// Neither loses anything if it is cut short: the next one begins again.
	if err := run(ctx, "e2fsck", "-f", "-p", file.Name()); err != nil {
		if at, ok := errors.AsType[*exec.ExitError](err); !ok || at.ExitCode() != repaired {
			return fmt.Errorf("check a volume that is to grow: %w", err)
		}
	}
	if err := run(ctx, "resize2fs", file.Name()); err != nil {
		return fmt.Errorf("grow a volume to %d MB: %w", info.Size()>>20, err)
	}
	return nil
}

// lengthen makes a file as long as size, unless it is longer.
func lengthen(name string, size doze.Megabytes) error {
	info, err := os.Stat(name)
	if err != nil || info.Size() >= size.Bytes() {
		return err
	}
	return os.Truncate(name, size.Bytes())
}

// clone makes a new file of a size with the content of another one: without
// copying a byte where the host's file system can, and without holes otherwise.
func clone(ctx context.Context, to, from string, size doze.Megabytes) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return unknown(err)
	}
	defer func() { _ = source.Close() }() // it was read
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if info.Size() > size.Bytes() {
		return doze.Errorf(doze.Invalid, "%d MB are less than the template has: make it at least %d", size, info.Size()>>20)
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if err := sparse.Clone(ctx, target, source); err != nil {
		return fmt.Errorf("copy a volume: %w", err)
	}
	return target.Truncate(size.Bytes())
}

// mounted reports whether something is mounted at a directory.
func mounted(at string) bool {
	var own, parent unix.Stat_t
	return unix.Lstat(at, &own) == nil && unix.Lstat(filepath.Dir(at), &parent) == nil && own.Dev != parent.Dev
}

// flush writes everything of the file system at a directory to the disk.
func flush(at string) error {
	dir, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}

// Calls of a file system, of linux/fs.h.
const (
	freezeCall = 0xc0045877 // FIFREEZE
	thawCall   = 0xc0045878 // FITHAW
)

// freeze writes everything of the file system at a directory to the disk, and lets those
// wait who write to it, until thaw.
func freeze(at string) error {
	if err := tell(at, freezeCall); err != nil {
		return fmt.Errorf("freeze a volume: %w", err)
	}
	return nil
}

// thaw is the opposite of freeze. One that is not frozen is no error.
func thaw(at string) error {
	if err := tell(at, thawCall); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw a volume: %w", err)
	}
	return nil
}

func tell(at string, call uint) error {
	dir, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetInt(int(dir.Fd()), call, 0), dir.Close())
}
