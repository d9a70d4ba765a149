package launcher

import (
	"sync"

	"github.com/dozehq/doze/internal/machine/gvisor"
)

// eventsMax bounds what one slow listener may leave unread. It is more than the
// machines of one host; a listener that falls behind is cut off and comes back
// to find out for itself.
const eventsMax = 1024

// events passes events to the current listeners.
type events struct {
	mu   sync.Mutex
	outs map[chan gvisor.Event]bool // guarded by mu
}

// listen returns a channel of events, which is closed when its reader falls
// behind, and a function that ends it.
func (e *events) listen() (heard <-chan gvisor.Event, stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.outs == nil {
		e.outs = map[chan gvisor.Event]bool{}
	}
	out := make(chan gvisor.Event, eventsMax)
	e.outs[out] = true
	return out, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.cut(out)
	}
}

func (e *events) send(event gvisor.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for out := range e.outs {
		select {
		case out <- event:
		default:
			e.cut(out)
		}
	}
}

// cut ends a listener. Preconditions: mu is held.
func (e *events) cut(out chan gvisor.Event) {
	if e.outs[out] {
		delete(e.outs, out)
		close(out)
	}
}
