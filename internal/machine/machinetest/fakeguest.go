package machinetest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

// headerTime is how long a guest of the fake waits for a request's header.
const headerTime = time.Hour

// environment is what a fake machine's guest lives in: its network, which stays while
// it sleeps on disk, and its processes.
type environment struct {
	f      *Fake
	config machine.Config

	mu      sync.Mutex
	world   *memory                  // guarded by mu; nil without processes
	running bool                     // guarded by mu; they are not paused
	away    bool                     // guarded by mu; their memory is in swap
	closed  bool                     // guarded by mu
	changed chan struct{}            // guarded by mu; closed when one of the above changes
	guests  map[uint16]http.Handler  // guarded by mu; of the processes
	ports   map[uint16]*pipeListener // guarded by mu
	servers []*http.Server           // guarded by mu
	tasks   sync.WaitGroup
}

func newEnvironment(f *Fake, c machine.Config) *environment {
	return &environment{
		f: f, config: c, changed: make(chan struct{}),
		guests: map[uint16]http.Handler{}, ports: map[uint16]*pipeListener{},
	}
}

// change applies do and wakes all that wait.
func (b *environment) change(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *environment) start(w *memory) {
	w.env = b
	w.resume()
	b.change(func() { b.world, b.running, b.away, b.guests = w, true, false, map[uint16]http.Handler{} })
}

func (b *environment) pause() {
	b.change(func() { b.running = false; b.world.pause() })
}

func (b *environment) resume() {
	b.change(func() { b.running = true; b.world.resume() })
}

func (b *environment) stop() {
	b.change(func() { b.running, b.world = false, nil })
}

// close ends processes and network.
func (b *environment) close() {
	var servers []*http.Server
	b.change(func() { b.running, b.world, b.closed, servers = false, nil, true, b.servers })
	for _, s := range servers {
		_ = s.Close() // breaks all connections
	}
	b.tasks.Wait()
}

func (b *environment) alive() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.world != nil
}

func (b *environment) awake() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running
}

func (b *environment) swap(away bool) { b.change(func() { b.away = away }) }

func (b *environment) swapped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

func (b *environment) memory() *memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.world
}

// guest returns what answers on a port, or nil. Preconditions: mu is held.
func (b *environment) guest(port uint16) http.Handler {
	h, known := b.guests[port]
	if !known {
		switch {
		case b.f.Handler != nil:
			h = b.f.Handler(b.config, port)
		case port == Port:
			h = Handler(b.world)
		}
		b.guests[port] = h
	}
	return h
}

// await returns what answers on a port as soon as the machine is awake.
func (b *environment) await(ctx context.Context, port uint16) (http.Handler, error) {
	for {
		b.mu.Lock()
		changed, closed := b.changed, b.closed
		if b.running {
			h := b.guest(port)
			b.mu.Unlock()
			return h, nil
		}
		b.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (b *environment) dial(ctx context.Context, port uint16) (net.Conn, error) {
	b.mu.Lock()
	if b.closed || b.world == nil || b.guest(port) == nil {
		b.mu.Unlock()
		return nil, errRefused
	}
	l := b.ports[port]
	if l == nil {
		l = &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		b.ports[port] = l
		s := &http.Server{Handler: b.serve(port), ReadHeaderTimeout: headerTime}
		b.servers = append(b.servers, s)
		b.tasks.Go(func() { _ = s.Serve(l) }) // ends when close closes it
	}
	b.mu.Unlock()
	return l.dial(ctx)
}

// serve answers requests when the machine is awake; until then they wait, as
// they do before a paused machine.
func (b *environment) serve(port uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := b.await(r.Context(), port)
		if err != nil || h == nil {
			panic(http.ErrAbortHandler) // breaks the connection
		}
		h.ServeHTTP(w, r)
	})
}

// pipeListener accepts what dial makes.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, errRefused
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }
