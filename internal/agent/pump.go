package agent

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// chunkMax is what is read of a pipe at once: all that fits into one.
const chunkMax = 64 << 10

var chunks = sync.Pool{New: func() any { return new([chunkMax]byte) }}

// pump carries what one stream of a process writes from a pipe to its output.
// Memory for it is taken only while there is something to carry.
type pump struct {
	pipe    *os.File
	sink    func([]byte)
	drained chan struct{} // closed at the end, or when a drain that was asked for is done
	ended   chan struct{} // closed when nobody can write any more
}

// newPump returns a pump that is not running yet, and the end for the child,
// which the caller closes.
func newPump(sink func([]byte)) (p *pump, child int, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return nil, 0, os.NewSyscallError("pipe2", err)
	}
	// Only our end: programs do not expect their output to be non-blocking.
	if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETFL, 0); err != nil {
		_ = syscall.Close(fds[0])
		_ = syscall.Close(fds[1])
		return nil, 0, os.NewSyscallError("fcntl", err)
	}
	return pumpOf(os.NewFile(uintptr(fds[0]), "pipe"), sink), fds[1], nil
}

// pumpOf returns a pump of an open, non-blocking file, which it closes.
func pumpOf(pipe *os.File, sink func([]byte)) *pump {
	return &pump{pipe: pipe, sink: sink, drained: make(chan struct{}), ended: make(chan struct{})}
}

// run carries until nobody has the other end open.
func (p *pump) run() {
	defer close(p.ended)
	defer func() { _ = p.pipe.Close() }()
	drained := sync.OnceFunc(func() { close(p.drained) })
	defer drained()
	for {
		more, err := p.carry(true)
		for errors.Is(err, os.ErrDeadlineExceeded) {
			// The process is over: what it wrote is in the pipe already.
			// Whoever else has the pipe may go on, but is not waited for.
			_ = p.pipe.SetReadDeadline(time.Time{})
			for more, err = p.carry(false); more && err == nil; {
				more, err = p.carry(false)
			}
			drained()
			more = err == nil
		}
		if err != nil || !more {
			return
		}
	}
}

// carry moves one chunk. Unless told to wait, it reports false when the pipe
// is empty; the end of the pipe is an error.
func (p *pump) carry(wait bool) (more bool, err error) {
	conn, err := p.pipe.SyscallConn()
	if err != nil {
		return false, err
	}
	var (
		buf  *[chunkMax]byte
		n    int
		fail error
	)
	err = conn.Read(func(fd uintptr) bool {
		buf, _ = chunks.Get().(*[chunkMax]byte)
		for {
			n, fail = syscall.Read(int(fd), buf[:])
			if fail != syscall.EINTR {
				break
			}
		}
		if fail == syscall.EAGAIN {
			chunks.Put(buf)
			buf = nil
			return !wait
		}
		return true
	})
	if buf == nil {
		return false, err
	}
	defer chunks.Put(buf)
	switch {
	case err != nil:
		return false, err
	case fail != nil:
		return false, fail
	case n == 0:
		return false, os.ErrClosed
	}
	p.sink(buf[:n])
	return true, nil
}

// drain asks for what is in the pipe now and waits until it is carried.
func (p *pump) drain() {
	_ = p.pipe.SetReadDeadline(time.Unix(1, 0)) // an error means that the pump has ended
	<-p.drained
}

// over reports whether the pump has ended.
func (p *pump) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}
