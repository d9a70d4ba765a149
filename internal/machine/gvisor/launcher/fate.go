package launcher

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
)

// What the kernel says of a process that has ended: siginfo_t of waitid.
const (
	exitedByItself = 1  // CLD_EXITED
	statusOffset   = 24 // of si_status, on machines of 64 bits
	bySignal       = 128
	codeOfPanic    = 2 // of a program in Go, such as the engine and the agent
)

// fate says why the engine's process pid ended, which nobody has collected
// yet. The engine ends with the guest's first process, as that did.
func fate(pid int) string {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	if err != nil || info.Signo == 0 { // a child of an earlier launcher
		return "its first process was killed from inside or crashed, or its processes were killed on the host: " + machine.Recovery
	}
	raw := (*[unsafe.Sizeof(info)]byte)(unsafe.Pointer(&info))                                               //nolint:gosec // G103: x/sys has no name for this part of the union
	return describe(info.Code == exitedByItself, int(int32(binary.NativeEndian.Uint32(raw[statusOffset:])))) //nolint:gosec // G115: an int of C
}

// describe puts the end of an engine in words: its exit code, or the signal that
// it was killed by.
func describe(exited bool, code int) string {
	switch {
	case !exited:
		return fmt.Sprintf("its processes were killed on the host (signal %d): %s", code, machine.Recovery)
	case code > bySignal:
		return fmt.Sprintf("its first process was killed from inside (signal %d): leave process 1 alone; %s", code-bySignal, machine.Recovery)
	case code == codeOfPanic:
		return "its first process or its engine crashed, and the node's log may say why: " + machine.Recovery
	default:
		return fmt.Sprintf("its first process ended with exit code %d: %s", code, machine.Recovery)
	}
}
