package control

import (
	"context"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/store"
)

// overdueMax is how long a caller waits for what is due to be recorded. Behind a
// database that takes longer, it sees what the records say.
const overdueMax = 2 * time.Second

// deadlines is when a record has to be looked at next.
type deadlines struct {
	rang bell.Bell // a deadline may have become earlier

	mu   sync.Mutex
	next time.Time     // guarded by mu; the earliest deadline, zero for none
	met  chan struct{} // guarded by mu; closed and replaced when what was due is recorded
}

func newDeadlines() *deadlines { return &deadlines{rang: bell.New(), met: make(chan struct{})} }

// by has the loop look at the records no later than at a deadline, if it is one.
func (a *deadlines) by(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !at.IsZero() && (a.next.IsZero() || at.Before(a.next)) {
		a.next = at.Round(0)
	}
	a.rang.Ring()
}

// set notes the earliest deadline of those that are left.
func (a *deadlines) set(next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = next
	close(a.met)
	a.met = make(chan struct{})
}

// overdue returns what is closed at the next news, if a deadline up to now is not
// recorded yet, or else nil.
func (a *deadlines) overdue(now time.Time) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next.IsZero() || a.next.After(now) {
		return nil
	}
	return a.met
}

// settle waits until the records say what has been due until now: however many
// end at one moment, nobody reads after it that they live.
func (a *deadlines) settle(ctx context.Context) {
	now := time.Now()
	met := a.overdue(now)
	if met == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, overdueMax)
	defer cancel()
	for ; met != nil; met = a.overdue(now) {
		select {
		case <-met:
		case <-ctx.Done():
			return
		}
	}
}

// ends tells readers when sandboxes have ended. Its zero value is ready.
type ends struct {
	mu  sync.Mutex
	all map[string]chan struct{} // guarded by mu; by UID, closed and removed at the end
}

// of returns what is closed when a sandbox has ended, or when somebody should look again.
func (e *ends) of(uid string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[string]chan struct{}{}
	}
	if e.all[uid] == nil {
		e.all[uid] = make(chan struct{})
	}
	return e.all[uid]
}

// tell has the readers of a sandbox look again.
func (e *ends) tell(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.all[uid]; c != nil {
		close(c)
		delete(e.all, uid)
	}
}

// afterEnd returns sb as it is after its end, if its deadline has come and it has no
// grace period. The end takes a moment on a busy host, and readers who know the
// deadline expect to find it ended. If the end takes longer than [overdueMax], sb is
// what the record says.
func (s *Server) afterEnd(ctx context.Context, sb store.Sandbox) (store.Sandbox, error) {
	if sb.Phase != doze.Deleting || grace(sb) > 0 || !passed(deadline(sb, sb.LastUsed), time.Now()) {
		return sb, nil
	}
	ctx, cancel := context.WithTimeout(ctx, overdueMax)
	defer cancel()
	for {
		told := s.ends.of(sb.UID)
		now, err := s.Store.Sandbox(context.WithoutCancel(ctx), sb.UID)
		if err != nil || now.Phase != doze.Deleting {
			s.ends.tell(sb.UID)
			return now, err
		}
		select {
		case <-told:
		case <-ctx.Done():
			return now, nil
		}
	}
}

// Settle waits until the records say what has been due until now.
func (s *Server) Settle(ctx context.Context) { s.expiry.settle(ctx) }
