package edge

import (
	"context"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

const (
	// recheck is how often the credentials of open requests are looked at
	// again. A revoked key must not reach a sandbox for longer than a second.
	recheck = 500 * time.Millisecond
	// ageMax is how long one request by a preview may last, with its stream or
	// WebSocket, busy or idle. A public link must not keep a sandbox awake for ever.
	ageMax = 15 * time.Minute
	// drain is what short requests have to end by themselves at a shutdown.
	drain = time.Second
	// lastWords is what a request that is cut off has left for its error.
	lastWords = 100 * time.Millisecond
)

// stream is a request in flight.
type stream struct {
	valid   func() bool // whether its credential still is; it does not block
	until   time.Time   // when it has lasted long enough; zero is never
	idle    *idleTimer
	idleMax time.Duration // for which nothing may pass
	cut     context.CancelCauseFunc
	control deadlines
}

// deadlines of a connection.
type deadlines interface {
	SetReadDeadline(at time.Time) error
	SetWriteDeadline(at time.Time) error
}

// streams are the requests in flight. It is safe for concurrent use.
type streams struct {
	opened chan struct{} // has room for one: tells Run that there is something to do
	ended  chan struct{} // has room for one: tells end that a stream ended
	doubt  chan struct{} // has room for one: tells Run that somebody may do less

	mu     sync.Mutex
	open   map[*stream]struct{} // guarded by mu
	closed bool                 // guarded by mu; no stream may open any more
}

func newStreams() *streams {
	return &streams{opened: make(chan struct{}, 1), ended: make(chan struct{}, 1), doubt: make(chan struct{}, 1), open: map[*stream]struct{}{}}
}

// overdue is why s has to end at now, or nil.
func (s *stream) overdue(now time.Time) *doze.Error {
	switch {
	case !s.valid():
		return errRevoked
	case !s.until.IsZero() && !now.Before(s.until):
		return errTooOld
	case s.idle.silence(now) >= s.idleMax:
		return errIdle
	}
	return nil
}

// add registers s until done is called.
func (ss *streams) add(s *stream) (done func(), err error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return nil, errStopping
	}
	ss.open[s] = struct{}{}
	poke(ss.opened)
	return func() {
		ss.mu.Lock()
		defer ss.mu.Unlock()
		delete(ss.open, s)
		poke(ss.ended)
	}, nil
}

// poke wakes the receiver of c, now or when it next waits.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run checks the credentials, the age and the idle time of open streams until ctx
// ends, and then ends all streams. It sleeps while there are none.
func (ss *streams) run(ctx context.Context) {
	defer ss.end()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ss.opened:
		}
		for ss.wait(ctx) {
			for _, s := range ss.snapshot() {
				if why := s.overdue(time.Now()); why != nil {
					ss.cut(s, why)
				}
			}
		}
	}
}

// wait lets the time between two checks pass. It is false when there is
// nothing to check.
func (ss *streams) wait(ctx context.Context) bool {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-ss.doubt:
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.open) > 0
}

func (ss *streams) snapshot() []*stream {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	all := make([]*stream, 0, len(ss.open))
	for s := range ss.open {
		all = append(all, s)
	}
	return all
}

// cut ends s if it is still open. A client that does not read cannot keep it.
func (ss *streams) cut(s *stream, why *doze.Error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if _, open := ss.open[s]; !open {
		return // its connection may serve another request by now
	}
	delete(ss.open, s)
	s.cut(why)
	// A connection that can have no deadline is closed by its own handler.
	_ = s.control.SetReadDeadline(time.Now())
	_ = s.control.SetWriteDeadline(time.Now().Add(lastWords))
}

// end refuses new streams, and cuts those that do not end soon. It includes
// hijacked connections: a server that shuts down does not know of those.
func (ss *streams) end() {
	ss.mu.Lock()
	ss.closed = true
	ss.mu.Unlock()
	timer := time.NewTimer(drain)
	defer timer.Stop()
	for late := false; !late && len(ss.snapshot()) > 0; {
		select {
		case <-ss.ended:
		case <-timer.C:
			late = true
		}
	}
	for _, s := range ss.snapshot() {
		ss.cut(s, errStopping)
	}
}
