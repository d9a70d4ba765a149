// Package pump carries what a child writes from a pipe or a terminal to the agent.
package pump

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/agent/scratch"
)

const (
	// ChunkMax is what is read of a pipe at once: all that fits into one.
	ChunkMax = 64 << 10
	// Max is what fits into the pipe of a process that has filled it, and what
	// is then read at once.
	Max = 256 << 10
	// chunkMin is what must have come at once before it is worth a system call to
	// ask for more.
	chunkMin = 4 << 10
	// pumpRest is how long a pump waits between two chunks below ChunkMax. For a
	// process that writes one line after the other, each would cost a dozen system
	// calls.
	pumpRest = 2 * time.Millisecond
)

var chunks = sync.Pool{New: func() any { return new([ChunkMax]byte) }}

// Pump carries what one stream of a process writes from a pipe to its output.
// Memory for it is taken only while there is something to carry.
type Pump struct {
	pipe    *os.File
	sink    func([]byte)
	hurry   chan struct{} // closed when a drain is asked for
	drained chan struct{} // closed at the end, or when a drain that was asked for is done
	Ended   chan struct{} // closed when nobody can write any more

	grows bool      // it is a pipe of the usual size
	size  int       // of the last chunk
	last  time.Time // when that came
}

// New returns a pump that is not running yet, and the end for the child,
// which the caller closes.
func New(sink func([]byte)) (p *Pump, child int, err error) {
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
	p = Of(os.NewFile(uintptr(fds[0]), "pipe"), sink)
	p.grows = true
	return p, fds[1], nil
}

// Of returns a pump of an open, non-blocking file, which it closes.
func Of(pipe *os.File, sink func([]byte)) *Pump {
	return &Pump{pipe: pipe, sink: sink, hurry: make(chan struct{}), drained: make(chan struct{}), Ended: make(chan struct{})}
}

// Run carries until nobody has the other end open.
func (p *Pump) Run() {
	defer close(p.Ended)
	defer func() { _ = p.pipe.Close() }()
	drained := sync.OnceFunc(func() { close(p.drained) })
	defer drained()
	for {
		more, err := p.carry(true)
		for errors.Is(err, os.ErrDeadlineExceeded) {
			// The process is over: what it wrote is in the pipe already. Other
			// processes with the pipe may go on, but nobody waits for them.
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
		p.rest()
	}
}

// rest waits a little if chunks come fast and are small.
func (p *Pump) rest() {
	now := time.Now()
	since := now.Sub(p.last)
	p.last = now
	if p.size >= ChunkMax || since >= pumpRest {
		return
	}
	over := time.NewTimer(pumpRest)
	defer over.Stop()
	select {
	case <-over.C:
	case <-p.hurry:
	}
	p.last = time.Now()
}

// carry moves one chunk. Unless told to wait, it reports false when the pipe
// is empty; the end of the pipe is an error.
func (p *Pump) carry(wait bool) (more bool, err error) {
	conn, err := p.pipe.SyscallConn()
	if err != nil {
		return false, err
	}
	var (
		buf  []byte
		n    int
		fail error
	)
	err = conn.Read(func(fd uintptr) bool {
		buf = Lend(p.size >= ChunkMax)
		n, fail = drink(int(fd), buf)
		if errors.Is(fail, syscall.EAGAIN) {
			Return(buf)
			buf = nil
			return !wait
		}
		if p.size = n; n == len(buf) && p.grows {
			p.grows = false
			_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, Max) // it works without, too
		}
		return true
	})
	if buf == nil {
		return false, err
	}
	defer Return(buf)
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

// Lend returns memory for a chunk: more of it if much is expected, and there is
// some. The caller gives it back with [Return].
func Lend(much bool) []byte {
	if much {
		if large := scratch.Lend(); large != nil {
			return large[:Max]
		}
	}
	buf, _ := chunks.Get().(*[ChunkMax]byte)
	return buf[:]
}

// Return ends what lend began.
func Return(buf []byte) {
	if len(buf) == Max {
		scratch.Return((*[scratch.Size]byte)(buf[:scratch.Size]))
		return
	}
	chunks.Put((*[ChunkMax]byte)(buf))
}

// drink reads until b is full or nothing is there any more. At the end it returns
// 0. What is wrong once something came, the next read says.
func drink(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		m, err := syscall.Read(fd, b[n:])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil && n == 0 {
			return 0, err
		}
		if n += max(m, 0); m < chunkMin {
			break
		}
	}
	return n, nil
}

// Drain asks for what is in the pipe now and waits until it is carried. It is
// called once.
func (p *Pump) Drain() {
	close(p.hurry)
	_ = p.pipe.SetReadDeadline(time.Unix(1, 0)) // an error means that the pump has ended
	<-p.drained
}

// Over reports whether the pump has ended.
func (p *Pump) Over() bool {
	select {
	case <-p.Ended:
		return true
	default:
		return false
	}
}

// Close ends reading: what the pipe still has, nobody gets.
func (p *Pump) Close() {
	_ = p.pipe.Close() // the pump may have ended
}
