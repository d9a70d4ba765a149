// Package feed tells readers what changes in the sandboxes of their workspace. For each
// workspace that has readers, one loop looks at the list of usage again and again, and
// compares it with the look before. A workspace without readers costs nothing.
//
// A look wakes no sandbox, and writes nothing.
package feed

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
)

const (
	// lookEvery is the least time between two looks. People see a second, and a look at
	// a small workspace takes some milliseconds.
	lookEvery = time.Second
	// lookShare bounds what looks cost: the rest after a look is this many times as long.
	lookShare = 2
	// aliveEvery is how often a reader gets a comment. Proxies end a silent answer after
	// 30 seconds or more.
	aliveEvery = 15 * time.Second
	// rightsEvery is how often the rights of a reader are checked again.
	rightsEvery = 2 * time.Second
	// writeTime is how long a reader may take for one write. Then its stream is cut.
	writeTime = 10 * time.Second
	// rememberTime is how long a workspace without readers is remembered, so that its last
	// reader can resume after a cut.
	rememberTime = time.Minute
	// partMax is how many sandboxes a message has. One takes about 800 bytes.
	partMax = 100
	// ringMax and ringBytesMax bound the messages that a workspace keeps for those who
	// resume. The messages of the last look stay in any case.
	ringMax      = 1024
	ringBytesMax = 1 << 20

	// keyReadersMax is how many streams one credential may have open: tabs of a browser.
	keyReadersMax = 16
	// workspaceReadersMax and readersMax bound the streams of a workspace, and of all.
	workspaceReadersMax = 128
	readersMax          = 1024
)

// scope is what a reader needs, as for the list that the feed is made of.
const scope = "sandboxes:list"

// Config is what a Server works with. Every field is required.
type Config struct {
	// Survey calls each with all sandboxes of a workspace, in pages, the newest first.
	// It wakes none of them.
	Survey      func(ctx context.Context, workspace string, each func([]doze.FeedSandbox) error) error
	Credentials *access.Credentials
}

// Server serves the feed.
type Server struct {
	Config
	closed chan struct{} // no stream goes on
	close  func()

	loops sync.WaitGroup

	mu     sync.Mutex
	boards map[string]*board // guarded by mu; by workspace
	all    int               // guarded by mu; readers
	of     map[string]int    // guarded by mu; readers by credential
}

// New returns a server. Its loops end with their readers, and with [Server.Run].
func New(c Config) *Server {
	closed := make(chan struct{})
	return &Server{
		Config: c, closed: closed, close: sync.OnceFunc(func() { close(closed) }),
		boards: map[string]*board{}, of: map[string]int{},
	}
}

// Close ends all streams at once, and lets nobody in any more.
func (s *Server) Close() { s.close() }

// Run returns when ctx has ended, and nobody looks any more.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	s.Close()
	s.loops.Wait()
	return context.Cause(ctx)
}

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/feed", scope, "Follow the sandboxes of a workspace", api.Events[doze.FeedMessage]((*Server).stream).Asks(api.Follow.String()).
		About("It wakes nothing. First come messages named state with all sandboxes, and one named complete. "+
			"With follow=true the answer goes on with messages named change, each with the sandboxes that differ and the names of those that are gone. "+
			"Send the id of the last message as the header Last-Event-ID to go on after a cut. If that is too long ago, the answer begins with state again.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section { return api.Section{Routes: api.Bind(s, rows)} }

// errClosed is for callers who come while the process ends.
var errClosed = doze.Errorf(doze.Unavailable, "the platform is about to stop: try again in a moment")

// stream answers one reader. It returns an error as long as nothing is answered.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	go func() { // ends with ctx
		select {
		case <-s.closed:
			cancel(errClosed)
		case <-ctx.Done():
		}
	}()
	caller := api.Caller(ctx)
	b, leave, err := s.enter(caller)
	if err != nil {
		return err
	}
	defer leave()
	run := b.join(ctx, s)
	defer b.leave()
	if err := b.ready(ctx, run); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", api.EventsType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy must not collect it
	w.WriteHeader(http.StatusOK)
	out := &writer{w: w, control: http.NewResponseController(w)}
	defer out.end()
	rd := &reader{board: b, run: run, out: out, may: func() bool { return s.may(r, caller.Workspace) }}
	rd.at = b.resume(ParsePosition(r.Header.Get("Last-Event-ID")))
	if !api.Follow.In(r.URL.Query()) {
		return rd.once()
	}
	rd.follow(ctx)
	return nil
}

// may reports whether the reader may still read, by the credential of its request.
func (s *Server) may(r *http.Request, workspace string) bool {
	c, err := s.Credentials.Authenticate(r)
	return err == nil && c.Workspace == workspace && c.May(scope)
}

// enter counts a reader, and finds the board of its workspace. The caller calls leave once.
func (s *Server) enter(c access.Caller) (_ *board, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, known := s.boards[c.Workspace]
	if !known {
		b = newBoard(c.Workspace)
	}
	credential := c.Sub + "/" + c.Key
	switch {
	case s.isClosed():
		return nil, nil, errClosed
	case s.of[credential] >= keyReadersMax:
		return nil, nil, doze.Errorf(doze.Exhausted, "this credential has %d feeds open, which is the limit: close one first", keyReadersMax)
	case b.entered >= workspaceReadersMax:
		return nil, nil, doze.Errorf(doze.Exhausted, "the workspace has %d feeds open, which is the limit: close one first", workspaceReadersMax)
	case s.all >= readersMax:
		return nil, nil, doze.Errorf(doze.Exhausted, "the platform has %d feeds open, which is the limit: try again later", readersMax)
	}
	if b.forget != nil {
		b.forget.Stop()
		b.forget = nil
	}
	s.boards[c.Workspace] = b
	s.all++
	s.of[credential]++
	b.entered++
	return b, func() { s.left(b, credential) }, nil
}

// left undoes enter. A board without readers is forgotten after a while.
func (s *Server) left(b *board, credential string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[credential]--; s.of[credential] == 0 {
		delete(s.of, credential)
	}
	if b.entered--; b.entered > 0 {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(rememberTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if b.forget == timer { // nobody came back
			delete(s.boards, b.workspace)
		}
	})
	b.forget = timer
}

func (s *Server) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Looking returns how many workspaces are looked at, for tests.
func (s *Server) Looking() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boards {
		if b.looking() {
			n++
		}
	}
	return n
}

// look looks at a workspace until ctx ends, or until a look fails. What failed, its readers
// hear.
func (s *Server) look(ctx context.Context, b *board, r *run) {
	for {
		began := time.Now()
		l := b.begin()
		err := s.Survey(ctx, b.workspace, l.page)
		if err != nil {
			b.failed(r, err)
			return
		}
		b.publish(r, l)
		select {
		case <-time.After(max(lookEvery, lookShare*time.Since(began))):
		case <-s.closed:
			b.failed(r, errClosed)
			return
		case <-ctx.Done():
			return
		}
	}
}

// errForgotten ends the stream of a reader that is too slow: it resumes with a state.
var errForgotten = errors.New("the reader is slower than the changes")
