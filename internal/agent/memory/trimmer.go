package memory

import (
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// trimAfter is the time without a request after which the agent gives memory back.
	// It is shorter than the idle timeout of a sandbox, so that the checkpoint is
	// smaller.
	trimAfter = 2 * time.Second
	// trimMin is how much must have been allocated since the last time. To look
	// for garbage takes some milliseconds; a few small requests leave none.
	trimMin = 2 << 20
)

// Trimmer gives back the memory that requests have left behind, once none comes. Go
// gives back what the next ones could use slowly, and garbage only after it has
// grown: every idle sandbox would keep that of its busiest second.
type Trimmer struct {
	last  atomic.Int64  // unix nanoseconds when a request ended
	armed atomic.Bool   // a timer is running
	freed atomic.Uint64 // what was allocated when it was last given back, in bytes
}

// Mark says that a request ended.
func (t *Trimmer) Mark() {
	t.last.Store(time.Now().UnixNano())
	if t.armed.CompareAndSwap(false, true) {
		time.AfterFunc(trimAfter, t.check)
	}
}

// check gives memory back, or waits on if there were requests since.
func (t *Trimmer) check() {
	if since := time.Since(time.Unix(0, t.last.Load())); since >= 0 && since < trimAfter {
		time.AfterFunc(trimAfter-since, t.check)
		return
	}
	t.armed.Store(false)
	if allocated() >= t.freed.Load()+trimMin {
		t.Free()
	}
}

// Free gives memory back now.
func (t *Trimmer) Free() {
	debug.FreeOSMemory()
	t.freed.Store(allocated())
}

// allocated is what this process has taken since its start, in bytes.
func allocated() uint64 {
	all := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64()
}
