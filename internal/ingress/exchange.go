package ingress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// idleDuplex is the idle time of a body whose answer has begun. Both sides talk
// then, as over a WebSocket, and the edge ends those after the same time.
const idleDuplex = 15 * time.Minute

// exchange is one request and its answer.
type exchange struct {
	http.ResponseWriter

	in       *Ingress
	conn     *conn // nil where no Ingress listens
	request  *http.Request
	control  *http.ResponseController
	body     *body       // nil without one
	stall    *time.Timer // of a write to a stream of HTTP/2; nil before the first
	status   int         // zero while nothing was answered
	returned bool        // the handler did, and did not panic
	hijacked bool
}

// begin prepares a request for its handler.
func (in *Ingress) begin(c *conn, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{ResponseWriter: w, in: in, conn: c, control: http.NewResponseController(w)}
	if c != nil {
		c.opening.Stop()
		c.active.Add(1)
		if c.guard != nil {
			c.guard.off.Store(true)
		}
		if r.ProtoMajor > 1 {
			c.multiplexed.Store(true)
		}
	}
	// The server looks at its own request when the handler has returned.
	own := *r
	x.request = &own
	if r.ContentLength != 0 && r.Body != nil {
		x.body = newBody(x, r.Body)
		own.Body = x.body
		if !x.multiplexed() && c != nil {
			// The server would wait for the body before it sends the answer.
			_ = x.control.EnableFullDuplex()
		}
	}
	return x
}

// end leaves the connection so that the server can go on with it.
func (x *exchange) end() {
	if x.stall != nil {
		x.stall.Stop()
	}
	if x.conn == nil {
		return
	}
	if x.multiplexed() {
		x.account()
	}
	if x.body != nil && !x.multiplexed() && !x.hijacked && !x.linger() {
		// The server would take the rest of the body for the next request.
		x.conn.guard.ended.Store(true)
	}
	if x.Header().Get("Connection") == "close" {
		x.conn.parted.Store(true)
	}
	x.conn.stay()
	x.conn.active.Add(-1)
}

// linger sends the answer, and waits a little for the rest of the body. It
// reports whether that has come, so that the connection can be used on. The
// server would wait for it as well, but without a limit, and it fails if the body
// ends while it does so.
func (x *exchange) linger() bool {
	x.body.abandon()
	switch {
	case x.body.complete():
		return true
	case !x.returned || x.body.overdue() || x.request.ContentLength > lingerBytes:
		return false
	case x.status == 0:
		x.Header().Set("Content-Length", "0")
	}
	if x.FlushError() != nil || x.control.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return false
	}
	x.conn.waiting.Add(1)
	defer x.conn.waiting.Add(-1)
	n, err := io.CopyN(io.Discard, x.body.ReadCloser, lingerBytes)
	if n == lingerBytes || !errors.Is(err, io.EOF) {
		return false
	}
	return x.control.SetReadDeadline(time.Time{}) == nil
}

// multiplexed reports whether the connection has other requests besides: what
// happens to this one must not concern them.
func (x *exchange) multiplexed() bool { return x.request.ProtoMajor > 1 }

// Unwrap lets [http.ResponseController] reach what this type does not have.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (x *exchange) WriteHeader(status int) {
	if status >= http.StatusOK && x.status == 0 {
		x.status = status
		if status >= http.StatusBadRequest && x.body != nil && !x.multiplexed() && x.request.ContentLength > lingerBytes && !x.body.complete() {
			// The client should not send what nobody reads.
			x.Header().Set("Connection", "close")
		}
		if x.body != nil {
			x.body.answered()
		}
	}
	x.ResponseWriter.WriteHeader(status)
}

// Deny implements [httpx.Warden].
func (x *exchange) Deny() error {
	v := x.in.failures.take(httpx.Source(x.request), 1)
	if v.OK {
		return nil
	}
	x.in.count(overFailures)
	x.Header().Del("WWW-Authenticate") // it may be good
	v.Header(x.Header(), "failures")
	return v.Err("requests with a wrong credential, or without one, from your address")
}

// Write implements [http.ResponseWriter]. One that makes no progress for the
// stall time fails.
func (x *exchange) Write(p []byte) (n int, err error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if !x.multiplexed() {
		return x.ResponseWriter.Write(p) // the connection knows
	}
	for first := true; first || n < len(p); first = false {
		m := 0
		err := x.watch(func() (err error) {
			m, err = x.ResponseWriter.Write(p[n:min(n+pieceBytes, len(p))])
			return err
		})
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Flush implements [http.Flusher].
func (x *exchange) Flush() { _ = x.FlushError() }

// FlushError is what [http.ResponseController] flushes with.
func (x *exchange) FlushError() error {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if !x.multiplexed() {
		return x.control.Flush()
	}
	return x.watch(x.control.Flush)
}

// watch ends a write to a stream that takes too long: the client gives it no
// room, while the connection may have some.
func (x *exchange) watch(write func() error) error {
	if x.stall == nil {
		x.stall = time.AfterFunc(x.in.limits.WriteStall, func() {
			x.in.count(answerStopped)
			_ = x.control.SetWriteDeadline(past)
		})
	} else {
		x.stall.Reset(x.in.limits.WriteStall)
	}
	defer x.stall.Stop()
	return write()
}

// Hijack implements [http.Hijacker].
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := x.control.Hijack()
	if x.hijacked = err == nil; x.hijacked && x.body != nil {
		x.body.forget()
	}
	return c, rw, err
}

// body is the body of a request. A read fails when no byte comes for the idle
// time; the time in which nobody reads does not count.
type body struct {
	io.ReadCloser

	x *exchange

	mu      sync.Mutex
	idle    time.Duration // guarded by mu
	timer   *time.Timer   // guarded by mu; runs while somebody reads
	reading bool          // guarded by mu
	read    *sync.Cond    // reading is false again
	late    bool          // guarded by mu; the idle time has passed
	ended   bool          // guarded by mu; there is no more of it
	closed  bool          // guarded by mu; nobody should read any more
}

func newBody(x *exchange, of io.ReadCloser) *body {
	b := &body{ReadCloser: of, x: x, idle: x.in.limits.BodyIdle}
	b.read = sync.NewCond(&b.mu)
	return b
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	if err := b.begin(); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	b.x.conn.explain(int64(n))
	return n, b.finish(err)
}

// begin starts the idle time.
func (b *body) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return http.ErrBodyReadAfterClose
	}
	b.reading = true
	if b.timer == nil {
		b.timer = time.AfterFunc(b.idle, b.expire)
	} else {
		b.timer.Reset(b.idle)
	}
	if b.x.conn != nil {
		b.x.conn.waiting.Add(1)
	}
	return nil
}

// finish stops the idle time, and returns what the reader gets for err.
func (b *body) finish(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer.Stop()
	b.reading = false
	b.read.Broadcast()
	if b.x.conn != nil {
		b.x.conn.waiting.Add(-1)
	}
	b.ended = b.ended || errors.Is(err, io.EOF)
	switch {
	case err == nil || b.ended || errors.Is(err, http.ErrBodyReadAfterClose):
		return err
	case b.late:
		return doze.Wrap(err, doze.Invalid, "the body stalled for %v: send it without pauses", b.idle)
	}
	// It is the client's doing: nothing failed here.
	return doze.Wrap(err, doze.Invalid, "the body is shorter than its Content-Length")
}

// expire fails the read that waits.
func (b *body) expire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reading && !b.late {
		b.late = true
		b.x.in.count(bodyStopped)
		_ = b.x.control.SetReadDeadline(past)
	}
}

// answered lengthens the idle time: the answer has begun.
func (b *body) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = max(b.idle, idleDuplex)
	if b.reading {
		b.timer.Reset(b.idle)
	}
}

// complete reports whether all of it was read.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Close implements [io.Closer]. It never waits: the body of HTTP/1 would wait for
// a read that is under way. The server closes it itself.
func (b *body) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	if b.x.multiplexed() {
		return b.ReadCloser.Close()
	}
	return nil
}

// forget leaves the connection to the handler that hijacked it.
func (b *body) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// overdue reports whether a read failed because nothing came.
func (b *body) overdue() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.late
}

// abandon ends all reading by the handler, and by goroutines that it left behind.
func (b *body) abandon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for b.reading {
		_ = b.x.control.SetReadDeadline(past)
		b.read.Wait()
	}
}
