// Package power is a disk for tests that cut its power. After a cut the disk has
// what was synced, and no more than chance of the rest.
//
// The disk is three file systems on top of each other. The lowest, in memory, stands
// for the platters. The page cache of the middle one stands for the disk's own cache,
// which forgets. The highest, in a file of the middle one, is for the test. A sync in
// the highest reaches the middle one as a flush of its block device, and then the
// platters. A cut shuts the middle one down with all that it holds in its page cache
// and in its journal. Neither device-mapper nor FUSE is needed.
package power

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// overhead is what a file system takes for itself, on top of a file of a few
	// GB in it. It must never be full: a disk does not run out of sectors.
	overhead = 128 << 20
	// patience is for the end of processes that have a mount for a moment, since
	// they were started meanwhile.
	patience = 20 * time.Second
	poll     = 10 * time.Millisecond
	// goingDown is EXT4_IOC_SHUTDOWN, and noFlush its flag to write nothing more,
	// not even the journal.
	goingDown, noFlush = 0x8004587d, 2
)

// Disk is a file system whose power can be cut.
type Disk struct {
	Dir string // where it is mounted

	kind            string // of the file system
	platters, cache string // where the file systems below are mounted
}

// Kinds of file systems.
const (
	Ext4 = "ext4"
	XFS  = "xfs" // whose files can share blocks
)

// formats are the commands that make a file system in a file.
var formats = map[string][]string{
	// The tables are written now, and not in the background later. Nothing is kept for
	// root, so that a full disk is full.
	Ext4: {"mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=16", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"},
	XFS:  {"mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1"},
}

// New makes a disk of so many bytes, with a file system of a kind. All of it is in dir,
// which must be there. The memory that it takes grows with what is written to it.
func New(ctx context.Context, dir, kind string, bytes int64) (_ *Disk, err error) {
	d := &Disk{Dir: filepath.Join(dir, "disk"), kind: kind, platters: filepath.Join(dir, "platters"), cache: filepath.Join(dir, "cache")}
	for _, name := range []string{d.Dir, d.platters, d.cache} {
		if err := os.Mkdir(name, 0o700); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close(context.WithoutCancel(ctx)))
		}
	}()
	if err := unix.Mount("tmpfs", d.platters, "tmpfs", 0, "mode=0700,size="+strconv.FormatInt(bytes+2*overhead, 10)); err != nil {
		return nil, fmt.Errorf("mount a tmpfs: %w", err)
	}
	if err := format(ctx, d.lower(), Ext4, bytes+overhead); err != nil {
		return nil, err
	}
	if err := d.mount(ctx, d.lower(), Ext4, d.cache); err != nil {
		return nil, err
	}
	if err := format(ctx, d.upper(), kind, bytes); err != nil {
		return nil, err
	}
	return d, d.mount(ctx, d.upper(), kind, d.Dir)
}

func (d *Disk) lower() string { return filepath.Join(d.platters, "disk") }
func (d *Disk) upper() string { return filepath.Join(d.cache, "disk") }

// format makes a file with a file system in it.
func format(ctx context.Context, name, kind string, bytes int64) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err = f.Truncate(bytes); err == nil {
		args := formats[kind]
		err = run(ctx, args[0], append(args[1:len(args):len(args)], name)...)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// mount mounts a file. Its loop device goes with the mount.
func (*Disk) mount(ctx context.Context, file, kind, on string) error {
	return run(ctx, "mount", "-t", kind, "-o", "loop", file, on)
}

// Cut cuts the power: nothing reaches the disk any more, and what was not synced is
// lost. Processes that use the disk get errors. The processes that do must be ended
// before On.
func (d *Disk) Cut() error {
	f, err := os.Open(d.cache)
	if err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), goingDown, noFlush); err != nil {
		return errors.Join(fmt.Errorf("cut the power: %w", err), f.Close())
	}
	return f.Close()
}

// On mounts the disk again after a cut, as a start of the host does: the journals
// are replayed. Nobody may use the disk.
func (d *Disk) On(ctx context.Context) error {
	for _, dir := range []string{d.Dir, d.cache} {
		if err := unmount(ctx, dir); err != nil {
			return err
		}
	}
	if err := d.mount(ctx, d.lower(), Ext4, d.cache); err != nil {
		return err
	}
	return d.mount(ctx, d.upper(), d.kind, d.Dir)
}

// Close removes the disk. Nobody may use it.
func (d *Disk) Close(ctx context.Context) (err error) {
	for _, dir := range []string{d.Dir, d.cache, d.platters} {
		err = errors.Join(err, unmount(ctx, dir))
	}
	return err
}

// unmount unmounts a directory, if something is mounted there, and waits until
// its loop device is free. Processes that others started may have the mount for a
// moment, and with it the device.
func unmount(ctx context.Context, dir string) error {
	source, err := mounted(dir)
	if err != nil || source == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	file := filepath.Join("/sys/block", filepath.Base(source), "loop", "backing_file")
	for {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if err == nil || errors.Is(err, unix.EINVAL) { // EINVAL: it was unmounted, and its device is busy
			if _, err = os.Stat(file); errors.Is(err, os.ErrNotExist) {
				return nil
			}
			err = fmt.Errorf("%s is in use", source)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w", dir, err)
		case <-time.After(poll):
		}
	}
}

// mounted returns what is mounted on a directory, or nothing.
func mounted(dir string) (source string, err error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(raw)) {
		mount, device, _ := strings.Cut(line, " - ")
		if f, s := strings.Fields(mount), strings.Fields(device); len(f) > 4 && len(s) > 1 && f[4] == dir {
			source = s[1]
		}
	}
	return source, err
}

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil { //nolint:gosec // G204: ours, in this file
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}
