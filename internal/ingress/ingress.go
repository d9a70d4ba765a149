// Package ingress takes connections and requests from the world. It decides how
// many there may be, from which source, and how long a client may keep us
// waiting. It reads no credential and knows no route.
//
// What must always hold: a client that sends nothing, or reads nothing, holds a
// descriptor for a bounded time; what one source does takes nothing from another.
package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/greeting"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ratelimit"
)

const (
	// headerBytes bounds the header of a request. Ours take less than 2 KiB, and
	// a browser with a full jar of cookies sends about 16 KiB.
	headerBytes = 64 << 10
	// fieldsMax bounds the lines of a header. Each of them costs a hundred bytes
	// besides what it says, so that tiny ones would multiply headerBytes.
	fieldsMax = 256
	// streamsMax bounds the requests of one HTTP/2 connection at a time.
	streamsMax = 100
	// keepAlive is how long a connection without a request stays open.
	keepAlive = 2 * time.Minute

	// connectionsMax bounds the connections where descriptors would allow more.
	// Each takes about 20 KB without a request, and 90 KB in a large header.
	connectionsMax = 8192
	// perSourceMax is room for an office behind one address.
	perSourceMax = 512
	// A connection needs a descriptor, and its request another one to a sandbox.
	descriptorsEach = 2
	// The daemon's own descriptors: records, sandboxes, checkpoints. A share of
	// all, within these bounds.
	reserveShare = 4
	reserveMin   = 64
	reserveMax   = 4096
)

// Limits are what an operator may set. The zero value of a field means its
// default.
type Limits struct {
	Connections int // open at a time
	PerSource   int // of these, from one source
	perLocal    int // the same, from a loopback address

	Requests Rate // of one source
	Failures Rate // answers 401 to one source

	Header     time.Duration // from the first byte of a header to its last
	BodyIdle   time.Duration // without a byte of a body
	WriteStall time.Duration // without a byte taken of an answer

	// Proxies are trusted to say in X-Forwarded-For where a request is from.
	Proxies []netip.Prefix
}

// Defaults of the times. A phone in a tunnel comes back within them.
const (
	DefaultHeader     = 10 * time.Second
	DefaultBodyIdle   = 30 * time.Second
	DefaultWriteStall = time.Minute
)

// Ingress counts connections and requests of all listeners that it wraps. It is
// safe for concurrent use.
type Ingress struct {
	limits      Limits
	descriptors int // a connection whose number is as large gets no room
	roster      *roster
	requests    *meter
	failures    *meter
	frames      *ratelimit.Buckets[netip.Prefix] // bytes of HTTP/2: see frames
	barred      *ratelimit.Buckets[netip.Prefix] // sources whose bucket is empty get no connection
	busy        []byte                           // the answer to a connection that gets no room
	crowded     []byte                           // the same, to a source that has its share
	refusing    chan struct{}                    // has room for those who are told so
	refused     [reasons]atomic.Uint64
}

// New returns an Ingress. It raises the limit of descriptors of this process as
// far as it may go.
func New(l Limits) (*Ingress, error) {
	files, err := descriptors()
	if err != nil {
		return nil, err
	}
	l = l.resolve(files)
	return &Ingress{
		limits: l, descriptors: files - reserve(files), roster: newRoster(l),
		requests: newMeter(l.Requests, requestRate), failures: newMeter(l.Failures, failureRate),
		frames:   ratelimit.New[netip.Prefix](framesRate, sourcesMax),
		barred:   ratelimit.New[netip.Prefix](barRate, sourcesMax),
		busy:     refusal("the platform has no room for another connection"),
		crowded:  refusal("your address has too many connections open: close some"),
		refusing: make(chan struct{}, refusingMax),
	}, nil
}

// descriptors is how many this process may have. The runtime of Go raises the
// limit as well, unless it was set after the start.
func descriptors() (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if l.Cur < l.Max {
		l.Cur = l.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			return 0, err
		}
	}
	const enough = 1 << 30
	return int(min(l.Cur, enough)), nil
}

// reserve is how many of so many descriptors connections must leave alone.
func reserve(files int) int { return min(max(files/reserveShare, reserveMin), reserveMax) }

// resolve fills in what is not set, for a number of descriptors.
func (l Limits) resolve(files int) Limits {
	room := max((files-reserve(files))/descriptorsEach, 1)
	if l.Connections == 0 {
		l.Connections = min(room, connectionsMax)
	}
	if l.PerSource == 0 {
		// A proxy on this host that nobody declared is one source, too.
		l.perLocal = max(l.Connections/2, 1)
		l.PerSource = min(perSourceMax, l.perLocal)
	} else {
		l.perLocal = l.PerSource
	}
	l.Header = cmp.Or(l.Header, DefaultHeader)
	l.BodyIdle = cmp.Or(l.BodyIdle, DefaultBodyIdle)
	l.WriteStall = cmp.Or(l.WriteStall, DefaultWriteStall)
	return l
}

// Configure sets what server needs to serve connections of [Ingress.Listen].
func (in *Ingress) Configure(server *http.Server) {
	server.MaxHeaderBytes = headerBytes
	server.ReadHeaderTimeout = in.limits.Header
	server.IdleTimeout = keepAlive
	server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streamsMax}
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, bottom(c))
	}
	server.ConnState = func(c net.Conn, s http.ConnState) {
		if own := bottom(c); own != nil && own.guard != nil && s == http.StateIdle {
			own.guard.expect()
		}
	}
	server.Handler = in.handler(server.Handler)
}

// Resting is how many connections of HTTP/1 have had no request for a time from least to most.
// A request can be on its way to each of them.
func (in *Ingress) Resting(least, most time.Duration) int { return in.roster.resting(least, most) }

type connKey struct{}

// bottom is our connection below what the server knows, or nil.
func bottom(c net.Conn) *conn {
	switch c := c.(type) {
	case *guard:
		return c.conn
	case secureGuard:
		return c.conn
	case *tls.Conn:
		own, _ := greeting.Raw(c.NetConn()).(*conn)
		return own
	}
	return nil
}

// trusts reports whether a client is a proxy that is trusted.
func (in *Ingress) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(in.limits.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// handler passes on what may pass.
func (in *Ingress) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(*conn)
		x := in.begin(c, w, r)
		defer x.end() // after a panic, too
		r = x.request
		peer := httpx.Source(r)
		if in.trusts(peer) {
			if from := in.origin(r.Header.Values(forwardedFor)); from.IsValid() {
				r.RemoteAddr = netip.AddrPortFrom(from, 0).String()
			}
		}
		source := httpx.Source(r)
		err := in.admit(w.Header(), source, r.Header)
		if err != nil {
			x.returned = true
			w.Header().Set(origin, platform)
			if source == peer { // and not one of those that share a proxy
				c.refused(source)
			}
		}
		switch {
		case errors.Is(err, errFields):
			httpx.WriteJSON(x, http.StatusRequestHeaderFieldsTooLarge, map[string]any{
				"error": "header_too_large", "code": http.StatusRequestHeaderFieldsTooLarge, "message": err.Error(),
			})
			return
		case err != nil:
			httpx.WriteError(x, r, err)
			return
		}
		next.ServeHTTP(x, r)
		x.returned = true
	})
}

// What is not of a sandbox says so.
const (
	origin   = "X-Blaxel-Source"
	platform = "platform"
)

var errFields = errors.New("the header has too many fields: send at most 256")

// admit decides whether a request may pass. What a refused client should know
// goes into the header of the answer.
func (in *Ingress) admit(answer http.Header, source netip.Addr, header http.Header) error {
	fields := 0
	for _, values := range header {
		fields += len(values)
	}
	if fields > fieldsMax {
		in.count(tooManyFields)
		return errFields
	}
	if v := in.requests.take(source, 1); !v.OK {
		in.count(overRate)
		v.Header(answer, "source")
		return v.Err("requests from your address")
	}
	return nil
}
