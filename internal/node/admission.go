package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/trace"
)

// crowdLook is the pause between looks at the processors while somebody waits.
const crowdLook = 10 * time.Millisecond

// An admission lets some in at a time, and the others wait. What it is for takes a
// processor: of many at once each is late, and so is every request to a sandbox that
// runs. Those that wait are taken from one workspace after the other, and in order within
// each.
type admission struct {
	most    int         // how many are in at a time
	crowded func() bool // with one, more than most are in while it reports false

	mu      sync.Mutex
	in      int                        // guarded by mu; how many are in
	since   time.Time                  // guarded by mu; since when somebody has always been in
	queued  time.Time                  // guarded by mu; since when somebody has always waited
	waiting map[string][]chan struct{} // guarded by mu; by workspace, none is empty
	order   []string                   // guarded by mu; workspaces of waiting, the next one first
	looks   bool                       // guarded by mu; a look at the processors is due
}

func newAdmission(most int, crowded func() bool) *admission {
	return &admission{most: most, crowded: crowded, waiting: map[string][]chan struct{}{}}
}

// enter waits to be let in. The caller makes room for the next one with leave.
func (a *admission) enter(ctx context.Context, workspace string) (leave func(), err error) {
	if leave, ok := a.try(); ok {
		return leave, nil
	}
	called := make(chan struct{})
	a.queue(workspace, called)
	defer trace.Next(ctx, trace.Turn).End()
	select {
	case <-called:
		return a.leave, nil
	case <-ctx.Done():
		a.abandon(workspace, called)
		return nil, context.Cause(ctx)
	}
}

// try is enter for a caller that does not wait: it reports false if it is not let in.
func (a *admission) try() (leave func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.order) > 0 || !a.room() {
		return nil, false
	}
	a.take()
	return a.leave, true
}

// room reports whether one more may come in. Preconditions: mu is held.
func (a *admission) room() bool {
	return a.in < a.most || a.crowded != nil && !a.crowded()
}

// take lets one in. Preconditions: mu is held.
func (a *admission) take() {
	if a.in == 0 {
		a.since = time.Now()
	}
	a.in++
}

// queue adds one that waits, and calls it if there is room by now.
func (a *admission) queue(workspace string, called chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.order) == 0 {
		a.queued = time.Now()
	}
	if len(a.waiting[workspace]) == 0 {
		a.order = append(a.order, workspace)
	}
	a.waiting[workspace] = append(a.waiting[workspace], called)
	a.next()
}

// busyFor is for how long somebody has been in without a break; 0 if nobody is.
func (a *admission) busyFor(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in == 0 {
		return 0
	}
	return max(1, now.Sub(a.since))
}

// queuedFor is for how long somebody has waited without a break; 0 if nobody does.
func (a *admission) queuedFor(now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.order) == 0 {
		return 0
	}
	return max(1, now.Sub(a.queued))
}

// leave makes room for the next one.
func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.in--
	a.next()
}

// next calls those that wait while there is room. Others come in when somebody leaves, or
// when the processors have room: for that, a look is due. Preconditions: mu is held.
func (a *admission) next() {
	for len(a.order) > 0 && a.in < a.most {
		a.call()
	}
	if len(a.order) > 0 && a.crowded != nil && !a.looks {
		a.looks = true
		time.AfterFunc(crowdLook, a.look)
	}
}

// look calls one that waits if the processors have room for it: what it does shows at the
// next look.
func (a *admission) look() {
	crowded := a.crowded()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looks = false
	if len(a.order) > 0 && !crowded {
		a.call()
	}
	a.next()
}

// call lets in the next one that waits. Preconditions: mu is held, and somebody waits.
func (a *admission) call() {
	workspace := a.order[0]
	line := a.waiting[workspace]
	close(line[0])
	a.take()
	a.order = a.order[1:]
	if line = line[1:]; len(line) == 0 {
		delete(a.waiting, workspace)
		return
	}
	a.waiting[workspace] = line
	a.order = append(a.order, workspace)
}

// abandon is for one that waits no longer, or was called meanwhile.
func (a *admission) abandon(workspace string, called chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	line := a.waiting[workspace]
	i := slices.Index(line, called)
	if i < 0 {
		a.in--
		a.next()
		return
	}
	if line = slices.Delete(line, i, i+1); len(line) > 0 {
		a.waiting[workspace] = line
		return
	}
	delete(a.waiting, workspace)
	a.order = slices.DeleteFunc(a.order, func(w string) bool { return w == workspace })
}
