package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to a port of a sandbox, from inside the router. A connection
// that is refused, as for the first milliseconds after a wake, is an
// ECONNREFUSED at once: the caller knows whether it pays to try again.
func (n *Net) Dial(ctx context.Context, s Slot, port uint16) (net.Conn, error) {
	conn, err := n.dial(ctx, s, port)
	if err != nil {
		return nil, &net.OpError{
			Op: "dial", Net: "tcp",
			Addr: &net.TCPAddr{IP: s.IP.AsSlice(), Port: int(port)}, Err: err,
		}
	}
	return conn, nil
}

func (n *Net) dial(ctx context.Context, s Slot, port uint16) (_ net.Conn, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	fd, err := n.socket()
	if err != nil {
		return nil, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: s.IP.As4(), Port: int(port)})
	f := os.NewFile(uintptr(fd), "sandbox") // it does not block, so the poller takes it
	defer func() { err = errors.Join(err, f.Close()) }()
	switch {
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EINTR):
		if err := await(ctx, f); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, os.NewSyscallError("connect", err)
	}
	return net.FileConn(f) // a duplicate
}

// socket makes a socket of the router. A socket belongs for life to the
// namespace in which it was made, so the thread is back before anybody else
// can run on it. If it cannot go back, it stays locked and ends with the
// caller's goroutine.
func (n *Net) socket() (int, error) {
	runtime.LockOSThread()
	if err := unix.Setns(n.router.ns.fd(), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return -1, fmt.Errorf("enter the router: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if back := unix.Setns(n.home.fd(), unix.CLONE_NEWNET); back != nil {
		if err == nil {
			err = unix.Close(fd)
		}
		return -1, errors.Join(fmt.Errorf("leave the router: %w", back), err)
	}
	runtime.UnlockOSThread()
	return fd, os.NewSyscallError("socket", err)
}

// await blocks until the connection of f is there or refused, or ctx ends.
func await(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = f.SetWriteDeadline(time.Unix(1, 0)) // if f is closed, nobody waits any more
	})
	defer stop()
	var result error
	if err := raw.Write(func(fd uintptr) bool {
		var over bool
		over, result = connected(int(fd))
		return over
	}); err != nil {
		if stopped := context.Cause(ctx); stopped != nil {
			return stopped
		}
		return err
	}
	return result
}

// connected reports whether connecting is over, and how it ended. The poller
// may wake us for nothing.
func connected(fd int) (over bool, err error) {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return true, os.NewSyscallError("getsockopt", err)
	}
	switch e := unix.Errno(errno); e {
	case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
		return false, nil
	case 0, unix.EISCONN:
		_, err := unix.Getpeername(fd)
		return err == nil, nil
	default:
		return true, os.NewSyscallError("connect", e)
	}
}
