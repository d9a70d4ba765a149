package agent

import (
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/dozehq/doze/internal/httpx"
)

// quietEnv is the variable that leaves out the lines about requests.
const quietEnv = "DISABLE_REQUEST_LOGGING"

// The sources of lines of the log. It is JSON: what a caller chose cannot begin
// a line.
const (
	accessSource = "access" // one line for each request
	auditSource  = "audit"  // who ran, stopped or looked at something
)

// answered is a writer that remembers the status of an answer.
type answered struct {
	http.ResponseWriter

	status int
}

func (w *answered) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answered) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// ReadFrom lets the kernel send files.
func (w *answered) ReadFrom(src io.Reader) (int64, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return io.Copy(w.ResponseWriter, src)
}

// Unwrap lets a handler flush and hijack.
func (w *answered) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// logAccess writes the line about a request, without the secrets in its query.
func logAccess(r *http.Request, status int, took time.Duration) {
	query := ""
	if r.URL.RawQuery != "" {
		query = clip(httpx.Redact("?" + r.URL.RawQuery))
	}
	slog.InfoContext(r.Context(), "request", "source", accessSource, "route", r.Method+" "+clip(r.URL.EscapedPath())+query, "status", status, "took", took)
}

// audit writes who did what to a process or a terminal, as the edge says. What
// is typed into a terminal is not written: it may be a password.
func audit(r *http.Request, event, target string) {
	who := func(what string) string {
		if v := r.Header.Get("X-Blaxel-Subject-" + what); v != "" {
			return clip(v)
		}
		return clip(r.Header.Get("X-Subject-" + what))
	}
	slog.InfoContext(r.Context(), "audit", "source", auditSource, "event", event, "subject", who("Id"), "subject_type", who("Type"),
		"request", clip(r.Header.Get("X-Request-Id")), "target", clip(target))
}
