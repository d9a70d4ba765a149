package agent

import (
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// verdictOf is what the kernel does with a filter that loads, compares and answers.
func verdictOf(t *testing.T, filter []unix.SockFilter, data map[uint32]uint32) uint32 {
	t.Helper()
	var a uint32
	for at := 0; at < len(filter); at++ {
		switch line := filter[at]; line.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = data[line.K]
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			if a == line.K {
				at += int(line.Jt)
			} else {
				at += int(line.Jf)
			}
		case unix.BPF_RET | unix.BPF_K:
			return line.K
		default:
			t.Fatalf("line %d has the code %#x", at, line.Code)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

// TestShieldFilter: SIGKILL and SIGSTOP do nothing to process 1, and all else is
// as it was.
func TestShieldFilter(t *testing.T) {
	t.Parallel()
	const arch, other = unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64
	filter := shield(arch)
	if len(filter) > 255 {
		t.Errorf("%d lines: a jump is of one byte", len(filter))
	}
	numbers := []uint32{unix.SYS_GETPID, unix.SYS_PIDFD_SEND_SIGNAL}
	at, thread := map[uint32]uint32{}, map[uint32]bool{}
	for _, c := range signalCalls {
		numbers, at[c.number], thread[c.number] = append(numbers, c.number), c.signal, c.thread
	}
	for _, number := range numbers {
		signal, names := at[number]
		for _, process := range []uint32{0, 1, 2, ^uint32(0)} { // -1 is all but process 1
			for _, s := range []syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, 31, 32, 33, 34, 35} {
				for _, a := range []uint32{arch, other} {
					data := map[uint32]uint32{dataNumber: number, dataArch: a, dataArgs: process}
					if names {
						data[dataArgs+argSize*signal] = uint32(s)
					}
					want := uint32(unix.SECCOMP_RET_ALLOW)
					fatal := s == syscall.SIGKILL || s == syscall.SIGSTOP || s >= 32 && s <= 34 && !thread[number]
					if names && process == 1 && a == arch && fatal {
						want = unix.SECCOMP_RET_ERRNO
					}
					if got := verdictOf(t, filter, data); got != want {
						t.Errorf("%s: %#x, want %#x", fmt.Sprint(number, process, s, a == arch), got, want)
					}
				}
			}
		}
	}
}
