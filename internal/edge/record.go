package edge

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// recorder remembers the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int // zero while nothing was answered
}

// Unwrap lets http.ResponseController reach what this type does not have.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if status >= http.StatusOK && r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Hijack is called for an answer that switches protocols.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// statusGone is logged for a client that left before an answer.
const statusGone = 499

// record writes the one line about a request.
func record(r *http.Request, v *visit, status int, took time.Duration) {
	path, query := target(r)
	if status == 0 {
		status = statusGone
	}
	slog.InfoContext(r.Context(), "request", "request", v.id, "route", r.Method+" "+clip(path)+redact(query), "host", clip(r.Host),
		"workspace", v.caller.Workspace, "sandbox", v.route.UID, "key", v.caller.Key, "status", status, "took", took)
}
