// Package relay joins two connections.
package relay

import (
	"context"
	"io"
	"sync"
)

// A Conn is an end of a connection of which one direction can end before the other.
type Conn interface {
	io.WriteCloser
	CloseWrite() error
}

// Join copies what is read of each end to the other one, and passes the end of each
// direction on. It returns when both have ended, one broke, or ctx ends, and both
// connections are closed then. An end is read from a reader of its own, since a part of it
// may have been read before.
func Join(ctx context.Context, a Conn, fromA io.Reader, b Conn, fromB io.Reader) {
	cut := func() {
		_ = a.Close()
		_ = b.Close()
	}
	defer cut()
	defer context.AfterFunc(ctx, cut)()
	var other sync.WaitGroup
	other.Go(func() { carry(b, fromA, cut) })
	carry(a, fromB, cut)
	other.Wait()
}

// carry copies one direction. After an error the other direction ends, too: nobody could
// tell the peer otherwise.
func carry(to Conn, from io.Reader, cut func()) {
	if _, err := io.Copy(to, from); err != nil || to.CloseWrite() != nil {
		cut()
	}
}
