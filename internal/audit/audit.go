// Package audit keeps the log of changes, with their callers, and of denied requests. It
// decides which lines are written and when; a [Store] stores them.
//
// Three things hold. The line of a change is on disk before the change is made.
// Lines of many requests share a transaction. What strangers do takes a bounded
// number of lines: those beyond are counted.
package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/ratelimit"
)

// A Store stores lines.
type Store interface {
	// WriteAudit adds lines, and gives those that were added before their
	// outcome, in one transaction.
	WriteAudit(ctx context.Context, add []Record, settle []doze.AuditLine) error
	// LastAudit is the largest id of a line, or empty.
	LastAudit(ctx context.Context) (string, error)
	// TrimAudit removes lines of before a moment, and on each shelf all but the
	// newest ones.
	TrimAudit(ctx context.Context, before time.Time, shelves map[Shelf]int) error
}

// Class says with which lines a line is kept: each class of a workspace has room
// of its own, so that nobody pushes out what is worth more.
type Class string

// The classes.
const (
	Change   Class = "change"   // who could do it did, or tried
	Denial   Class = "denial"   // somebody with a credential was denied
	Stranger Class = "stranger" // somebody without
	System   Class = "system"   // the platform did it by itself
)

// rooms are how many lines each class of a workspace has at most. A line has up
// to 2 KB, and 500 bytes usually.
var rooms = map[Class]int{Change: 100_000, Denial: 10_000, Stranger: 100_000, System: 20_000}

// Shelf is where lines are kept together.
type Shelf struct {
	Workspace string
	Class     Class
}

// Record is a line and its class.
type Record struct {
	doze.AuditLine
	Class Class
}

const (
	// writeTimeout bounds a transaction, after which a change is refused.
	writeTimeout = 10 * time.Second
	// lag is how long an outcome waits for its transaction, if no other line
	// comes before.
	lag = time.Second
	// laterMax is how many lines wait at most; the next one begins their
	// transaction.
	laterMax = 256
	// lostMax is how many of those are kept while the records are out of reach.
	lostMax = 10_000
	// countTime is how often requests that were only counted get their line.
	countTime = time.Minute
	// sourcesMax bounds the sources, and the owners of credentials, that are
	// counted apart, in a few MB. A source beyond is counted with others.
	sourcesMax = 4096
	// loudest is how many sources get a line of their own for what was counted,
	// each [countTime]: those of the most requests.
	loudest = 100
	// trimAfter is how many lines a shelf gets until it is looked at.
	trimAfter = 1000
	// ageTime is how often old lines are removed.
	ageTime = time.Hour
)

var (
	// denialRate is how many lines one source without a credential gets, or one
	// owner of credentials, for denied requests: an attack is a few lines and a
	// number.
	denialRate = ratelimit.Limit{PerSecond: 1.0 / 30, Burst: 20}
	// strangerRate is that of all strangers together. With the lines of the
	// loudest, an attack by any number of sources needs hours to fill a room.
	strangerRate = ratelimit.Limit{PerSecond: 1, Burst: 1000}
)

// who is what limits count by: the source of strangers, and the owner of a
// credential wherever it is used.
type who struct {
	from netip.Prefix
	sub  string
}

// Journal writes lines. It is safe for concurrent use.
type Journal struct {
	store     Store
	retention time.Duration
	denials   *ratelimit.Buckets[who]
	strangers *ratelimit.Buckets[string]
	writers   sync.WaitGroup

	mu      sync.Mutex
	next    *batch                 // guarded by mu; what the next transaction writes, or nil
	writing bool                   // guarded by mu; somebody takes next until it is nil
	last    int64                  // guarded by mu; id of the last line; 0: not known yet
	held    *lru.LRU[who, *Record] // guarded by mu; counted requests of strangers without a line yet
	owned   *lru.LRU[who, *Record] // guarded by mu; the same, of owners of credentials
	rest    *Record                // guarded by mu; the same, of several sources, or nil
	grown   map[Shelf]int          // guarded by mu; lines since a shelf was trimmed
}

// batch is what one transaction writes.
type batch struct {
	add    []*Record
	settle []doze.AuditLine
	done   chan struct{}
	err    error // once done is closed
}

// New returns a journal that keeps lines for a time. It works at once;
// [Journal.Run] belongs to it.
func New(k Store, retention time.Duration) *Journal {
	j := &Journal{
		store: k, retention: retention, grown: map[Shelf]int{},
		denials: ratelimit.New[who](denialRate, sourcesMax), strangers: ratelimit.New[string](strangerRate, 1),
	}
	held, err := lru.NewLRU(sourcesMax, func(_ who, r *Record) { j.mergeLocked(r) })
	if err != nil {
		panic(err) // sourcesMax is a constant of ours
	}
	owned, err := lru.NewLRU(sourcesMax, func(_ who, r *Record) { j.addLocked(r) })
	if err != nil {
		panic(err)
	}
	j.held, j.owned = held, owned
	return j
}

// Run writes what waits, and removes what is old, until ctx ends. Then it writes
// what is left.
func (j *Journal) Run(ctx context.Context) error {
	tick := time.NewTicker(lag)
	defer tick.Stop()
	counted, aged := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			last := context.WithoutCancel(ctx)
			j.count()
			err := j.Flush(last)
			j.writers.Wait()
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(counted) >= countTime {
			j.count()
			counted = now
		}
		j.start()
		if err := j.trim(ctx, now, now.Sub(aged) >= ageTime); err != nil && ctx.Err() == nil {
			slog.ErrorContext(ctx, "old lines of the audit log are not removed yet", "err", err)
		} else if now.Sub(aged) >= ageTime {
			aged = now
		}
	}
}

// Begin writes the line of a change that is about to be made. Without a line on
// disk, it must not be made.
func (j *Journal) Begin(ctx context.Context, e *Entry) error {
	e.Outcome = doze.AuditBegun
	r := &Record{e.AuditLine, Change}
	if err := j.commit(ctx, r); err != nil {
		return err
	}
	e.ID, e.Begun = r.ID, true
	return nil
}

// Settle gives a line that was begun its outcome, soon.
func (j *Journal) Settle(e *Entry) {
	bound(&e.AuditLine)
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.waiting()
	b.settle = append(b.settle, e.AuditLine)
	j.hurryLocked(b)
}

// Write writes a line with its outcome.
func (j *Journal) Write(ctx context.Context, l doze.AuditLine, c Class) error {
	return j.commit(ctx, &Record{l, c})
}

// Note writes a line with its outcome, soon.
func (j *Journal) Note(l doze.AuditLine, c Class) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.addLocked(&Record{l, c})
}

// Acted writes what the platform did by itself, soon. What it did is in the records
// already: a crash loses the line alone.
func (j *Journal) Acted(workspace, action, kind, name, outcome, detail string) {
	j.Note(doze.AuditLine{
		Time: doze.Time{Time: time.Now()}, Workspace: workspace, Actor: doze.AuditActor{Type: doze.ActorSystem}, Action: action,
		Object: doze.AuditObject{Kind: kind, Name: name}, Outcome: outcome, Detail: detail,
	}, System)
}

// Tell writes the line of a denied or failed request, soon; of too many of one
// source, their number.
func (j *Journal) Tell(l doze.AuditLine, from netip.Prefix, c Class) {
	by := who{from: from}
	if l.Actor.Sub != "" {
		by = who{sub: l.Actor.Sub}
	}
	own := j.denials.Take(by, 1).OK
	all := c != Stranger || !own || j.strangers.Take("", 1).OK
	j.mu.Lock()
	defer j.mu.Unlock()
	if own && all {
		j.addLocked(&Record{l, c})
		return
	}
	counted := j.held
	if by.sub != "" {
		counted = j.owned
	}
	n := 1
	if r, ok := counted.Peek(by); ok {
		n += r.Count
	}
	l.Count = n // the line is that of the last one
	counted.Add(by, &Record{l, c})
}

// mergeLocked counts requests with those of several sources. Callers hold mu.
func (j *Journal) mergeLocked(r *Record) {
	n := r.Count
	if n == 0 {
		return
	}
	if j.rest != nil {
		n += j.rest.Count
	}
	j.rest = &Record{r.AuditLine, r.Class}
	j.rest.Count, j.rest.Source, j.rest.Detail = n, "", "requests of several sources; the other members are of one of them"
}

// Flush waits until all that came before is written.
func (j *Journal) Flush(ctx context.Context) error { return j.commit(ctx) }

// count gives counted requests their lines.
func (j *Journal) count() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.owned.Purge() // which adds each
	all := j.held.Values()
	slices.SortStableFunc(all, func(a, b *Record) int { return b.Count - a.Count })
	for _, r := range all[:min(len(all), loudest)] {
		j.addLocked(&Record{r.AuditLine, r.Class})
		r.Count = 0 // it has its line
	}
	j.held.Purge() // which merges the others
	if j.rest != nil {
		j.addLocked(j.rest)
		j.rest = nil
	}
}

// addLocked has a line written soon. Callers hold mu.
func (j *Journal) addLocked(r *Record) {
	bound(&r.AuditLine)
	b := j.waiting()
	b.add = append(b.add, r)
	j.hurryLocked(b)
}

// waiting is the batch of the next transaction. Callers hold mu.
func (j *Journal) waiting() *batch {
	if j.next == nil {
		j.next = &batch{done: make(chan struct{})}
	}
	return j.next
}

// hurryLocked begins a transaction if much waits for one. Callers hold mu.
func (j *Journal) hurryLocked(b *batch) {
	if len(b.add)+len(b.settle) >= laterMax {
		j.startLocked()
	}
}

func (j *Journal) start() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next != nil {
		j.startLocked()
	}
}

// startLocked has somebody write batches until there is none. Callers hold mu.
func (j *Journal) startLocked() {
	if !j.writing {
		j.writing = true
		j.writers.Go(j.write)
	}
}

// commit writes lines, with all that wait, and returns when they are on disk. A
// caller that goes away does not end it: others wait for the same transaction.
func (j *Journal) commit(ctx context.Context, all ...*Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j.mu.Lock()
	b := j.waiting()
	for _, r := range all {
		bound(&r.AuditLine)
		b.add = append(b.add, r)
	}
	j.startLocked()
	j.mu.Unlock()
	<-b.done
	return b.err
}

// write writes batches until there is none.
func (j *Journal) write() {
	for {
		j.mu.Lock()
		b := j.next
		if j.next = nil; b == nil {
			j.writing = false
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		if b.err = j.writeBatch(b); b.err != nil {
			slog.Error("the audit log is out of reach: changes are refused", "err", b.err)
		}
		close(b.done)
	}
}

func (j *Journal) writeBatch(b *batch) error {
	// It belongs to no request: many wait for it, or none does any more.
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout) //nolint:forbidigo // it outlives the calls whose lines it writes
	defer cancel()
	if err := j.number(ctx, b); err != nil {
		return err
	}
	if len(b.add)+len(b.settle) == 0 {
		return nil
	}
	add := make([]Record, len(b.add))
	for i, r := range b.add {
		add[i] = *r
	}
	if err := j.store.WriteAudit(ctx, add, b.settle); err != nil {
		j.retain(b)
		return doze.Wrap(err, doze.Unavailable, "the audit log cannot be written now, and nothing is changed without it: try again")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range add {
		j.grown[Shelf{r.Workspace, r.Class}]++
	}
	return nil
}

// number gives the new lines of a batch their ids: the time in microseconds, or
// one more than the id before.
func (j *Journal) number(ctx context.Context, b *batch) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.last == 0 {
		text, err := j.store.LastAudit(ctx)
		if err == nil && text != "" {
			_, err = fmt.Sscanf(text, "%x", &j.last)
		}
		if err != nil {
			return doze.Wrap(err, doze.Unavailable, "the audit log cannot be read now, and nothing is changed without it: try again")
		}
	}
	for _, r := range b.add {
		j.last = max(j.last+1, time.Now().UnixMicro())
		r.ID = fmt.Sprintf("%016x", j.last)
	}
	return nil
}

// retain keeps what nobody waited for, for the next transaction. Lines of changes
// that were refused go: nothing was changed.
func (j *Journal) retain(b *batch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	next := j.waiting()
	for _, r := range b.add {
		if r.Outcome != doze.AuditBegun && len(next.add) < lostMax {
			next.add = append(next.add, r)
		}
	}
	next.settle = append(b.settle[:min(len(b.settle), max(0, lostMax-len(next.settle)))], next.settle...)
}

// trim removes lines of shelves that have grown, and all that are old.
func (j *Journal) trim(ctx context.Context, now time.Time, aged bool) error {
	full := map[Shelf]int{}
	j.mu.Lock()
	for s, n := range j.grown {
		if n >= trimAfter || aged {
			full[s] = rooms[s.Class]
		}
	}
	j.mu.Unlock()
	before := time.Time{}
	if aged {
		before = now.Add(-j.retention)
	}
	if len(full) == 0 && before.IsZero() {
		return nil
	}
	if err := j.store.TrimAudit(ctx, before, full); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for s := range full {
		delete(j.grown, s)
	}
	return nil
}
