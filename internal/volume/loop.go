package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// tries is how often somebody else may take the device that was free.
const tries = 16

// device returns the block device of a volume. It returns the existing one, since two
// devices of one file would destroy it. Otherwise it makes one, after the file system
// has grown to the size of its file. The device is gone by itself when nobody has it
// open or mounted.
func (p *Pool) device(ctx context.Context, id string) (*os.File, error) {
	file, err := os.OpenFile(p.disk(id), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the device has its own
	dev, err := deviceOf(file)
	if dev != nil || err != nil {
		return dev, err
	}
	if err := grow(ctx, file); err != nil {
		return nil, err
	}
	for range tries {
		if dev, err = newDevice(file); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil {
		return nil, unsupported(fmt.Errorf("make a loop device: %w", err))
	}
	return dev, nil
}

// unsupported classifies why a volume cannot be mounted: most of what can be
// wrong with a host has one of these numbers.
func unsupported(err error) error {
	for _, lacks := range []error{unix.ENOENT, unix.ENODEV, unix.ENXIO, unix.EPERM, unix.EACCES} {
		if errors.Is(err, lacks) {
			return doze.Wrap(err, doze.Unsupported, "this host cannot mount volumes: it needs loop devices and the file system %s", fileSystem)
		}
	}
	return err
}

// deviceOf finds the device of a file, if there is one.
func deviceOf(file *os.File) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &want); err != nil {
		return nil, err
	}
	names, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is well formed
	for _, name := range names {
		backing, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(backing)) != file.Name() { // it may be gone by now
			continue
		}
		dev, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(filepath.Dir(name))), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		// While we have it open it stays what it is.
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Device == want.Dev && info.Inode == want.Ino {
			return dev, nil
		}
		_ = dev.Close() // it was nobody's any more
	}
	return nil, nil //nolint:nilnil // there is none
}

// newDevice makes a device of a file.
func newDevice(file *os.File) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ctl.Close() }() // nothing was written
	n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, err
	}
	dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: blockSize} //nolint:gosec // G115: a descriptor is small
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	copy(config.Info.File_name[:len(config.Info.File_name)-1], file.Name())
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}
