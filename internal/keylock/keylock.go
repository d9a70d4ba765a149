// Package keylock has a lock for each of any number of keys.
package keylock

import (
	"context"
	"sync"
)

// Locks lets one change at a time be made to what a key names, while changes of
// others go on.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock // guarded by mu; by key
}

type lock struct {
	done   chan struct{}
	cancel context.CancelCauseFunc
}

// New returns locks that nobody holds.
func New() *Locks { return &Locks{held: map[string]*lock{}} }

// Take waits for the turn of a key until ctx ends. The context that it
// returns has the values of ctx and ends at release, or when somebody interrupts
// it.
func (t *Locks) Take(ctx context.Context, key string) (_ context.Context, release func(), err error) {
	for {
		life, release, busy := t.Try(context.WithoutCancel(ctx), key)
		if busy == nil {
			return life, release, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// Try takes the turn of a key if it is free; otherwise it returns what is
// closed when it may be. The context that it returns ends with ctx as well.
func (t *Locks) Try(ctx context.Context, key string) (_ context.Context, release func(), busy <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, ok := t.held[key]; ok {
		return nil, nil, other.done
	}
	life, cancel := context.WithCancelCause(ctx)
	mine := &lock{make(chan struct{}), cancel}
	t.held[key] = mine
	return life, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.held, key)
		cancel(nil)
		close(mine.done)
	}, nil
}

// Interrupt ends what is being done in the turn of a key, for a reason. It does not wait.
func (t *Locks) Interrupt(key string, reason error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if held, ok := t.held[key]; ok {
		held.cancel(reason)
	}
}
