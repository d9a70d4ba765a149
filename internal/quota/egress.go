package quota

import (
	"fmt"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// egress is what the sandboxes of workspaces sent and received on a day in UTC.
type egress struct {
	mu  sync.RWMutex
	all map[string]*day // guarded by mu; by workspace
}

// day is the egress of one workspace. Its counter only grows.
type day struct {
	count  func() uint64 // bytes since the process began
	date   string        // the day that the other fields are about
	base   uint64        // of the counter, when bytes was right
	bytes  int64         // on that day until then
	barred bool          // at the last look of Turn
}

// Dates name days in UTC.
func dateOf(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// used is what d says at a moment. Preconditions: the lock is held, for reading
// at least.
func (d *day) used(now time.Time) int64 {
	if d.date != dateOf(now) {
		return 0 // nobody has looked since midnight: what came then is seen by Turn
	}
	return d.bytes + int64(d.count()-d.base) //nolint:gosec // G115: no process counts that many bytes
}

// Meter has the bytes of a workspace counted by count from now on. There is one
// counter for each workspace: a second one takes its place.
func (b *Book) Meter(workspace string, count func() uint64) {
	e := &b.egress
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	before := int64(0)
	if d := e.all[workspace]; d != nil {
		before = d.used(now)
	}
	e.all[workspace] = &day{count: count, date: dateOf(now), base: count(), bytes: before}
}

// Recall adds what an earlier process counted of a workspace on a day. Days that
// are over do not count.
func (b *Book) Recall(workspace, date string, bytes int64) {
	e := &b.egress
	e.mu.Lock()
	defer e.mu.Unlock()
	if date != dateOf(time.Now()) {
		return
	}
	if d := e.all[workspace]; d != nil {
		d.bytes += bytes
		return
	}
	e.all[workspace] = &day{count: func() uint64 { return 0 }, date: date, bytes: bytes}
}

// Egress returns what each workspace has sent and received today, in bytes, and
// which day that is.
func (b *Book) Egress() (date string, bytes map[string]int64) {
	e := &b.egress
	e.mu.RLock()
	defer e.mu.RUnlock()
	now := time.Now()
	bytes = map[string]int64{}
	for workspace, d := range e.all {
		if n := d.used(now); n > 0 {
			bytes[workspace] = n
		}
	}
	return dateOf(now), bytes
}

// EgressOf is what one workspace has sent and received today, in bytes.
func (b *Book) EgressOf(workspace string) int64 {
	b.egress.mu.RLock()
	defer b.egress.mu.RUnlock()
	if d := b.egress.all[workspace]; d != nil {
		return d.used(time.Now())
	}
	return 0
}

// Barred returns why the sandboxes of a workspace may send nothing more today,
// or nothing. It is asked for every connection.
func (b *Book) Barred(workspace string) string {
	limit := b.Limit(workspace, doze.QuotaEgress)
	if b.EgressOf(workspace) < limit<<20 {
		return ""
	}
	return fmt.Sprintf("the workspace has used up its quota %s of %d MiB: it is open again from 00:00 UTC on", doze.QuotaEgress, limit)
}

// Turn begins a new day where one is over, and reports whether Barred says
// something else of a workspace than at the last call: its connections have to
// be looked at.
func (b *Book) Turn() (changed bool) {
	e := &b.egress
	e.mu.Lock()
	now := time.Now()
	for workspace, d := range e.all {
		if date := dateOf(now); d.date != date {
			d.date, d.base, d.bytes = date, d.count(), 0
		}
		barred := d.used(now) >= b.Limit(workspace, doze.QuotaEgress)<<20
		if barred && !d.barred {
			b.Refused(doze.QuotaEgress)
		}
		changed = changed || barred != d.barred
		d.barred = barred
	}
	e.mu.Unlock()
	return changed
}
