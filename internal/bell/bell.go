// Package bell wakes loops that wait for something to do.
package bell

import (
	"context"
	"time"
)

// A Bell wakes a loop. Ringing it twice before the loop listens is as good as
// once.
type Bell chan struct{}

// New returns a bell that has not rung.
func New() Bell { return make(Bell, 1) }

// Ring wakes the loop now, or at its next wait.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// Wait blocks until the bell rings or d is over, and reports whether ctx is
// still alive.
func (b Bell) Wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-b:
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
