package node

import (
	"context"
	"sync"

	"github.com/dozehq/doze/internal/node/conn"
)

// life is how long a box lasts. It ends when the box is deleted or the node stops,
// and its cause is public.
type life struct {
	context.Context //nolint:containedctx // a box is one of the few things that outlive calls

	end   context.CancelCauseFunc
	tasks *sync.WaitGroup // goroutines that the node waits for
}

func newLife(ctx context.Context, tasks *sync.WaitGroup) life {
	l := life{tasks: tasks}
	l.Context, l.end = context.WithCancelCause(ctx)
	return l
}

// spawn runs do in a goroutine that the node waits for. At the end of the life
// nothing new begins, and it reports false. Preconditions: mu of the box is held.
func (l *life) spawn(do func()) bool {
	if l.Err() != nil {
		return false
	}
	l.tasks.Go(do)
	return true
}

// bound returns a context that ends with ctx and with the life.
func (l *life) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return conn.Within(ctx, l.Context)
}

// cause is why ctx, which bound made, ended, or err. A life that ends cuts connections. A
// reader of one may hear of that before ctx has ended.
func (l *life) cause(ctx context.Context, err error) error {
	if l.Err() != nil {
		return context.Cause(l)
	}
	return cause(ctx, err)
}

// A turn is held by the goroutine that changes a machine.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take takes the turn.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // both were ready
		t.leave()
		return context.Cause(ctx)
	}
	return nil
}

// try takes the turn if nobody has it.
func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// leave ends the turn.
func (t turn) leave() { <-t }
