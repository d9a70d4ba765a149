package ingress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/httpx"
)

// refusesMax is how many refusals a client may ignore on one connection. One that
// waits for what the refusal says ignores none.
const refusesMax = 1000

// pieceBytes is how much of an answer must be taken within a stall time. It is
// large enough to cost nothing, and small enough for a slow reader.
const pieceBytes = 64 << 10

// framesBuffer is of HTTP/2 without TLS. Bodies go past it.
const framesBuffer = 2 << 10

// past is a deadline that every call has missed.
var past = time.Unix(1, 0)

// conn is a connection that is counted. A write to it that makes no progress
// ends it.
type conn struct {
	net.Conn

	in          *Ingress
	guard       *guard      // nil if it speaks HTTP/2 in TLS; set before it is served
	source      *source     // guarded by the roster; nil if it is that of a trusted proxy
	gone        bool        // guarded by the roster
	opening     *time.Timer // ends it if no request comes
	active      atomic.Int32
	waiting     atomic.Int32 // of these, requests whose client is waited for
	refuses     atomic.Int32 // requests that were
	rested      atomic.Int64 // when the last request ended, or the connection came; in nanoseconds since began
	parted      atomic.Bool  // its last answer said so
	frames      frames
	multiplexed atomic.Bool // it speaks HTTP/2 in TLS, or had a request of HTTP/2
	proxied     bool        // by a proxy that is trusted; set before it is served

	writing sync.Mutex // held by the writer
	stall   *time.Timer
	stalled atomic.Bool

	once sync.Once
	err  error // of Close
}

// newConn returns a connection that ends by itself if no request comes in time.
func (in *Ingress) newConn(raw net.Conn, within time.Duration) *conn {
	c := &conn{Conn: raw, in: in, frames: frames{more: make(chan struct{}, 1)}}
	c.opening = time.AfterFunc(handshakeTime, func() {
		if c.end() {
			in.count(neverAsked)
		}
	})
	c.stay()
	c.opening.Reset(within) // not before c is complete: it may be at once
	return c
}

// waits reports whether nothing happens before the client sends something.
func (c *conn) waits() bool { return c.waiting.Load() >= c.active.Load() }

// began is what the times of connections count from.
var began = time.Now()

// stay notes that the connection has no request from now on.
func (c *conn) stay() { c.rested.Store(int64(time.Since(began))) }

// rest is for how long the connection has had no request. It is false if it has one, or gets no
// other one. It is false for HTTP/2, too, whose server can say which requests it did not take.
func (c *conn) rest(now time.Time) (time.Duration, bool) {
	if c.active.Load() > 0 || c.multiplexed.Load() || c.parted.Load() {
		return 0, false
	}
	return now.Sub(began) - time.Duration(c.rested.Load()), true
}

// refused counts a request that was refused on arrival. A client that goes on
// regardless loses its connection, and gets no other one for a moment. A request costs
// more than its refusal, above all if the client cancels it at once.
func (c *conn) refused(from netip.Addr) {
	if c == nil || c.refuses.Add(1) != refusesMax {
		return
	}
	c.in.barred.Take(httpx.SourceNetwork(from), 1)
	c.in.count(deaf)
	_ = c.Close()
}

// Read implements [net.Conn]. What comes over HTTP/2 is read as fast as it is
// accounted for: see [frames].
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.carriesFrames() && !c.admit(n) {
		return 0, errEnded
	}
	return n, err
}

// Write implements [net.Conn]. A write that waits for longer than the stall time
// without any progress fails; what was written before it does not count.
func (c *conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for first := true; first || n < len(p); first = false {
		piece := p[n:min(n+pieceBytes, len(p))]
		if c.stall == nil {
			c.stall = time.AfterFunc(c.in.limits.WriteStall, c.stuck)
		} else {
			c.stall.Reset(c.in.limits.WriteStall)
		}
		m, err := c.Conn.Write(piece)
		c.stall.Stop()
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (c *conn) stuck() {
	if c.stalled.CompareAndSwap(false, true) {
		c.in.count(answerStopped)
	}
	_ = c.SetWriteDeadline(past)
}

// CloseWrite tells the client that nothing follows.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.end()
	return c.err
}

// end is Close. It reports whether it was the first.
func (c *conn) end() (first bool) {
	c.once.Do(func() {
		first = true
		c.frames.ended.Store(true)
		c.opening.Stop()
		c.err = c.Conn.Close()
		c.in.roster.remove(c)
	})
	return first
}

// guard is a connection that speaks HTTP/1, or HTTP/2 without TLS. It ends the
// connection when a header has too many lines, before the server keeps them.
type guard struct {
	net.Conn // conn, or TLS over it

	conn   *conn
	off    atomic.Bool   // a body, a tunnel or HTTP/2 follows
	ended  atomic.Bool   // nothing more is read
	lines  int           // of this header so far
	empty  bool          // nothing is in this line so far
	prefix int           // bytes of the preface of HTTP/2 that have come
	buffer *bufio.Reader // of HTTP/2; nil before
}

// preface is what HTTP/2 begins with where TLS does not say so.
const (
	prefaceHeader = "PRI * HTTP/2.0\r\n\r\n" // which HTTP/1 could take for a header
	preface       = prefaceHeader + "SM\r\n\r\n"
)

// over returns what the server reads instead of plain, which is c or TLS over it.
func (c *conn) over(plain net.Conn) net.Conn {
	c.guard = &guard{Conn: plain, conn: c}
	if secure, ok := plain.(*tls.Conn); ok {
		return secureGuard{c.guard, secure}
	}
	return c.guard
}

// secureGuard is a guard whose requests came in TLS. The server asks for its
// state.
type secureGuard struct {
	*guard

	tls *tls.Conn
}

// ConnectionState is what the server tells handlers of TLS.
func (g secureGuard) ConnectionState() tls.ConnectionState { return g.tls.ConnectionState() }

// expect says that the next bytes are those of a header. The server calls it
// between two requests, when nobody reads.
func (g *guard) expect() {
	if g.prefix < len(preface) {
		g.lines, g.empty = 0, false
		g.off.Store(false)
	}
}

// CloseWrite tells the client that nothing follows.
func (g *guard) CloseWrite() error {
	if half, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// tooMany is the answer to a header of too many lines.
const tooMany = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" +
	"the header has too many fields: send at most 256\n"

// errEnded is what the server reads from a guard that has ended. It answers
// nothing to that, and takes it for no end of a body.
var errEnded = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}

// Read implements [net.Conn].
func (g *guard) Read(p []byte) (int, error) {
	if g.ended.Load() {
		return 0, errEnded
	}
	if g.prefix == len(preface) {
		// The server reads frames in pieces of some bytes, each of which would be a
		// call to the kernel.
		if g.buffer == nil {
			g.buffer = bufio.NewReaderSize(g.Conn, framesBuffer)
		}
		return g.buffer.Read(p)
	}
	n, err := g.Conn.Read(p)
	if g.off.Load() || n == 0 || g.scan(p[:n]) {
		return n, err
	}
	g.ended.Store(true)
	g.conn.in.count(tooManyFields)
	_ = g.SetWriteDeadline(time.Now().Add(lingerTime))
	_, _ = io.WriteString(g.Conn, tooMany)
	_ = g.CloseWrite()
	_ = g.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, g.Conn, lingerBytes) // a reset would take the answer back
	return 0, errEnded
}

// scan counts the lines in p, which are of a header until an empty one. It
// reports false if they are too many.
func (g *guard) scan(p []byte) bool {
	if g.prefix >= 0 {
		if g.follows(p); g.off.Load() {
			return true
		}
	}
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		line := p
		if i >= 0 {
			line = p[:i]
		}
		if len(bytes.TrimLeft(line, "\r")) > 0 { // the server takes no line of several of them
			g.empty = false
		}
		if i < 0 {
			return true
		}
		p = p[i+1:]
		if g.empty {
			if g.prefix < 0 { // the preface has an empty line, too
				g.off.Store(true)
			}
			return true
		}
		if g.lines++; g.lines > fieldsMax+1 { // the first line is no field
			return false
		}
		g.empty = true
	}
	return true
}

// follows compares p with what is left of the preface. One that differs is none:
// prefix is -1 from then on.
func (g *guard) follows(p []byte) {
	for _, b := range p {
		if b != preface[g.prefix] {
			// A header that is as long as the first part of the preface has ended.
			g.off.Store(g.prefix >= len(prefaceHeader))
			g.prefix = -1
			return
		}
		if g.prefix++; g.prefix == len(preface) {
			g.off.Store(true)
			return
		}
	}
}
