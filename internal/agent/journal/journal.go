// Package journal writes the lines of the log about requests.
package journal

import (
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/httpx"
)

// Quiet is the variable that leaves out the lines about requests.
const Quiet = "DISABLE_REQUEST_LOGGING"

// The sources of lines of the log. It is JSON: what a caller chose cannot begin
// a line.
const (
	accessSource = "access" // one line for each request
	auditSource  = "audit"  // who ran, stopped or looked at something
)

// Answer is a writer that remembers the status of an answer.
type Answer struct {
	http.ResponseWriter

	Status int
}

func (w *Answer) WriteHeader(status int) {
	if w.Status == 0 && status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.Status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *Answer) Write(b []byte) (int, error) {
	if w.Status == 0 {
		w.Status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// ReadFrom lets the kernel send files.
func (w *Answer) ReadFrom(src io.Reader) (int64, error) {
	if w.Status == 0 {
		w.Status = http.StatusOK
	}
	return io.Copy(w.ResponseWriter, src)
}

// Unwrap lets a handler flush and hijack.
func (w *Answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Access writes the line about a request, without the secrets in its query.
func Access(r *http.Request, status int, took time.Duration) {
	query := ""
	if r.URL.RawQuery != "" {
		query = mistake.Clip(httpx.Redact("?" + r.URL.RawQuery))
	}
	slog.InfoContext(r.Context(), "request", "source", accessSource, "route", r.Method+" "+mistake.Clip(r.URL.EscapedPath())+query, "status", status, "took", took)
}

// Audit writes who did what to a process or a terminal, as the edge says. What
// is typed into a terminal is not written: it may be a password.
func Audit(r *http.Request, event, target string) {
	who := func(what string) string {
		if v := r.Header.Get("X-Blaxel-Subject-" + what); v != "" {
			return mistake.Clip(v)
		}
		return mistake.Clip(r.Header.Get("X-Subject-" + what))
	}
	slog.InfoContext(r.Context(), "audit", "source", auditSource, "event", event, "subject", who("Id"), "subject_type", who("Type"),
		"request", mistake.Clip(r.Header.Get("X-Request-Id")), "target", mistake.Clip(target))
}
