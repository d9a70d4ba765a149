package front

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// inflight counts the requests that are under way, upgraded connections included, and
// streams.
type inflight struct {
	ended   chan struct{} // has room for one: tells wait that a request ended
	leaving chan struct{} // closed when answers without an end have to end
	closing atomic.Bool   // each answer of HTTP/1 is the last one of its connection
	shut    atomic.Bool   // the same for HTTP/2: there are no new connections any more

	mu    sync.Mutex
	began map[any]time.Time // guarded by mu; a request or a stream
}

func newInflight() *inflight {
	return &inflight{ended: make(chan struct{}, 1), leaving: make(chan struct{}), began: map[any]time.Time{}}
}

// endLasting ends the requests that last. It is called once.
func (f *inflight) endLasting() { close(f.leaving) }

// over returns a handler whose requests are counted, without those that last.
func (f *inflight) over(h http.Handler, lasts func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A caller who is told sends nothing more by this connection. If it were just closed,
		// the next request could be on its way already, and no caller sends a POST twice.
		// HTTP/2 says which requests it did not take, and has one connection for many requests.
		if f.closing.Load() && (r.ProtoMajor == 1 || f.shut.Load()) && r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
		}
		if lasts(r) {
			f.last(w, r, h)
			return
		}
		f.begin(r)
		defer f.end(r) // after a panic, too
		h.ServeHTTP(w, r)
	})
}

// last serves a request until endLasting.
func (f *inflight) last(w http.ResponseWriter, r *http.Request, h http.Handler) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-f.leaving:
			cancel()
		case <-ctx.Done():
		}
	}()
	h.ServeHTTP(w, r.WithContext(ctx))
}

// begin counts a request, or a stream, until end.
func (f *inflight) begin(r any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.began[r] = time.Now()
}

func (f *inflight) end(r any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.began, r)
	select {
	case f.ended <- struct{}{}:
	default: // wait knows already
	}
}

// old returns how many requests are under way for at least an age.
func (f *inflight) old(age time.Duration) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, began := range f.began {
		if time.Since(began) >= age {
			n++
		}
	}
	return n
}

// wait returns when no request is under way for an age or longer, or with the
// cause of the end of ctx. Nobody else may wait meanwhile.
func (f *inflight) wait(ctx context.Context, age time.Duration) error {
	for f.old(age) > 0 {
		select {
		case <-f.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
