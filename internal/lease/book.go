package lease

import (
	"sync"
	"time"
)

const (
	// slack is the part of a lease by which the granter waits longer than its holder: the
	// rates of two clocks differ by less.
	slack = 0.05
	// slackLeast is the same for short leases.
	slackLeast = 500 * time.Millisecond
	// stall is for how long the granter may stand still without doubting itself: while it
	// did, nobody could renew.
	stall = 2 * time.Second
)

// A Book is what control has granted. Call Tick all the time, also if nothing else is to
// be done. A granter that stood still takes nothing from anybody for the time of a lease. It
// is safe for concurrent use.
type Book struct {
	ttl time.Duration

	mu      sync.Mutex
	granted map[string]*grant // guarded by mu; by node
	ticked  time.Time         // guarded by mu
	quiet   time.Time         // guarded by mu; before it, nothing has lapsed
}

// grant is the lease of a node.
type grant struct {
	epoch uint64
	at    time.Time // of the last renewal
	over  bool      // Tick has said so
}

// A Lapse is the end of a lease.
type Lapse struct {
	Node  string
	Epoch uint64
	At    time.Time // when it was granted last
}

// NewBook returns the book of a granter that begins now. Another one may have granted
// leases until now, for which it could not ask the records for a time grace before.
func NewBook(ttl, grace time.Duration, now time.Time) *Book {
	return &Book{ttl: ttl, granted: map[string]*grant{}, ticked: now, quiet: now.Add(after(ttl) + grace)}
}

// after is how long after a grant its lease is over for sure.
func after(ttl time.Duration) time.Duration {
	return ttl + max(time.Duration(slack*float64(ttl)), slackLeast)
}

// TTL is how long a lease is good.
func (b *Book) TTL() time.Duration { return b.ttl }

// Grant grants a lease to a node in an epoch, from now on, and reports whether it does. One
// that is over is not granted again in its epoch: somebody is about to say that others may
// have what the node had.
func (b *Book) Grant(node string, epoch uint64, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.granted[node]; g != nil && g.over && g.epoch >= epoch {
		return false
	}
	b.granted[node] = &grant{epoch: epoch, at: now}
	return true
}

// Expect is Grant for a node that may have a lease of an earlier granter: it lapses when
// that can be told.
func (b *Book) Expect(node string, epoch uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.granted[node] == nil {
		b.granted[node] = &grant{epoch: epoch}
	}
}

// Release forgets a node which has no lease any more, or needs none.
func (b *Book) Release(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.granted, node)
}

// Good reports whether a node has a lease that has not lapsed.
func (b *Book) Good(node string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.granted[node]
	return g != nil && now.Before(g.at.Add(b.ttl))
}

// RenewedAt is when a node renewed last, or zero.
func (b *Book) RenewedAt(node string) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.granted[node]; g != nil {
		return g.at
	}
	return time.Time{}
}

// Over reports whether Tick has said that the lease of a node in an epoch is over, and nobody
// has released it since.
func (b *Book) Over(node string, epoch uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.granted[node]
	return g != nil && g.over && g.epoch == epoch
}

// Tick returns the leases that are over for sure. They stay in the book, and are not granted
// again in their epochs, until Release.
func (b *Book) Tick(now time.Time) (lapsed []Lapse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.ticked) > stall {
		b.quiet = later(b.quiet, now.Add(after(b.ttl)))
	}
	b.ticked = now
	if now.Before(b.quiet) {
		return nil
	}
	for node, g := range b.granted {
		if !now.Before(g.at.Add(after(b.ttl))) {
			g.over = true
			lapsed = append(lapsed, Lapse{node, g.epoch, g.at})
		}
	}
	return lapsed
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
