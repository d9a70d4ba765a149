package agent

import (
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

const (
	// lullAfter is how long nobody may have asked for anything before memory is
	// given back: below the time after which a sandbox falls asleep, so that a
	// checkpoint is without it.
	lullAfter = 2 * time.Second
	// lullMin is how much must have been allocated since the last time. To look
	// for garbage takes some milliseconds; a few small requests leave none.
	lullMin = 2 << 20
)

// lull gives back the memory that requests have left behind, once none comes. Go
// gives back what the next ones could use slowly, and garbage only after it has
// grown: every idle sandbox would keep that of its busiest second.
type lull struct {
	last  atomic.Int64  // unix nanoseconds when a request ended
	armed atomic.Bool   // a timer is running
	freed atomic.Uint64 // what was allocated when it was last given back, in bytes
}

// mark says that a request ended.
func (l *lull) mark() {
	l.last.Store(time.Now().UnixNano())
	if l.armed.CompareAndSwap(false, true) {
		time.AfterFunc(lullAfter, l.check)
	}
}

// check gives memory back, or waits on if there were requests since.
func (l *lull) check() {
	if since := time.Since(time.Unix(0, l.last.Load())); since >= 0 && since < lullAfter {
		time.AfterFunc(lullAfter-since, l.check)
		return
	}
	l.armed.Store(false)
	if allocated() >= l.freed.Load()+lullMin {
		l.free()
	}
}

// free gives memory back now.
func (l *lull) free() {
	debug.FreeOSMemory()
	l.freed.Store(allocated())
}

// allocated is what this process has taken since its start, in bytes.
func allocated() uint64 {
	all := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64()
}
