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

// start returns conn, which beats from now on.
func (p *idleTimer) start(conn io.ReadWriteCloser) io.ReadWriteCloser {
	p.began = time.Now()
	p.beat()
	return &beating{conn, p}
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
