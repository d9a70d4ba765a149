package edge

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/httpx"
)

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	visit   *visit
	status  int  // zero while nothing was answered
	interim bool // the client knows answers before the answer (1xx), which HTTP/1.0 does not
}

// Unwrap lets http.ResponseController reach what this type does not have.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader passes 1xx on, as a proxy must, without what is not for the
// client. [httputil.ReverseProxy] cleans the header of the answer only.
func (r *recorder) WriteHeader(status int) {
	switch {
	case status >= http.StatusOK:
		if r.status == 0 {
			r.status = status
		}
	case !r.interim:
		return
	default:
		withoutHops(r.Header())
		r.visit.origin.clean(r.Header())
	}
	r.ResponseWriter.WriteHeader(status)
}

// hops are the fields that are about one connection (RFC 9110, section 7.6.1).
var hops = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

func withoutHops(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hops {
		h.Del(name)
	}
}

// Hijack is called for an answer that switches protocols. [httputil.ReverseProxy] reads
// from the connection alone: what came right behind the request must come out of it.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err != nil {
		return conn, rw, err
	}
	r.status = http.StatusSwitchingProtocols
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ := rw.Peek(n)
		conn = &begun{conn, slices.Clone(early)}
	}
	return conn, rw, nil
}

// begun is a connection of which a part was read already.
type begun struct {
	net.Conn

	early []byte
}

// Read implements [net.Conn].
func (b *begun) Read(p []byte) (int, error) {
	if len(b.early) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.early)
	b.early = b.early[n:]
	return n, nil
}

// CloseWrite ends one direction. Without that, a connection ends whole.
func (b *begun) CloseWrite() error {
	if half, ok := b.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return b.Close()
}

// statusGone is logged for a client that left before an answer.
const statusGone = 499

// record writes the one line about a request.
func record(r *http.Request, v *visit, status int, took time.Duration) {
	path, query := target(r)
	if status == 0 {
		status = statusGone
	}
	slog.InfoContext(r.Context(), "request", "request", v.id, "route", r.Method+" "+clip(path)+clip(httpx.Redact(query)), "host", clip(r.Host),
		"workspace", v.caller.Workspace, "sandbox", v.upstream.UID, "key", v.caller.Key, "status", status, "took", took)
}
