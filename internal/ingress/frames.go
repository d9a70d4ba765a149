package ingress

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ratelimit"
)

// frames bounds what a client sends over HTTP/2 beside requests that are served,
// and their bodies. A stream that is opened and reset at once reaches no handler.
// No limit of requests knows of it, and a connection could carry a hundred thousand
// of them in a second. Nobody is refused for it: the connection is read more slowly.
type frames struct {
	credit atomic.Int64  // bytes that may be read at once
	more   chan struct{} // has room for one: credit has grown
	ended  atomic.Bool
	begun  bool // something was read; the reader's
}

const (
	// framesStep is how much a connection takes at a time from the bucket of its
	// source.
	framesStep = 16 << 10
	// framesFirst is what it takes at first: settings and a small request. When an edge leaves,
	// the clients behind an address make all their connections anew at another one.
	framesFirst = 1 << 10
	// framesOfRequest is what a request that was served may have come in: more than
	// its fields take, which HTTP/2 compresses.
	framesOfRequest = 1 << 10
	// framesInFlight is what a client can have sent of a body before it learns that
	// nobody reads it: the window of a connection.
	framesInFlight = 1 << 20
)

// framesRate is of bytes. It is enough for settings, pings and windows, and for
// some thousand streams that are reset.
var framesRate = ratelimit.Limit{PerSecond: 128 << 10, Burst: 1 << 20}

// carriesFrames reports whether the connection speaks HTTP/2 with a client. Its
// reader asks. A proxy carries those of many.
func (c *conn) carriesFrames() bool {
	if c.proxied {
		return false
	}
	if c.guard == nil {
		return c.multiplexed.Load()
	}
	return c.guard.prefix == len(preface)
}

// explain accounts for bytes that a client sends as it should.
func (c *conn) explain(bytes int64) {
	if c != nil && c.frames.credit.Load() < framesInFlight {
		c.frames.credit.Add(bytes)
		select {
		case c.frames.more <- struct{}{}:
		default: // it knows
		}
	}
}

// account is for a request that was served to its end, with the rest of a body
// that nobody will read. One that is refused, or that its client takes back, came
// out of the bucket of the source.
func (x *exchange) account() {
	switch {
	case x.request.Context().Err() != nil, x.status == http.StatusUnauthorized, x.status == http.StatusTooManyRequests:
	case x.body == nil || x.body.complete():
		x.conn.explain(framesOfRequest)
	default:
		x.conn.explain(framesInFlight)
	}
}

// admit waits until n bytes more may be read. It reports false if the connection
// ended meanwhile.
func (c *conn) admit(n int) bool {
	for c.frames.credit.Add(-int64(n)) < 0 {
		n = 0
		step := framesStep
		if !c.frames.begun {
			step = framesFirst
		}
		v := c.in.frames.Take(httpx.SourceNetwork(address(c.Conn)), step)
		if v.OK {
			c.frames.credit.Add(int64(step))
			c.frames.begun = true
			continue
		}
		select {
		case <-c.frames.more:
		case <-time.After(v.Retry): // an eighth of a second
		}
		if c.frames.ended.Load() {
			return false
		}
	}
	return true
}
