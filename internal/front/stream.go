package front

import (
	"context"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/greeting"
)

// A Router knows which connections are no HTTP, and where they lead. What its methods do
// is in [ingress.Streams].
type Router interface {
	Takes(h greeting.Hello) bool
	Open(ctx context.Context, h greeting.Hello) (greeting.Stream, error)
}

// streams carries the connections that are no HTTP, as an [ingress.Streams]. They are
// counted with the requests.
type streams struct {
	Router

	requests *inflight
	open     sync.WaitGroup

	mu     sync.Mutex
	life   context.Context    //nolint:containedctx // guarded by mu; of all of them; nil while none is served
	cancel context.CancelFunc // guarded by mu
}

func newStreams(r Router, requests *inflight) *streams {
	return &streams{Router: r, requests: requests}
}

// begin lets streams in, which do not end with ctx.
func (s *streams) begin(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
}

// end lets nobody in any more. The streams that are open have a moment to end.
func (s *streams) end() {
	s.mu.Lock()
	cancel := s.cancel
	s.life = nil
	s.mu.Unlock()
	defer cancel()
	defer time.AfterFunc(drainTime, cancel).Stop()
	s.open.Wait()
}

// Serve implements [ingress.Streams].
func (s *streams) Serve(client greeting.Conn, to greeting.Stream, ended func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	life := s.life
	if life == nil {
		to.Close()
		ended()
		return
	}
	s.requests.begin(to)
	s.open.Go(func() { // ends with the stream, or with end
		defer ended()
		defer s.requests.end(to)
		to.Serve(life, client)
	})
}
