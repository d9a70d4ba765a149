package agent

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Linux lets nobody in a PID namespace harm its first process: SIGKILL and
// SIGSTOP are ignored, and so is every signal that it does not handle. The
// engine has no such rule, and the machine ends with its first process. So a
// filter of system calls, which all processes of the sandbox inherit, takes the
// two signals for done, and the first process handles the others, by nothing.
// Those that no program in Go can handle are for done, too, unless they are for
// one thread: runtimes send these to threads of their own.
//
// A filter cannot tell whom a pidfd is of: pidfd_send_signal gets through.

// harmless are the signals that would end or stop the first process. Those that
// its own mistakes raise still do.
var harmless = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS,
	syscall.SIGFPE, syscall.SIGUSR1, syscall.SIGSEGV, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGTERM, syscall.SIGSTKFLT,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGVTALRM, syscall.SIGPROF,
	syscall.SIGIO, syscall.SIGPWR, syscall.SIGSYS,
}

// Signals that the runtime leaves alone: those of the C library, and one that
// names no package. They end who does not handle them.
const firstAlone, lastAlone = 32, 34

// signalCall is a system call that names whom it signals by number.
type signalCall struct {
	number uint32
	signal uint32 // which argument is the signal; the first is the process
	thread bool   // it names one thread
}

// ignores returns the signals that the call cannot send to process 1.
func (c signalCall) ignores() []uint32 {
	ignored := []uint32{uint32(syscall.SIGKILL), uint32(syscall.SIGSTOP)}
	for s := uint32(firstAlone); s <= lastAlone && !c.thread; s++ {
		ignored = append(ignored, s)
	}
	return ignored
}

var signalCalls = []signalCall{
	{unix.SYS_KILL, 1, false},
	{unix.SYS_RT_SIGQUEUEINFO, 1, false},
	{unix.SYS_TKILL, 1, true},
	{unix.SYS_TGKILL, 2, true},
	{unix.SYS_RT_TGSIGQUEUEINFO, 2, true},
}

// Offsets in struct seccomp_data.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
	argSize    = 8 // the lower half comes first
)

// Shield keeps the processes that are started from now on from killing or
// stopping this one, which is the first of its namespace. It must be called
// while this one has the power to administer.
func Shield() error {
	ignored := make(chan os.Signal, 1) // who does not fit in is ignored too
	signal.Notify(ignored, harmless...)
	arch, known := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !known {
		return fmt.Errorf("no filter is known for %s", runtime.GOARCH)
	}
	filter := shield(arch)
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}                                                                        //nolint:gosec // G115: it has some twenty lines
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))) //nolint:gosec // G103: the call takes a pointer
	if errno != 0 {
		return fmt.Errorf("set a filter of system calls: %w", errno)
	}
	return nil
}

// shield is the program of the filter.
func shield(arch uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K
	)
	allow := unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW}
	filter := []unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: equal, K: arch, Jt: 1},
		allow,
	}
	for _, c := range signalCalls {
		ignored := c.ignores()
		last := uint8(len(ignored)) //nolint:gosec // G115: they are few
		filter = append(filter,
			unix.SockFilter{Code: load, K: dataNumber},
			unix.SockFilter{Code: equal, K: c.number, Jf: last + 4}, // to the next call
			unix.SockFilter{Code: load, K: dataArgs},
			unix.SockFilter{Code: equal, K: 1, Jf: last + 2}, // likewise
			unix.SockFilter{Code: load, K: dataArgs + argSize*c.signal},
		)
		for i, s := range ignored {
			line := unix.SockFilter{Code: equal, K: s, Jt: last - uint8(i) - 1}
			if i == len(ignored)-1 {
				line.Jf = 1
			}
			filter = append(filter, line)
		}
		filter = append(filter, unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ERRNO}) // no error: done, by nothing
	}
	return append(filter, allow)
}
