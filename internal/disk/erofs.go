package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/dozehq/doze"
)

// sealOptions make a file that an engine can map: not compressed, no extended
// attributes (so file capabilities are lost), and no data beside inodes. The
// rest makes equal trees equal files but for the date in the superblock, and
// gives each file its own time: Python believes its caches by it. Hard links
// stay links.
var sealOptions = []string{
	"-x-1", "-Enoinline_data,force-inode-extended",
	"--preserve-mtime", "-U00000000-0000-0000-0000-000000000000",
	"--quiet",
}

// mountPoints are directories that every sandbox mounts something on. Some
// images lack them.
var mountPoints = map[string]os.FileMode{
	"dev": 0o755, "etc": 0o755, "proc": 0o555, "root": 0o700, "run": 0o755, "sys": 0o555, "tmp": os.ModeSticky | 0o777,
}

// seal writes the files below tree into one EROFS file and returns its size
// and, if it is wanted, its SHA-256 sum. The file is on the disk when it returns.
func seal(ctx context.Context, tree, file string, summed bool) (size int64, sum string, err error) {
	if err := addMountPoints(tree); err != nil {
		return 0, "", fmt.Errorf("prepare the root: %w", err)
	}
	if _, err := run(ctx, "mkfs.erofs", append(sealOptions, file, tree)...); err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := undate(f); err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	if summed {
		sum, err = checksum(f)
	}
	if err := errors.Join(err, f.Chmod(0o444), f.Sync()); err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	return info.Size(), sum, nil
}

// The superblock of EROFS: where it is, and what of it we touch.
const (
	superOffset  = 1024
	superMagic   = 0xE0F5E1E2
	superSum     = 4  // of the rest of the first block, with this field zero
	superDate    = 24 // seconds in 8 bytes, nanoseconds in 4
	superDateLen = 12
	firstBlock   = 4096
)

// undate takes the date of its making out of an image. mkfs.erofs can only
// do so by giving all files the same date.
func undate(f *os.File) error {
	super := make([]byte, firstBlock-superOffset)
	if _, err := f.ReadAt(super, superOffset); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(super) != superMagic {
		return doze.Errorf(doze.Internal, "mkfs.erofs wrote something else")
	}
	clear(super[superDate : superDate+superDateLen])
	clear(super[superSum : superSum+4])
	// EROFS leaves out the inversion at the end of CRC-32C.
	sum := ^crc32.Checksum(super, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(super[superSum:], sum)
	_, err := f.WriteAt(super, superOffset)
	return err
}

// addMountPoints adds the directories that are missing. A link in the place
// of one, such as /tmp to /var/tmp, is left alone.
func addMountPoints(tree string) error {
	before, err := os.Stat(tree)
	if err != nil {
		return err
	}
	for name, mode := range mountPoints {
		dir := filepath.Join(tree, name)
		if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) { //nolint:gosec // G301: the mode of the image, set below
			continue
		} else if err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(dir, mode), os.Chtimes(dir, before.ModTime(), before.ModTime())); err != nil {
			return err
		}
	}
	return os.Chtimes(tree, before.ModTime(), before.ModTime())
}

// outputMax is how much of a program's output an error shows: its end.
const outputMax = 2 << 10

// run runs a program and returns what it printed to its standard output. The
// program gets a plain environment, and dies with this process.
func run(ctx context.Context, program string, args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd, err := command(ctx, nil, program, args...)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := runChild(cmd); err != nil {
		return nil, failure(ctx, err, program, errs.String()+out.String())
	}
	return out.Bytes(), nil
}

func command(ctx context.Context, extra []string, program string, args ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, doze.Wrap(err, doze.Unavailable, "this machine cannot make images: %s is not installed; run apt-get install mmdebstrap erofs-utils", program)
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // G204: the programs are constants, and callers choose no argument
	cmd.Env = append([]string{pathDefault, "HOME=/root", "LC_ALL=C.UTF-8"}, extra...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// runChild runs cmd on a thread that lives until it ends: the kernel sends the
// death signal when the starting thread ends, not the process.
func runChild(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// failure explains why a program ended badly.
func failure(ctx context.Context, err error, program, output string) error {
	if stopped := context.Cause(ctx); stopped != nil {
		return stopped
	}
	output = strings.TrimSpace(output)
	output = output[max(0, len(output)-outputMax):]
	return doze.Wrap(fmt.Errorf("%w: %s", err, output), doze.Unavailable, "%s ended with an error; the log of this machine says more", program)
}
