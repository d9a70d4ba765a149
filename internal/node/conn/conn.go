// Package conn knows all connections into the machine of one sandbox: a machine ends
// without closing them, and their readers would wait for ever.
//
// It does not know who may connect, nor wakes anything: the owner of a [Set] does.
package conn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
)

const (
	// relisten is how long after a wake from disk a refused connection may
	// only mean that the listeners are not back. They take 1 to 3 ms.
	relisten = time.Second
	redial   = 200 * time.Microsecond
	// relistenMost is the part of it in which no server is looked for that listens on
	// a loopback address alone: the others come back first.
	relistenMost = 10 * time.Millisecond

	// Timeout bounds a connection to a running machine: it is one packet each way
	// on the same host.
	Timeout = 5 * time.Second

	// earlyMax is how long a connection that was made early waits for its request.
	// It is far below what servers allow a new connection to be silent.
	earlyMax = time.Second

	// idleMax bounds the connections that wait for the next request to a sandbox;
	// they are closed when it goes to sleep.
	idleMax = 32

	// headerMax bounds the header of an answer. The sandbox decides its size, and a
	// node reads many at a time.
	headerMax = 1 << 20
)

// ErrHungUp is for callers that were about to connect: nothing was sent, so they may
// wake the sandbox and try again.
var ErrHungUp = doze.Errorf(doze.Unavailable, "the sandbox stood still, or ended, before the connection to it was made: try again")

// A Dialer connects to a port of a machine, as [net.Dialer] does.
type Dialer interface {
	Dial(ctx context.Context, port uint16) (net.Conn, error)
}

// An Owner is the sandbox that the connections lead into.
type Owner interface {
	// Reach returns the machine, or why nobody can be reached in it now:
	// [ErrHungUp] if that may change.
	Reach() (Dialer, error)
	// Admit runs add unless nobody can be reached any more: then its error says
	// why. Nothing hangs up meanwhile.
	Admit(add func()) error
	// Inside makes a connection to the agent one to a port of a loopback address of
	// the sandbox. What was read already is in the reader. It has the error
	// [syscall.ECONNREFUSED] if nobody listens there.
	Inside(ctx context.Context, agent net.Conn, port uint16) (*bufio.Reader, error)
}

// Set is the connections into one machine: those that are open, and those that are
// being made. Its lock may be taken with that of the owner held, and not the other way
// round.
type Set struct {
	owner Owner
	life  context.Context //nolint:containedctx // that of the owner; its cause is public
	http  *http.Transport

	mu    sync.Mutex
	open  map[*conn]struct{} // guarded by mu
	line  line               // guarded by mu; what connections that are made now depend on
	early *early             // guarded by mu; the connection made while the machine woke, until somebody takes it
	woke  time.Time          // guarded by mu; when the machine came back from disk
}

// New returns the connections of an owner, which are none. They end with its life.
func New(life context.Context, owner Owner) *Set {
	s := &Set{owner: owner, life: life, open: map[*conn]struct{}{}, line: newLine(life)}
	s.http = &http.Transport{
		DialContext:         s.dialHTTP,
		DisableCompression:  true, // bytes pass as they are
		MaxIdleConnsPerHost: idleMax,
		MaxIdleConns:        idleMax,

		MaxResponseHeaderBytes: headerMax,
	}
	return s
}

// HTTP is the client side of HTTP to the machine. The "host" of a request is the port.
func (s *Set) HTTP() http.RoundTripper { return s.http }

func (s *Set) dialHTTP(ctx context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", port, err)
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return s.Dial(ctx, uint16(n))
}

// Dial connects to a port of the running machine. For a moment after a wake from disk
// its listeners are not back yet: a refused connection is tried again. A server that
// listens on a loopback address alone is reached through the agent.
func (s *Set) Dial(caller context.Context, port uint16) (net.Conn, error) {
	ctx, cancel := s.onLine(caller)
	defer cancel()
	for {
		m, err := s.owner.Reach()
		if err != nil {
			return nil, err
		}
		since := s.sinceWoken()
		again := since < relisten
		c, ok := s.made(port)
		if !ok {
			c, err = m.Dial(ctx, port)
		}
		if errors.Is(err, syscall.ECONNREFUSED) && port != doze.AgentPort && since > relistenMost {
			c, err = s.inside(ctx, m, port)
		}
		if err == nil {
			return s.add(c)
		}
		if caller.Err() == nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || !again {
			return nil, fmt.Errorf("port %d: %w", port, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(redial):
		}
	}
}

// Woke takes note that the machine came back from disk.
func (s *Set) Woke(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woke = now
}

// sinceWoken is how long ago the machine came back from disk.
func (s *Set) sinceWoken() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.woke)
}

// inside connects to a port of a loopback address of the sandbox.
func (s *Set) inside(ctx context.Context, m Dialer, port uint16) (net.Conn, error) {
	c, err := m.Dial(ctx, doze.AgentPort)
	if err != nil {
		return nil, err
	}
	from, err := s.owner.Inside(ctx, c, port)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &begun{c, from}, nil
}

// begun is a connection of which a part was read already.
type begun struct {
	net.Conn

	from *bufio.Reader
}

// Read implements [net.Conn].
func (b *begun) Read(p []byte) (int, error) { return b.from.Read(p) }

// CloseWrite ends one direction.
func (b *begun) CloseWrite() error { return CloseWrite(b.Conn) }

// add takes over a new connection. What comes after the cut is not wanted.
func (s *Set) add(c net.Conn) (net.Conn, error) {
	own := &conn{c, s}
	err := s.owner.Admit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[own] = struct{}{}
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return own, nil
}

// Len is how many connections are open.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// CloseIdle closes the connections that wait for a request.
func (s *Set) CloseIdle() { s.http.CloseIdleConnections() }

// Cut gives up all connections that are open or being made. The caller runs hangUp,
// which closes them, when it holds no lock.
func (s *Set) Cut() (hangUp func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.cut(ErrHungUp)
	s.line = newLine(s.life)
	conns := slices.Collect(maps.Keys(s.open))
	early := s.early
	s.early = nil
	return func() {
		if early != nil {
			early.drop()
		}
		for _, c := range conns {
			_ = c.Close() // there is nothing to be done about it
		}
	}
}

// conn is a connection into a machine.
type conn struct {
	net.Conn

	s *Set
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.s.mu.Lock()
	delete(c.s.open, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends what we send and goes on reading, which clients of an
// upgraded connection may do.
func (c *conn) CloseWrite() error { return CloseWrite(c.Conn) }

// CloseWrite closes one direction of a connection that can do so.
func CloseWrite(c any) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// A line ends when all connections into a machine are closed: one that is being
// made then is given up, since nobody will answer.
type line struct {
	ctx context.Context //nolint:containedctx // its cause is public
	cut context.CancelCauseFunc
}

func newLine(life context.Context) line {
	ctx, cut := context.WithCancelCause(life)
	return line{ctx, cut}
}

// onLine returns a context that ends with ctx and with the line.
func (s *Set) onLine(ctx context.Context) (context.Context, context.CancelFunc) {
	s.mu.Lock()
	on := s.line.ctx
	s.mu.Unlock()
	return Within(ctx, on)
}

// Within returns a context that ends with ctx, and with life for its reason.
func Within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// An early connection is made while the machine wakes: the engine's network
// answers before the guest runs, and the first request finds it ready.
type early struct {
	port uint16
	drop func()        // closes it, unless it was received
	conn chan net.Conn // gives it once, or is closed
}

// Early begins a connection to a machine that wakes. Spawn runs the rest in a
// goroutine of the owner, or reports false.
func (s *Set) Early(m Dialer, port uint16, spawn func(func()) bool) {
	ctx, cancel := context.WithTimeout(s.life, earlyMax)
	e := &early{port: port, conn: make(chan net.Conn)}
	e.drop = func() {
		cancel()
		for c := range e.conn { // until it is over
			_ = c.Close()
		}
	}
	if !spawn(func() {
		defer close(e.conn)
		defer cancel()
		c, err := m.Dial(ctx, port)
		if err != nil {
			return // the request will see for itself
		}
		select {
		case e.conn <- c:
		case <-ctx.Done():
			_ = c.Close()
		}
	}) {
		cancel()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = e
}

// made returns the early connection to a port, if there is one.
func (s *Set) made(port uint16) (net.Conn, bool) {
	s.mu.Lock()
	e := s.early
	if e == nil || e.port != port {
		s.mu.Unlock()
		return nil, false
	}
	s.early = nil
	s.mu.Unlock()
	c, ok := <-e.conn // soon: it has a deadline
	return c, ok
}
