package vault

import (
	"container/list"
	"sync"
)

// cacheMost bounds the chunks that a vault remembers, of all sandboxes: about 30 MB.
const cacheMost = 256 << 10

// A cache remembers which chunks sandboxes had after their last save. What it says is
// verified before it counts, and a save without it asks the bucket.
type cache struct {
	mu    sync.Mutex
	byID  map[string]*list.Element // guarded by mu; of remembered
	order list.List                // guarded by mu; the last used first
	count int                      // guarded by mu; of chunks
}

type remembered struct {
	id    string
	marks map[name]mark
}

// take returns what is remembered of a sandbox, and forgets it; nil if nothing is.
func (c *cache) take(id string) map[name]mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop(c.byID[id])
}

func (c *cache) forget(id string) { c.take(id) }

// put remembers the chunks of a sandbox, and forgets those that were not used for the
// longest time. More than there is room for are not remembered.
func (c *cache) put(id string, marks map[name]mark) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(c.byID[id])
	if len(marks) > cacheMost {
		return
	}
	if c.byID == nil {
		c.byID = map[string]*list.Element{}
	}
	c.byID[id] = c.order.PushFront(remembered{id, marks})
	for c.count += len(marks); c.count > cacheMost; {
		c.drop(c.order.Back())
	}
}

// drop expects the lock.
func (c *cache) drop(e *list.Element) map[name]mark {
	if e == nil {
		return nil
	}
	r, _ := c.order.Remove(e).(remembered)
	delete(c.byID, r.id)
	c.count -= len(r.marks)
	return r.marks
}
