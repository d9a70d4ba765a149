package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/trace"
)

// births lets some machines be made at a time, and the others wait. Making one
// takes a processor: of many that are made at once each is late, and so is every
// request to a sandbox that runs. Those that wait are taken from one workspace
// after the other, and in order within each.
type births struct {
	mu      sync.Mutex
	rooms   int                        // constant; that there are
	room    int                        // guarded by mu; that are free
	since   time.Time                  // guarded by mu; since when somebody has always had room
	waiting map[string][]chan struct{} // guarded by mu; by workspace, none is empty
	order   []string                   // guarded by mu; workspaces of waiting, the next one first
}

func newBirths(room int) *births {
	return &births{rooms: room, room: room, waiting: map[string][]chan struct{}{}}
}

// enter waits for room. The caller makes room again with leave.
func (b *births) enter(ctx context.Context, workspace string) (leave func(), err error) {
	b.mu.Lock()
	if b.room > 0 {
		b.take()
		b.mu.Unlock()
		return b.leave, nil
	}
	called := make(chan struct{})
	if len(b.waiting[workspace]) == 0 {
		b.order = append(b.order, workspace)
	}
	b.waiting[workspace] = append(b.waiting[workspace], called)
	b.mu.Unlock()
	defer trace.Next(ctx, trace.Turn).End()
	select {
	case <-called:
		return b.leave, nil
	case <-ctx.Done():
		b.abandon(workspace, called)
		return nil, context.Cause(ctx)
	}
}

// try is enter for a caller that does not wait: it reports false if there is no room.
func (b *births) try() (leave func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.room == 0 {
		return nil, false
	}
	b.take()
	return b.leave, true
}

// take takes room that is free. Preconditions: mu is held.
func (b *births) take() {
	if b.room == b.rooms {
		b.since = time.Now()
	}
	b.room--
}

// busy reports whether somebody has room.
func (b *births) busy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.room < b.rooms
}

// busyFor is for how long somebody has had room without a break; 0 if nobody has.
func (b *births) busyFor(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.room == b.rooms {
		return 0
	}
	return max(1, now.Sub(b.since))
}

// leave calls the next one, or makes room.
func (b *births) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next()
}

// next gives the room to the next one that waits, if one does. Preconditions: mu is
// held.
func (b *births) next() {
	if len(b.order) == 0 {
		b.room++
		return
	}
	workspace := b.order[0]
	b.order = b.order[1:]
	line := b.waiting[workspace]
	close(line[0])
	if line = line[1:]; len(line) == 0 {
		delete(b.waiting, workspace)
		return
	}
	b.waiting[workspace] = line
	b.order = append(b.order, workspace)
}

// abandon is for one that waits no longer, or was called meanwhile.
func (b *births) abandon(workspace string, called chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := b.waiting[workspace]
	i := slices.Index(line, called)
	if i < 0 {
		b.next()
		return
	}
	if line = slices.Delete(line, i, i+1); len(line) > 0 {
		b.waiting[workspace] = line
		return
	}
	delete(b.waiting, workspace)
	b.order = slices.DeleteFunc(b.order, func(w string) bool { return w == workspace })
}
