package node

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"

	"doze"
	"doze/internal/machine"
)

// conn is a connection into a machine. The box knows all of them: a machine
// that ends says no goodbye, and whoever reads from it would wait for ever.
type conn struct {
	net.Conn

	b *Box
}

// awake returns the machine, if somebody can be reached in it. Preconditions:
// mu is held.
func (b *Box) awake() (machine.Machine, error) {
	switch {
	case b.life.Err() != nil:
		return nil, context.Cause(b.life)
	case b.phase == doze.Running || b.phase == doze.Starting:
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

// hangUp closes all connections into the machine.
func (b *Box) hangUp() {
	b.client.CloseIdleConnections() // first, so that no request picks a closed one
	b.mu.Lock()
	conns := slices.Collect(maps.Keys(b.conns))
	b.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // there is nothing to be done about it
	}
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
