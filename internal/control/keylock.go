package control

import (
	"context"
	"errors"
	"sync"

	"github.com/dozehq/doze"
)

// errDeleted ends what is being done to a sandbox that somebody deletes.
var errDeleted = doze.Errorf(doze.Conflict, "the sandbox was deleted meanwhile")

// unlessDeleted is err, which ended what was done in a turn. What a deletion cut
// off failed for that, whatever it met.
func unlessDeleted(life context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(life), errDeleted) {
		return errDeleted
	}
	return err
}

// keylock lets one change at a time be made to a sandbox, while changes of
// others go on.
type keylock struct {
	mu   sync.Mutex
	held map[string]*lock // guarded by mu; by uid
}

type lock struct {
	done   chan struct{}
	cancel context.CancelCauseFunc
}

func newKeylock() *keylock { return &keylock{held: map[string]*lock{}} }

// take waits for the turn of a sandbox until ctx ends. The context that it
// returns has the values of ctx and ends at release, or when the sandbox is
// deleted.
func (t *keylock) take(ctx context.Context, uid string) (_ context.Context, release func(), err error) {
	for {
		life, release, busy := t.try(context.WithoutCancel(ctx), uid)
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

// try takes the turn of a sandbox if it is free; otherwise it returns what is
// closed when it may be. The context that it returns ends with ctx as well.
func (t *keylock) try(ctx context.Context, uid string) (_ context.Context, release func(), busy <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, ok := t.held[uid]; ok {
		return nil, nil, other.done
	}
	life, cancel := context.WithCancelCause(ctx)
	mine := &lock{make(chan struct{}), cancel}
	t.held[uid] = mine
	return life, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.held, uid)
		cancel(nil)
		close(mine.done)
	}, nil
}

// interrupt ends what is being done to a sandbox, for it is deleted. It does
// not wait.
func (t *keylock) interrupt(uid string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if held, ok := t.held[uid]; ok {
		held.cancel(errDeleted)
	}
}
