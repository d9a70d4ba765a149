package edge

import (
	"context"
	"io"
	"net/http"
	"time"
)

// The rest of a body is read for lingerMax at most, and nothing may come for lingerIdle.
// lingering_time and lingering_timeout of nginx are the same bounds.
const (
	lingerMax  = 30 * time.Second
	lingerIdle = 5 * time.Second
)

// linger reads what is left of the body of a request that was let in and has its answer.
// Most clients read after they have sent: if the connection ended before, they would get a
// reset instead of the answer. Package ingress does so for everybody, but not for long.
// begun says whether any of the body was read. HTTP/2 tells clients without an end of the
// connection.
func (e *Edge) linger(w *recorder, r *http.Request, body io.Reader, begun bool) {
	waits := r.Header.Get("Expect") != "" && !begun // for leave to send, and has the answer instead
	if r.ProtoMajor != 1 || r.ContentLength == 0 || w.status == http.StatusSwitchingProtocols || waits {
		return
	}
	control := http.NewResponseController(w)
	if control.Flush() != nil { // the connection has ended
		return
	}
	stop := context.AfterFunc(r.Context(), func() { _ = control.SetReadDeadline(time.Now()) })
	defer stop()
	piece := e.buffers.Get()
	defer e.buffers.Put(piece)
	for end := time.Now().Add(lingerMax); r.Context().Err() == nil && time.Now().Before(end); {
		if control.SetReadDeadline(time.Now().Add(lingerIdle)) != nil {
			return // without a deadline, a client could hold on for ever
		}
		if _, err := body.Read(piece); err != nil {
			return
		}
	}
}
