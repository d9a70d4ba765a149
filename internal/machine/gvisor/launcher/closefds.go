package launcher

import (
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fdFlag is how the engine is told which descriptors are meant for it.
var fdFlag = regexp.MustCompile(`^--[a-z-]+-fds?=([0-9,]+)$`)

// CloseFDs closes the descriptors of the launcher that a process of the engine
// inherited by accident. gVisor opens some without the flag close-on-exec
// (runsc/sandbox: sandboxConnect). When many sandboxes start at once, a child can
// inherit a descriptor of another sandbox, or one with a number that the engine needs.
// It is called before gVisor's own main. What this process opened itself has the flag.
func CloseFDs(args []string) {
	meant := donated(args)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // the engine refuses to start if it must
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= unix.Stderr || meant[fd] {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}

// donated returns the descriptors that the arguments name.
func donated(args []string) map[int]bool {
	meant := map[int]bool{}
	for _, a := range args {
		m := fdFlag.FindStringSubmatch(a)
		if m == nil {
			continue
		}
		for number := range strings.SplitSeq(m[1], ",") {
			if fd, err := strconv.Atoi(number); err == nil {
				meant[fd] = true
			}
		}
	}
	return meant
}
