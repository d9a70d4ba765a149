package serve

import (
	"fmt"
	"net/http"
	"time"
)

// timingEnv is the variable that adds a header with the time until an answer
// begins.
const timingEnv = "ENABLE_PROCESSING_TIME"

// timed is a writer that adds that header.
type timed struct {
	http.ResponseWriter

	began time.Time
	sent  bool
}

func (t *timed) WriteHeader(status int) {
	if !t.sent && status >= http.StatusOK { // an interim answer comes before
		t.sent = true
		ms := float64(time.Since(t.began).Microseconds()) / 1000
		t.Header().Set("Server-Timing", fmt.Sprintf(`total;dur=%.2f;desc="until the answer begins"`, ms))
	}
	t.ResponseWriter.WriteHeader(status)
}

func (t *timed) Write(b []byte) (int, error) {
	if !t.sent {
		t.WriteHeader(http.StatusOK)
	}
	return t.ResponseWriter.Write(b)
}

// Unwrap lets a handler flush and hijack.
func (t *timed) Unwrap() http.ResponseWriter { return t.ResponseWriter }
