package egress

import (
	"context"
	"errors"
	"io"
	"net"

	"golang.org/x/time/rate"
)

const (
	// byteRate and byteBurst bound the bytes of a sandbox in a second, in both
	// directions and all connections together: two gigabits, so that nobody has
	// the line of a host for himself. What a new sandbox fetches at first comes
	// as fast as it can.
	byteRate, byteBurst = 256 << 20, 1 << 30
	// stride is how much of a stream passes before it counts: the kernel passes
	// it without us.
	stride = 1 << 20
)

// newPace returns what the bytes of one sandbox are taken from.
func newPace() *rate.Limiter { return rate.NewLimiter(byteRate, byteBurst) }

// splice passes bytes in both directions until both have ended; the kernel does
// it without showing them to us.
func splice(ctx context.Context, a, b *net.TCPConn, pace *rate.Limiter) {
	back := make(chan struct{})
	go func() { // ends with either connection
		defer close(back)
		pass(ctx, a, b, pace)
	}()
	pass(ctx, b, a, pace)
	<-back
	_ = a.Close()
	_ = b.Close()
}

// pass passes bytes in one direction, and then the end.
func pass(ctx context.Context, to, from *net.TCPConn, pace *rate.Limiter) {
	for {
		n, err := io.CopyN(to, from, stride)
		if late := pace.WaitN(ctx, int(n)); late != nil || err != nil && err != io.EOF { //nolint:errorlint // as io.CopyN has it
			refuse(to)
			refuse(from)
			return
		}
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// open connects to d as dial does, for who sees the bytes.
func (e *Egress) open(ctx context.Context, g *guest, d Destination) (net.Conn, error) {
	c, err := e.dial(ctx, g, d)
	if err != nil {
		return nil, err
	}
	return newPaced(context.WithoutCancel(ctx), c, g.pace), nil
}

// paced is a connection whose bytes count.
type paced struct {
	net.Conn
	wait func(n int) error
	end  func() // of waiting
}

func newPaced(ctx context.Context, c net.Conn, pace *rate.Limiter) *paced {
	life, end := context.WithCancel(ctx)
	return &paced{c, func(n int) error { return pace.WaitN(life, n) }, end}
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if late := p.wait(n); late != nil && err == nil {
		err = late
	}
	return n, err
}

func (p *paced) Write(b []byte) (int, error) {
	if err := p.wait(len(b)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// CloseWrite ends what is sent, where the connection can do that alone: who has
// sent all of an upgraded request still waits for the answer.
func (p *paced) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (p *paced) Close() error {
	p.end()
	return p.Conn.Close()
}
