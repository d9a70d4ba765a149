package edge

import (
	"io"
	"sync/atomic"
	"time"
)

// idleMax is how long a WebSocket may be open while nothing goes through it:
// one that was forgotten must not keep its sandbox awake for ever.
const idleMax = 15 * time.Minute

// An idleTimer knows when a WebSocket last carried a byte. The zero value is that of a
// request that is none.
type idleTimer struct {
	began time.Time
	last  atomic.Int64 // nanoseconds since began, plus 1
}

// start returns conn, which beats from now on. With half, one direction of it can end
// before the other, as protocols expect that know nothing of HTTP.
func (p *idleTimer) start(conn io.ReadWriteCloser, half bool) io.ReadWriteCloser {
	b := p.over(conn)
	if to, ok := conn.(halfCloser); ok && half {
		return &halfBeating{b, to}
	}
	return b
}

// over returns conn, which beats from now on.
func (p *idleTimer) over(conn io.ReadWriteCloser) *beating {
	p.began = time.Now()
	p.beat()
	return &beating{conn, p}
}

// halfCloser is a connection of which one direction can end.
type halfCloser interface{ CloseWrite() error }

// halfBeating is a connection of another protocol to a port.
type halfBeating struct {
	*beating
	halfCloser
}

func (p *idleTimer) beat() { p.last.Store(1 + int64(time.Since(p.began))) }

// silence is for how long nothing was carried.
func (p *idleTimer) silence(now time.Time) time.Duration {
	last := p.last.Load()
	if last == 0 {
		return 0
	}
	return now.Sub(p.began) - time.Duration(last-1)
}

// beating is the connection of a WebSocket to its sandbox.
type beating struct {
	io.ReadWriteCloser
	*idleTimer
}

func (b *beating) Read(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Read(p)
	b.beat()
	return n, err
}

func (b *beating) Write(p []byte) (int, error) {
	b.beat()
	return b.ReadWriteCloser.Write(p)
}
