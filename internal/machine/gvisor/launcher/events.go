package launcher

import (
	"sync"

	"github.com/dozehq/doze/internal/machine/gvisor"
)

// feedMax bounds what one slow listener may leave unread. It is more than the
// machines of one host; a listener that falls behind is cut off and comes back
// to find out for itself.
const feedMax = 1024

// feed passes events to whoever listens now.
type feed struct {
	mu   sync.Mutex
	outs map[chan gvisor.Event]bool // guarded by mu
}

// listen returns a channel of events, which is closed when its reader falls
// behind, and a function that ends it.
func (f *feed) listen() (events <-chan gvisor.Event, stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.outs == nil {
		f.outs = map[chan gvisor.Event]bool{}
	}
	out := make(chan gvisor.Event, feedMax)
	f.outs[out] = true
	return out, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.cut(out)
	}
}

func (f *feed) send(e gvisor.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for out := range f.outs {
		select {
		case out <- e:
		default:
			f.cut(out)
		}
	}
}

// cut ends a listener. Preconditions: mu is held.
func (f *feed) cut(out chan gvisor.Event) {
	if f.outs[out] {
		delete(f.outs, out)
		close(out)
	}
}
