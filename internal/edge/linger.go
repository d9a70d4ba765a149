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
	// lingerPiece is what is read of it at a time, in bytes.
	lingerPiece = 32 << 10
)

// linger reads what is left of the body of a request that has its answer. Most clients
// read after they have sent: if the connection ended before, they would get a reset
// instead of the answer. HTTP/2 tells them without an end of the connection.
func linger(ctx context.Context, w http.ResponseWriter, r *http.Request, body io.Reader) {
	if r.ProtoMajor != 1 || r.ContentLength == 0 {
		return
	}
	control := http.NewResponseController(w)
	if control.Flush() != nil { // the connection has ended
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = control.SetReadDeadline(time.Now()) })
	defer stop()
	piece := make([]byte, lingerPiece)
	for end := time.Now().Add(lingerMax); ctx.Err() == nil && time.Now().Before(end); {
		if control.SetReadDeadline(time.Now().Add(lingerIdle)) != nil {
			return // without a deadline, a client could hold on for ever
		}
		if _, err := body.Read(piece); err != nil {
			return
		}
	}
}

// expects reports whether the client of r waits for leave to send, and did not get it.
func expects(r *http.Request, begun bool) bool { return r.Header.Get("Expect") != "" && !begun }
