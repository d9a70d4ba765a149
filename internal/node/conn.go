package node

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// conn is a connection into a machine. The box knows all of them: a machine
// that ends says no goodbye, and whoever reads from it would wait for ever.
type conn struct {
	net.Conn

	b *Box
}

// reachable are the phases in which there is somebody to talk to; in all but
// the first, only we do.
var reachable = []doze.Phase{doze.Running, doze.Starting, doze.Archiving, doze.Unarchiving, doze.Disabling}

// awake returns the machine, if somebody can be reached in it. Preconditions:
// mu is held.
func (b *Box) awake() (machine.Machine, error) {
	switch {
	case b.life.Err() != nil:
		return nil, context.Cause(b.life)
	case b.machine != nil && slices.Contains(reachable, b.phase):
		return b.machine, nil
	default: // it fell asleep, or ended, under a request
		return nil, doze.Errorf(doze.Unavailable, "the sandbox is %s", b.phase)
	}
}

// connect takes over a new connection. What comes after hangUp is not wanted.
func (b *Box) connect(c net.Conn) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.awake(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	own := &conn{c, b}
	b.conns[own] = struct{}{}
	return own, nil
}

// A line ends when all connections into a machine are closed: one that is being
// made then is given up, since nobody will answer.
type line struct {
	ctx context.Context //nolint:containedctx // its cause is public
	cut context.CancelCauseFunc
}

func newLine(life context.Context) line {
	ctx, cut := context.WithCancelCause(life)
	return line{ctx, cut}
}

// errHungUp is for callers that were about to connect.
var errHungUp = doze.Errorf(doze.Unavailable, "the sandbox stood still, or ended, before the connection to it was made: try again")

// onLine returns a context that ends with ctx and with the line.
func (b *Box) onLine(ctx context.Context) (context.Context, context.CancelFunc) {
	b.mu.Lock()
	on := b.line.ctx
	b.mu.Unlock()
	return within(ctx, on)
}

// hangUp closes all connections into the machine, those that are being made
// included.
func (b *Box) hangUp() {
	b.client.CloseIdleConnections() // first, so that no request picks a closed one
	b.mu.Lock()
	b.line.cut(errHungUp)
	b.line = newLine(b.life)
	conns := slices.Collect(maps.Keys(b.conns))
	early := b.early
	b.early = nil
	b.mu.Unlock()
	if early != nil {
		early.drop()
	}
	for _, c := range conns {
		_ = c.Close() // there is nothing to be done about it
	}
}

// earlyMax is how long a connection that was made early waits for its request.
// It is far below what servers allow a new connection to be silent.
const earlyMax = time.Second

// An early connection is made while the machine wakes: the engine's network
// answers before the guest runs, and the first request finds it ready.
type early struct {
	port uint16
	drop func()        // closes it, unless it was received
	conn chan net.Conn // gives it once, or is closed
}

// reach begins an early connection. Preconditions: the turn is held.
func (b *Box) reach(m machine.Machine, port uint16) {
	ctx, cancel := context.WithTimeout(b.life, earlyMax)
	e := &early{port: port, conn: make(chan net.Conn)}
	e.drop = func() {
		cancel()
		for c := range e.conn { // until it is over
			_ = c.Close()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.spawn(func() {
		defer close(e.conn)
		defer cancel()
		c, err := m.Dial(ctx, port)
		if err != nil {
			return // the request will see for itself
		}
		select {
		case e.conn <- c:
		case <-ctx.Done():
			_ = c.Close()
		}
	}) {
		cancel()
		return
	}
	b.early = e
}

// made returns the early connection to a port, if there is one.
func (b *Box) made(port uint16) (net.Conn, bool) {
	b.mu.Lock()
	e := b.early
	if e == nil || e.port != port {
		b.mu.Unlock()
		return nil, false
	}
	b.early = nil
	b.mu.Unlock()
	c, ok := <-e.conn // soon: it has a deadline
	return c, ok
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.b.mu.Lock()
	delete(c.b.conns, c)
	c.b.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends what we send and goes on reading, which clients of an
// upgraded connection may do.
func (c *conn) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite closes one direction of a connection that can do so.
func closeWrite(c any) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
