package planetest

import (
	"context"
	"sync"
)

// bucket is one in memory that knows what was removed.
type bucket struct {
	mu     sync.Mutex
	purged []string // guarded by mu; ids
	broken error    // guarded by mu; what it answers
}

func (*bucket) URL() string { return "http://s3.test/drives" }

func (b *bucket) Purge(_ context.Context, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return b.broken
	}
	b.purged = append(b.purged, id)
	return nil
}

// Fail has the bucket answer an error from now on; nil is none.
func (b *bucket) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
}

// Removed returns how many drives were removed.
func (b *bucket) Removed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.purged)
}
