package node

import (
	"context"
	"sync"

	"github.com/dozehq/doze/internal/fleet"
)

// reports is the queue from the boxes to control. It never blocks a box.
type reports struct {
	mu    sync.Mutex
	list  []fleet.Report // guarded by mu
	ready chan struct{}  // holds one token while list is not empty
}

func newReports() *reports { return &reports{ready: make(chan struct{}, 1)} }

func (q *reports) put(r fleet.Report) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, r)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Remark has control write something about a sandbox into its events. It does not wait.
func (n *Node) Remark(uid, message string) {
	if b := n.box(uid); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.note(message)
	}
}

// run hands reports on, in order, until ctx ends and the queue is empty.
func (q *reports) run(ctx context.Context, send func(fleet.Report)) {
	for {
		last := ctx.Err() != nil
		q.mu.Lock()
		list := q.list
		q.list = nil
		q.mu.Unlock()
		for _, r := range list {
			send(r)
		}
		if len(list) > 0 {
			continue
		}
		if last {
			return
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
		}
	}
}
