package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"doze"
)

// sealOptions make a file that gVisor can map: not compressed, no extended
// attributes (so file capabilities are lost), and no data beside inodes. The
// rest makes equal trees equal files; hard links stay links.
var sealOptions = []string{
	"-x-1", "-Enoinline_data",
	"-T1", "--preserve-mtime", "-U00000000-0000-0000-0000-000000000000",
	"--quiet",
}

// mountPoints are directories that every sandbox mounts something on. Some
// images lack them.
var mountPoints = map[string]os.FileMode{
	"dev": 0o755, "etc": 0o755, "proc": 0o555, "root": 0o700, "run": 0o755, "sys": 0o555, "tmp": os.ModeSticky | 0o777,
}

// seal writes the files below tree into one EROFS file and returns its size
// and its SHA-256 sum. The file is on the disk when it returns.
func seal(ctx context.Context, tree, file string) (size int64, sum string, err error) {
	if err := addMountPoints(tree); err != nil {
		return 0, "", fmt.Errorf("prepare the root: %w", err)
	}
	if _, err := run(ctx, nil, "mkfs.erofs", append(sealOptions, file, tree)...); err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	f, err := os.Open(file)
	if err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	sum, err = checksum(f)
	if err := errors.Join(err, f.Chmod(0o444), f.Sync()); err != nil {
		return 0, "", fmt.Errorf("write the image: %w", err)
	}
	return info.Size(), sum, nil
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
// program gets a plain environment and extra, and dies with this process.
func run(ctx context.Context, extra []string, program string, args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd, err := command(ctx, extra, program, args...)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := runTied(cmd); err != nil {
		return nil, failure(ctx, err, program, errs.String()+out.String())
	}
	return out.Bytes(), nil
}

func command(ctx context.Context, extra []string, program string, args ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, doze.Wrap(err, doze.Unavailable, "this machine cannot make images: %s is not installed; run apt-get install mmdebstrap erofs-utils", program)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append([]string{pathDefault, "HOME=/root", "LC_ALL=C.UTF-8"}, extra...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// runTied runs cmd on a thread that lives until it ends: the kernel sends the
// death signal when the starting thread ends, not the process.
func runTied(cmd *exec.Cmd) error {
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
