package builder

import (
	"context"
	"slices"
	"sync"
)

// queue has builds wait for their turn: the first that may begin is the next. A build lets
// others pass while its workspace has as many under way as it may.
type queue struct {
	most int // builds at a time
	each int // builds at a time of one workspace

	mu      sync.Mutex
	running map[string]int // guarded by mu; by the id of a workspace
	total   int            // guarded by mu; of running
	waiting []*waiter      // guarded by mu; the oldest first
	changed chan struct{}  // guarded by mu; closed when waiting changes
}

// waiter is a build that has not begun.
type waiter struct {
	workspace string
	ready     chan struct{} // closed when it may begin
}

func newQueue(most, each int) *queue {
	return &queue{most: most, each: each, running: map[string]int{}, changed: make(chan struct{})}
}

// enter waits until a build of a workspace may begin. While it waits, it calls tell with the
// place in the queue, at first and whenever that changes. The place counts from 1, and
// running is how many builds are under way. The build has its turn until leave is called.
func (q *queue) enter(ctx context.Context, workspace string, tell func(place, running int)) (leave func(), err error) {
	w := &waiter{workspace, make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	q.admit()
	q.mu.Unlock()
	told := 0
	for {
		place, running, changed := q.look(w)
		if place == 0 {
			return sync.OnceFunc(func() { q.leave(workspace) }), nil
		}
		if place != told {
			tell(place, running)
			told = place
		}
		select {
		case <-w.ready:
		case <-changed:
		case <-ctx.Done():
			if q.giveUp(w) {
				return nil, context.Cause(ctx)
			}
		}
	}
}

// look returns the place of a waiter, or 0 if it has its turn. It returns how many builds
// are under way, too, and what is closed when that changes.
func (q *queue) look(w *waiter) (place, running int, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Index(q.waiting, w) + 1, q.total, q.changed
}

// giveUp takes a waiter out of the queue, and reports false if it has its turn.
func (q *queue) giveUp(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	q.signal()
	return true
}

// leave ends the turn of a build.
func (q *queue) leave(workspace string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total--
	if q.running[workspace]--; q.running[workspace] == 0 {
		delete(q.running, workspace)
	}
	q.admit()
}

// admit has those begin that may. Preconditions: mu is held.
func (q *queue) admit() {
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter) bool {
		if q.total >= q.most || q.running[w.workspace] >= q.each {
			return false
		}
		q.total++
		q.running[w.workspace]++
		close(w.ready)
		return true
	})
	q.signal()
}

// signal says that something changed. Preconditions: mu is held.
func (q *queue) signal() {
	close(q.changed)
	q.changed = make(chan struct{})
}
