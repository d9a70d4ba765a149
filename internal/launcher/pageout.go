package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iovMax is how many ranges the kernel takes at a time: UIO_MAXIOV.
const iovMax = 1024

// pageOut moves the private memory of a process to swap, whichever cgroup it is
// charged to. The start of an engine is charged to the launcher's: gVisor starts
// it on a thread of its own choice. Written in the order of its addresses, it
// also comes back faster than in the kernel's.
func pageOut(pid int) error {
	maps, err := os.Open(proc(pid, "maps"))
	if err != nil {
		return fmt.Errorf("look at the memory: %w", err)
	}
	defer func() { _ = maps.Close() }()
	ranges, err := private(maps)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for some := range slices.Chunk(ranges, iovMax) {
		_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(fd), uintptr(unsafe.Pointer(&some[0])), uintptr(len(some)), unix.MADV_PAGEOUT, 0, 0) //nolint:gosec // G103: as x/sys would
		// Addresses may be given back meanwhile, and older kernels do not know the call.
		if errno != 0 && errno != unix.ENOMEM && errno != unix.ENOSYS {
			return fmt.Errorf("move memory of process %d to swap: %w", pid, errno)
		}
	}
	return nil
}

// private returns the writable mappings in /proc/PID/maps that are nobody else's.
func private(maps io.Reader) (ranges []unix.RemoteIovec, err error) {
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		addresses, rest, _ := strings.Cut(lines.Text(), " ") // 7f00-7f80 rw-p 00000000 00:00 0
		if !strings.HasPrefix(rest, "rw-p") {
			continue
		}
		lower, upper, _ := strings.Cut(addresses, "-")
		from, err1 := strconv.ParseUint(lower, 16, 63)
		to, err2 := strconv.ParseUint(upper, 16, 63)
		if err := errors.Join(err1, err2); err != nil || to < from {
			return nil, fmt.Errorf("a line of the maps is %q", lines.Text())
		}
		ranges = append(ranges, unix.RemoteIovec{Base: uintptr(from), Len: int(to - from)})
	}
	return ranges, lines.Err()
}
