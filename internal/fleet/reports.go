package fleet

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// reportsMax bounds what waits to be recorded. A full queue keeps the newest report
// of each sandbox, from which its phase can be repaired.
const reportsMax = 16 << 10

// reportLag is how long the report of a wake waits. It comes when the wake begins:
// what the database does then would take the processor from it.
const reportLag = 20 * time.Millisecond

// Reports are those that wait to be recorded, in the order in which they came. It is
// safe for concurrent use.
type Reports struct {
	rang chan struct{}

	mu  sync.Mutex
	all []Report // guarded by mu
}

// NewReports returns an empty queue.
func NewReports() *Reports { return &Reports{rang: make(chan struct{}, 1)} }

// Put adds a report. It never waits.
func (q *Reports) Put(r Report) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.ring()
	if len(q.all) < reportsMax {
		q.all = append(q.all, r)
		return
	}
	for i, old := range slices.Backward(q.all) {
		if old.UID == r.UID && !r.Note {
			q.all[i] = r
			return
		}
	}
	slog.Error("report dropped: nobody records it fast enough", "sandbox", r.UID, "phase", r.Phase)
}

func (q *Reports) ring() {
	select {
	case q.rang <- struct{}{}:
	default:
	}
}

// Next removes up to n reports from the queue, and waits until there is one. It
// returns none when ctx ends.
func (q *Reports) Next(ctx context.Context, n int) []Report {
	for {
		if batch := q.take(n); len(batch) > 0 {
			return batch
		}
		select {
		case <-q.rang:
			if q.waking() && !pause(ctx, reportLag) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (q *Reports) take(n int) []Report {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.all))
	batch := slices.Clone(q.all[:n])
	q.all = slices.Delete(q.all, 0, n)
	return batch
}

// waking reports whether the next report is that of a wake.
func (q *Reports) waking() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.all) > 0 && q.all[0].Phase == doze.Waking
}
