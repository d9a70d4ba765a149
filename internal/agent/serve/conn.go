package serve

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/dozehq/doze/internal/agent/scratch"
)

// aheadMin is what a caller must have sent at once before more is read than was
// asked for: all that the server reads of a header at once.
const aheadMin = 4 << 10

// listener accepts connections that read ahead.
type listener struct{ net.Listener }

// Listen returns ln with connections that read ahead.
func Listen(ln net.Listener) net.Listener { return listener{ln} }

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		return &conn{TCPConn: tcp}, nil
	}
	return c, err
}

// conn is the connection of a caller. What a caller sends fast is read in large
// pieces, however small those are that chunks and forms are read in. It takes
// memory only while something has come that nobody has read yet.
type conn struct {
	*net.TCPConn // sends files without copying them

	fast bool // the last read returned all that it could; of the one who reads

	mu     sync.Mutex
	ahead  *[scratch.Size]byte // guarded by mu
	rest   []byte              // guarded by mu; of ahead, not read yet; empty without it
	closed bool                // guarded by mu
}

// Read implements [net.Conn]. There is one reader at a time.
func (c *conn) Read(b []byte) (int, error) {
	if n := c.take(b); n > 0 {
		return n, nil
	}
	if c.fast && len(b) < scratch.Size {
		c.fast = false
		c.fill()
		if n := c.take(b); n > 0 {
			return n, nil
		}
	}
	n, err := c.TCPConn.Read(b)
	c.fast = n == len(b) && n >= aheadMin
	return n, err
}

// take reads what was read ahead.
func (c *conn) take(b []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(b, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.giveBack()
	}
	return n
}

// giveBack ends what was read ahead. Preconditions: mu is held.
func (c *conn) giveBack() {
	if c.ahead != nil {
		scratch.Return(c.ahead)
		c.ahead, c.rest = nil, nil
	}
}

// fill reads ahead, once there is something to read. Without memory it reads
// nothing, nor when nothing comes any more: why, an ordinary read finds out.
func (c *conn) fill() {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		ahead := scratch.Lend()
		if ahead == nil {
			return true
		}
		n, err := syscall.Read(int(fd), ahead[:])
		for errors.Is(err, syscall.EINTR) {
			n, err = syscall.Read(int(fd), ahead[:])
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed || n <= 0 {
			scratch.Return(ahead)
			return !errors.Is(err, syscall.EAGAIN)
		}
		c.ahead, c.rest, c.fast = ahead, ahead[:n], n >= aheadMin
		return true
	})
}

// WriteTo hides that of [net.TCPConn], which does not know what was read ahead.
func (c *conn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.giveBack()
	c.mu.Unlock()
	return c.TCPConn.Close()
}
