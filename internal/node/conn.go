package node

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
)

// conn is a connection into a machine. The box knows all of them: a machine
// that ends says no goodbye, and whoever reads from it would wait for ever.
type conn struct {
	net.Conn

	b *Box
}

// connect takes over a connection, unless the life of the box is over.
func (b *Box) connect(c net.Conn) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return nil, errors.Join(context.Cause(b.life), c.Close())
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
