package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errHung is what watch returns for a call that did not end in time.
var errHung = errors.New("the engine did not answer in time and was killed")

// watch runs one call to the engine. gVisor's calls have no time limit of their
// own and know cases in which they never return: after limit, shoot must make
// the call fail. A caller that leaves early does not end the call, which would
// leave the machine in a state that nobody knows.
func watch(ctx context.Context, limit time.Duration, shoot func(), call func() error) error {
	done := make(chan error, 1)
	go func() { done <- guard(call) }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	}
	slog.ErrorContext(ctx, "the engine hangs", "limit", limit)
	shoot()
	timer.Reset(limit)
	select {
	case err := <-done:
		return errors.Join(errHung, err)
	case <-timer.C:
		return errHung
	}
}

// guard turns a panic of the engine's library into an error.
func guard(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the engine panicked: %v", p)
		}
	}()
	return call()
}

// waiter returns a function that blocks until the process pid has ended. It
// holds no thread, and it cannot be fooled by a number that is used again.
func waiter(pid int) (func(), error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() {
		defer func() { _ = file.Close() }()
		_ = conn.Read(func(fd uintptr) bool {
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // G115: a descriptor is small
			n, _ := unix.Poll(ready, 0)
			return n > 0
		})
	}, nil
}

// alive reports whether pid is the engine's process of one of our machines:
// after a reboot the number may be anybody's.
func alive(pid int) bool {
	cmdline, err := os.ReadFile(proc(pid, "cmdline"))
	return err == nil && bytes.HasPrefix(cmdline, []byte("runsc-sandbox\x00"))
}

func proc(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// tree returns pid and all its descendants. A process that ends meanwhile is
// left out.
func tree(pid int) (pids []int) {
	_ = visit(pid, func(pid int) error { // it fails if the callback does
		pids = append(pids, pid)
		return nil
	})
	return pids
}

// visit calls do for a process and all its descendants, parents first. It asks for
// children after do: what do makes a parent hand on, those have that come later.
// Only a thread knows its children, and the kernel is slow to list anything else
// about one.
func visit(pid int, do func(pid int) error) error {
	if err := do(pid); err != nil {
		return err
	}
	threads, err := os.Open(proc(pid, "task"))
	if err != nil {
		return nil // it ended
	}
	names, _ := threads.Readdirnames(-1) // it may end here, too
	_ = threads.Close()
	for _, name := range names {
		children, err := os.ReadFile(threads.Name() + "/" + name + "/children")
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(children)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			if err := visit(child, do); err != nil {
				return err
			}
		}
	}
	return nil
}
