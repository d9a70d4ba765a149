package edge

import (
	"context"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// medium carries the connections of a world. The zero one is sockets. Over pipes
// a world can be in a bubble of synctest, where a test may say at which moment
// something happens: over sockets, a machine that is busy decides that.
type medium struct {
	t     *testing.T
	pipes bool
	// beat is the time between two writes of somebody who never stops: in a bubble,
	// time passes only while everybody waits.
	beat time.Duration
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// overEach runs a test over sockets, and in a bubble over pipes.
func overEach(t *testing.T, name string, test func(medium)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		test(medium{t: t})
	})
	t.Run(name+", in a bubble", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(medium{t: t, pipes: true, beat: 100 * time.Millisecond}) })
	})
}

// within checks, where the time is ours, that no more than most has passed.
func (m medium) within(since time.Time, most time.Duration) {
	m.t.Helper()
	if took := time.Since(since); m.pipes && took > most {
		m.t.Errorf("took %v, more than %v", took, most)
	}
}

// carry returns how a server that has not started is reached.
func (m medium) carry(s *httptest.Server) dialer {
	if !m.pipes {
		return new(net.Dialer).DialContext
	}
	p := &pipes{Listener: s.Listener, conns: make(chan net.Conn), closed: make(chan struct{})}
	s.Listener = p
	return p.dial
}

// pipes is a listener in memory. Of the one of a server it has the address.
type pipes struct {
	net.Listener
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Listener.Close()
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
