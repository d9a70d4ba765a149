package launcher

import (
	"sync/atomic"
	"time"
)

const (
	// hurryAfter is for how long after a wake the first answer is taken to be under way.
	hurryAfter = 30 * time.Millisecond
	// hurryLook is the pause between looks at whether that is over.
	hurryLook = 5 * time.Millisecond
	// hurryShare is how much longer than it works a copy waits at most. On some hosts
	// somebody always wakes, and the others must fall asleep all the same.
	hurryShare = 4
)

// hurry is what copies in the background wait for: machines that somebody waits for. The
// priority of a thread is not enough. Another thread of this process cannot collect its
// heap before the copy has had a processor.
type hurry struct {
	waiting atomic.Int64 // calls that let a machine go on
	last    atomic.Int64 // when one ended, in Unix nanoseconds
}

// enter says that somebody waits for a machine, until leave is called.
func (h *hurry) enter() (leave func()) {
	h.waiting.Add(1)
	return func() {
		h.last.Store(time.Now().UnixNano())
		h.waiting.Add(-1)
	}
}

// busy reports whether somebody waits for a machine.
func (h *hurry) busy() bool {
	return h.waiting.Load() > 0 || time.Since(time.Unix(0, h.last.Load())) < hurryAfter
}

// A turn is the work of one thread in the background.
type turn struct {
	h      *hurry // nil: it waits for nobody
	worked time.Time
	debt   time.Duration // how long it may still wait
}

// turn begins the work of a thread.
func (h *hurry) turn() *turn { return &turn{h: h, worked: time.Now()} }

// wait returns when nobody waits for a machine, when the thread has waited for long
// enough, or when stop is closed.
func (t *turn) wait(stop <-chan struct{}) {
	if t.h == nil {
		return
	}
	t.debt += hurryShare * time.Since(t.worked)
	for t.debt > 0 && t.h.busy() {
		began := time.Now()
		select {
		case <-stop:
			return
		case <-time.After(hurryLook):
		}
		t.debt -= time.Since(began)
	}
	t.worked = time.Now()
}
