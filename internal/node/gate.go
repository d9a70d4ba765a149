package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node/conn"
	"github.com/dozehq/doze/internal/trace"
)

// gate is a [http.RoundTripper] to one port of one sandbox.
type gate struct {
	find func(uid string) *Box
	uid  string
	port uint16
}

// Transport implements [fleet.Gate].
func (n *Node) Transport(uid string, port uint16) http.RoundTripper { return gate{n.box, uid, port} }

// RoundTrip wakes the sandbox, sends the request, and lets go of the sandbox
// when the response has been read.
func (g gate) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		body := &lentBody{ReadCloser: r.Body, lent: true}
		defer body.letGo()
		r = r.WithContext(r.Context()) // a copy
		r.Body = body
	}
	return unlessHungUp(r.Context(), func() (*http.Response, error) { return g.send(r) })
}

// unlessHungUp makes a call into a sandbox. If its machine ended, or stood still for a
// snapshot, before anything was sent, it makes the call a second time. The sandbox then
// wakes from its checkpoint, or the error says its phase.
func unlessHungUp[T any](ctx context.Context, call func() (T, error)) (T, error) {
	v, err := call()
	if errors.Is(err, conn.ErrHungUp) && ctx.Err() == nil {
		return call()
	}
	return v, err
}

// send is one attempt of RoundTrip.
func (g gate) send(r *http.Request) (*http.Response, error) {
	ctx, caller := trace.Expect(r.Context())
	defer caller.Leave()
	b, release, err := g.hold(ctx)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // nothing was read from it
		}
		return nil, err
	}
	if t := caller.Trace(); t != nil {
		ctx = follow(ctx, t)
	}
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host = "http", "sandbox:"+strconv.Itoa(int(g.port))
	resp, err := b.conns.HTTP().RoundTrip(out)
	if err != nil {
		release()
		return nil, fleet.PortFailure(r.Context(), g.port, err)
	}
	resp.Body = held(resp.Body, release)
	return resp, nil
}

// lentBody is the body of a request that may be sent a second time: it is not closed
// before it is let go.
type lentBody struct {
	io.ReadCloser

	mu     sync.Mutex
	lent   bool // guarded by mu
	closed bool // guarded by mu; somebody wanted to close it
}

// Close implements [io.Closer].
func (b *lentBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.lent {
		return nil
	}
	return b.ReadCloser.Close()
}

func (b *lentBody) letGo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lent = false
	if b.closed {
		_ = b.ReadCloser.Close()
	}
}

// follow returns a context in which a request to a sandbox that has just woken is
// traced until the first byte of the answer.
func follow(ctx context.Context, t *trace.Trace) context.Context {
	connect := t.Next(trace.Connect)
	var answer trace.Running
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			connect.End()
			answer = t.Next(trace.Answer)
		},
		GotFirstResponseByte: func() { answer.End() },
	})
}

func (g gate) hold(ctx context.Context) (*Box, func(), error) {
	b := g.find(g.uid)
	if b == nil {
		return nil, nil, errUnknown
	}
	release, err := b.Hold(ctx, g.port)
	return b, release, err
}

// Dial implements [fleet.Dialer].
func (n *Node) Dial(ctx context.Context, uid string, port uint16) (net.Conn, error) {
	return unlessHungUp(ctx, func() (net.Conn, error) { return gate{n.box, uid, port}.dial(ctx) })
}

// dial is one attempt of Dial.
func (g gate) dial(ctx context.Context) (net.Conn, error) {
	ctx, caller := trace.Expect(ctx)
	b, release, err := g.hold(ctx)
	if err != nil {
		caller.Leave()
		return nil, err
	}
	t := caller.Trace()
	connect := t.Next(trace.Connect)
	bounded, cancel := context.WithTimeout(ctx, conn.Timeout)
	defer cancel()
	c, err := b.conns.Dial(bounded, g.port)
	if err != nil {
		release()
		caller.Leave()
		return nil, fleet.PortFailure(ctx, g.port, err)
	}
	connect.End()
	return &heldPort{Conn: c, release: release, answer: t.Next(trace.Answer), caller: caller}, nil
}

// heldPort is a connection that holds its sandbox awake. Its first byte ends the
// wait of the caller.
type heldPort struct {
	net.Conn

	release  func()
	answer   trace.Running
	caller   *trace.Caller
	answered atomic.Bool
}

// Read implements [net.Conn].
func (h *heldPort) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if !h.answered.Swap(true) {
		h.answer.End()
		h.caller.Leave()
	}
	return n, err
}

// CloseWrite ends one direction; the sandbox stays held.
func (h *heldPort) CloseWrite() error { return conn.CloseWrite(h.Conn) }

// Close implements [net.Conn].
func (h *heldPort) Close() error {
	defer h.release()
	return h.Conn.Close()
}

// held ties a release to the end of a body. A body that is a connection, after
// an upgrade, stays one.
func held(body io.ReadCloser, release func()) io.ReadCloser {
	if c, ok := body.(io.ReadWriteCloser); ok {
		return &heldConn{c, release}
	}
	return &heldBody{body, release}
}

type heldBody struct {
	io.ReadCloser
	release func()
}

func (h *heldBody) Close() error {
	defer h.release()
	return h.ReadCloser.Close()
}

type heldConn struct {
	io.ReadWriteCloser
	release func()
}

// CloseWrite ends one direction; the sandbox stays held.
func (h *heldConn) CloseWrite() error { return conn.CloseWrite(h.ReadWriteCloser) }

func (h *heldConn) Close() error {
	defer h.release()
	return h.ReadWriteCloser.Close()
}
