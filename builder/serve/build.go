package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/buildapi"

	"github.com/dozehq/doze/builder/engine"
)

// build builds, and answers with events until the end.
func (s *Server) build(w http.ResponseWriter, r *http.Request) {
	var in buildapi.Build
	if !read(w, r, &in, in.Check) {
		return
	}
	a, closes, ok := s.open(in.Context)
	if !ok {
		refuse(w, http.StatusNotFound, noContext)
		return
	}
	defer closes()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		refuse(w, http.StatusTooManyRequests, fmt.Sprintf("%d builds run already: wait until one has ended", buildapi.BuildsMax))
		return
	}
	if err := s.dropOldResults(r.Context(), in.ID); err != nil {
		s.fail(w, r, err)
		return
	}
	in.Args, in.Logins = merge(a.args, in.Args), merge(a.logins, in.Logins)
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := newStream(w)
	defer out.close()
	began := time.Now()
	result, failure := s.engine.Build(r.Context(), engine.Order{Build: in, Dir: a.files()}, out.emit)
	if failure == nil {
		s.mu.Lock()
		s.results = append(s.results, in.ID)
		s.mu.Unlock()
	}
	s.collect(r.Context(), in.CacheBytes)
	s.log.InfoContext(r.Context(), "a build has ended", "build", in.ID, "took", time.Since(began), "failed", failure != nil)
	out.emit(buildapi.Event{At: time.Now().UTC(), Result: result, Failure: failure})
}

// dropOldResults deletes results that nobody has fetched, if there are too many, and one with
// the id of the build that begins.
func (s *Server) dropOldResults(ctx context.Context, id string) error {
	s.mu.Lock()
	var old []string
	rest := s.results[:0:0]
	for i, known := range s.results {
		if known == id || i < len(s.results)-buildapi.ContextsMax+1 {
			old = append(old, known)
		} else {
			rest = append(rest, known)
		}
	}
	s.results = rest
	s.mu.Unlock()
	for _, known := range old {
		if err := s.engine.DropResult(ctx, known); err != nil {
			return err
		}
	}
	return nil
}

// collect shrinks the cache after a build. The next build does not depend on it.
func (s *Server) collect(ctx context.Context, most int64) {
	freed, err := s.engine.Prune(context.WithoutCancel(ctx), buildapi.Prune{Bytes: most})
	if err != nil {
		s.log.WarnContext(ctx, "cannot shrink the cache", "err", err)
	} else if freed.Bytes > 0 {
		s.log.InfoContext(ctx, "the cache has shrunk", "bytes", freed.Bytes)
	}
}

// stream writes events as lines.
type stream struct {
	mu      sync.Mutex
	out     *json.Encoder            // guarded by mu
	flusher *http.ResponseController // guarded by mu
	dirty   bool                     // guarded by mu
	last    time.Time                // guarded by mu; of the last event
	end     chan struct{}
	ended   sync.WaitGroup
}

// newStream starts a stream. The caller closes it.
func newStream(w http.ResponseWriter) *stream {
	s := &stream{out: json.NewEncoder(w), flusher: http.NewResponseController(w), last: time.Now(), end: make(chan struct{})}
	s.ended.Go(s.flush)
	return s
}

// emit writes an event. If the caller has gone, the context of its request says so.
func (s *stream) emit(e buildapi.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(e)
	s.dirty, s.last = true, time.Now()
	if e.State != "" { // there are few of these, and people wait for them
		s.send()
	}
}

// send sends what was written. Callers hold mu.
func (s *stream) send() {
	if s.dirty {
		_ = s.flusher.Flush()
		s.dirty = false
	}
}

// flush sends what was written, and an empty event now and then.
func (s *stream) flush() {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.end:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		if time.Since(s.last) >= buildapi.Heartbeat {
			_ = s.out.Encode(buildapi.Event{At: time.Now().UTC()})
			s.dirty, s.last = true, time.Now()
		}
		s.send()
		s.mu.Unlock()
	}
}

// close ends the stream. What was written is sent with the end of the answer.
func (s *stream) close() {
	close(s.end)
	s.ended.Wait()
}
