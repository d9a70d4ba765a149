package hostproc

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

// ErrHung is what Watch returns for a call that did not end in time.
var ErrHung = errors.New("the engine did not answer in time and was killed")

// Watch runs one call to an engine whose calls have no time limit of their own, and
// may never return: after limit, shoot must make the call fail. A caller that leaves early does not end the call, which would
// leave the machine in a state that nobody knows.
func Watch(ctx context.Context, limit time.Duration, shoot func(), call func() error) error {
	done := make(chan error, 1)
	go func() { done <- Guard(call) }()
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
		return errors.Join(ErrHung, err)
	case <-timer.C:
		return ErrHung
	}
}

// Guard turns a panic of the engine's library into an error.
func Guard(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the engine panicked: %v", p)
		}
	}()
	return call()
}

// Waiter returns a function that blocks until the process pid has ended. It
// holds no thread, and it cannot be fooled by a number that is used again.
func Waiter(pid int) (func(), error) {
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

// Kill kills a process and waits for its end, at most for patience.
func Kill(ctx context.Context, pid int, patience time.Duration) error {
	end, err := Waiter(pid)
	if err != nil {
		return nil //nolint:nilerr // it has ended by itself
	}
	_ = unix.Kill(pid, unix.SIGKILL) // or it ends just now
	ended := make(chan struct{})
	go func() { end(); close(ended) }() // ends with the process
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		return fmt.Errorf("process %d does not end", pid)
	}
}

// Parent returns the process that a process is a child of.
func Parent(pid int) (parent int, err error) {
	status, err := os.ReadFile(Path(pid, "stat"))
	if err != nil {
		return 0, err
	}
	// The name is in brackets and may have any character in it.
	_, err = fmt.Sscanf(string(status[bytes.LastIndexByte(status, ')')+1:]), " %c %d", new(rune), &parent)
	return parent, err
}

// Catches reports whether a process has a handler for a signal.
func Catches(pid int, sig unix.Signal) bool {
	status, err := os.ReadFile(Path(pid, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && caught&(1<<(sig-1)) != 0
		}
	}
	return false
}

// Path returns where the kernel has a file about a process.
func Path(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// Tree returns pid and all its descendants. A process that ends meanwhile is
// left out.
func Tree(pid int) (pids []int) {
	_ = Visit(pid, func(pid int) error { // it fails if the callback does
		pids = append(pids, pid)
		return nil
	})
	return pids
}

// Visit calls do for a process and all its descendants, parents first. It asks for
// children after do: what do makes a parent hand on, those have that come later.
// Only a thread knows its children, and the kernel is slow to list anything else
// about one.
func Visit(pid int, do func(pid int) error) error {
	if err := do(pid); err != nil {
		return err
	}
	threads, err := os.Open(Path(pid, "task"))
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
			if err := Visit(child, do); err != nil {
				return err
			}
		}
	}
	return nil
}
