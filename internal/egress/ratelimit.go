package egress

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// byteRate and byteBurst bound the bytes of a sandbox in a second, over both
	// directions and all connections. The rate is two gigabits, so that no sandbox
	// takes the whole line of a host. The first fetches of a new sandbox are not slowed
	// down.
	byteRate, byteBurst = 256 << 20, 1 << 30
	// stride is how much of a stream passes at a time. Larger ones are not faster.
	stride = 256 << 10
	// stallPause is how long a stream waits whose socket has room and takes
	// nothing, as when the kernel is short of memory for all sockets.
	stallPause = 10 * time.Millisecond
)

// newRate returns what the bytes of one sandbox are taken from.
func newRate() *rate.Limiter { return rate.NewLimiter(byteRate, byteBurst) }

// splice passes bytes between a connection of a sandbox and one to its
// destination, until both directions have ended.
func splice(ctx context.Context, inside, outside *net.TCPConn, g *guest, f *flow) {
	f.idle.Store(time.Now().UnixNano())
	back := make(chan struct{})
	go func() { // ends with either connection
		defer close(back)
		pass(ctx, inside, outside, g.limit, f, &g.traffic.Received)
	}()
	pass(ctx, outside, inside, g.limit, f, &g.traffic.Sent)
	<-back
	_ = inside.Close()
	_ = outside.Close()
}

// pass passes bytes in one direction, and then the end.
func pass(ctx context.Context, to, from *net.TCPConn, limit *rate.Limiter, f *flow, passed *atomic.Uint64) {
	l, err := newLeg(to, from)
	for err == nil {
		var n int
		if n, err = l.move(); n > 0 {
			passed.Add(uint64(n))
			f.idle.Store(time.Now().UnixNano())
			err = errors.Join(err, limit.WaitN(ctx, n))
		} else if err == nil {
			_ = to.CloseWrite()
			return
		}
	}
	refuse(to)
	refuse(from)
}

// strides are the buffers of all legs.
var strides = sync.Pool{New: func() any { return new([stride]byte) }}

// A leg is one direction of a stream. Bytes stay in the socket that they came
// from until the other one takes them. So a leg that waits holds no buffer and no
// descriptor besides the two sockets, however many sandboxes let theirs wait.
type leg struct{ to, from syscall.RawConn }

func newLeg(to, from *net.TCPConn) (l leg, err error) {
	var errs [2]error
	l.to, errs[0] = to.SyscallConn()
	l.from, errs[1] = from.SyscallConn()
	return l, errors.Join(errs[:]...)
}

// move waits until some bytes have passed, and returns how many: none at the end.
func (l leg) move() (n int, err error) {
	for {
		full := false
		waited := l.from.Read(func(from uintptr) (ready bool) {
			n, full, ready, err = l.try(int(from))
			return ready
		})
		if err = errors.Join(waited, err); err != nil || !full {
			return n, err
		}
		if err = l.room(); err != nil {
			return 0, err
		}
	}
}

// try passes what is there and fits, without waiting. It reports whether there
// was anything to do, and whether nothing fits.
func (l leg) try(from int) (n int, full, ready bool, err error) {
	buf, _ := strides.Get().(*[stride]byte)
	defer strides.Put(buf)
	n, err = receive(from, buf[:], unix.MSG_PEEK)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, false, false, nil
	case err != nil || n == 0:
		return 0, false, true, err
	}
	var sent int
	held := l.to.Control(func(to uintptr) {
		for {
			sent, err = unix.SendmsgN(int(to), buf[:n], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	switch {
	case held != nil:
		return 0, false, true, held
	case errors.Is(err, unix.EAGAIN):
		return 0, true, true, nil
	case err != nil:
		return 0, false, true, err
	}
	// They are there. With this flag the kernel drops them without a copy.
	if got, err := receive(from, buf[:sent], unix.MSG_TRUNC); err != nil || got != sent {
		return 0, false, true, errors.Join(errStream, err)
	}
	return sent, false, true, nil
}

var errStream = errors.New("bytes of a stream are gone that were just there")

// receive is recv(2) without waiting.
func receive(fd int, b []byte, flags int) (n int, err error) {
	for {
		n, _, err = unix.Recvfrom(fd, b, flags|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// room waits until something fits, or the connection ends.
func (l leg) room() error {
	looks := 0
	var result error
	err := l.to.Write(func(to uintptr) bool {
		looks++
		var events int
		p := []unix.PollFd{{Fd: int32(to), Events: unix.POLLOUT}} //nolint:gosec // G115: a descriptor
		for {
			if events, result = unix.Poll(p, 0); !errors.Is(result, unix.EINTR) {
				return events > 0 || result != nil
			}
		}
	})
	if looks == 1 { // it says that there is room, and took nothing
		time.Sleep(stallPause)
	}
	return errors.Join(err, result)
}

// open connects to d as dial does, for a caller that sees the bytes.
func (e *Egress) open(ctx context.Context, g *guest, d Destination, before *found) (net.Conn, error) {
	c, err := e.dial(ctx, g, d, before)
	if err != nil {
		return nil, err
	}
	return g.counted(ctx, c), nil
}

// counted is a connection for the sandbox, whose bytes count.
func (g *guest) counted(ctx context.Context, c *net.TCPConn) net.Conn {
	return newLimited(context.WithoutCancel(ctx), c, g.limit, g.traffic, func() { g.exit(c) })
}

// limited is a connection whose bytes count.
type limited struct {
	net.Conn
	traffic *Traffic
	wait    func(n int) error
	end     func() // of waiting
	closed  func()
}

func newLimited(ctx context.Context, c net.Conn, limit *rate.Limiter, traffic *Traffic, closed func()) *limited {
	life, end := context.WithCancel(ctx)
	return &limited{c, traffic, func(n int) error { return limit.WaitN(life, n) }, end, closed}
}

func (p *limited) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	p.traffic.Received.Add(uint64(n)) //nolint:gosec // G115: not negative
	if late := p.wait(n); late != nil && err == nil {
		err = late
	}
	return n, err
}

func (p *limited) Write(b []byte) (int, error) {
	if err := p.wait(len(b)); err != nil {
		return 0, err
	}
	n, err := p.Conn.Write(b)
	p.traffic.Sent.Add(uint64(n)) //nolint:gosec // G115: not negative
	return n, err
}

// CloseWrite ends what is sent, where the connection can do that alone: a peer that has
// sent all of an upgraded request still waits for the answer.
func (p *limited) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (p *limited) Close() error {
	p.end()
	err := p.Conn.Close()
	p.closed()
	return err
}
