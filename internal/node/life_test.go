package node

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
)

// TestLifeEndsFirst: a call whose connection was cut because the node stops says that, also
// when its own context has not heard of it yet.
func TestLifeEndsFirst(t *testing.T) {
	var tasks sync.WaitGroup
	l := newLife(t.Context(), &tasks)
	if err := l.cause(t.Context(), io.EOF); err != io.EOF { //nolint:errorlint // the same one
		t.Errorf("while it lasts the cause is %v", err)
	}
	l.end(fleet.ErrStopping)
	if err := l.cause(t.Context(), io.EOF); err != fleet.ErrStopping { //nolint:errorlint // the same one
		t.Errorf("after its end the cause is %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	lasting := newLife(t.Context(), &tasks)
	cancel(io.ErrClosedPipe)
	if err := lasting.cause(ctx, io.EOF); err != io.ErrClosedPipe { //nolint:errorlint // the same one
		t.Errorf("of a caller who went the cause is %v", err)
	}
}
