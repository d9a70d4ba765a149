package host

import (
	"maps"
	"sync"
)

// RemoteQuotas are [Quotas] that control decides in another process. It is safe for
// concurrent use.
type RemoteQuotas struct {
	mu     sync.Mutex
	counts map[string]func() uint64 // guarded by mu; by workspace
	barred map[string]string        // guarded by mu; why, by workspace
}

var _ Quotas = (*RemoteQuotas)(nil)

// NewRemoteQuotas bar nobody yet.
func NewRemoteQuotas() *RemoteQuotas { return &RemoteQuotas{counts: map[string]func() uint64{}} }

// Meter implements [Quotas].
func (q *RemoteQuotas) Meter(workspace string, count func() uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts[workspace] = count
}

// Barred implements [Quotas].
func (q *RemoteQuotas) Barred(workspace string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.barred[workspace]
}

// Traffic returns what sandboxes of each workspace have sent and received since the
// process began, in bytes.
func (q *RemoteQuotas) Traffic() map[string]uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	bytes := map[string]uint64{}
	for workspace, count := range q.counts {
		bytes[workspace] = count()
	}
	return bytes
}

// Bar takes over what control decided, and reports whether that is news: open
// connections have to be looked at.
func (q *RemoteQuotas) Bar(barred map[string]string) (changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	same := func(string, string) bool { return true } // the reason ends no connection
	changed = !maps.EqualFunc(q.barred, barred, same)
	q.barred = barred
	return changed
}
