package edge

import (
	"context"
	"io"
	"net/http"
	"time"
)

// lingerMax bounds for how long the rest of a body is read whose request was answered
// early. nginx has the same bound, lingering_time.
const lingerMax = 30 * time.Second

// linger reads what is left of the body of a request that has its answer. Most clients
// read after they have sent: if the connection ended before, they would get a reset
// instead of the answer. HTTP/2 tells them without an end of the connection.
func linger(ctx context.Context, w http.ResponseWriter, r *http.Request, body io.Reader) {
	// A client that expects leave to send has its answer instead. After an upgrade, there is
	// no body.
	if r.ProtoMajor != 1 || r.ContentLength == 0 || r.Header.Get("Expect") != "" || r.Header.Get("Upgrade") != "" {
		return
	}
	control := http.NewResponseController(w)
	// An error of these means that the connection has ended, or that the server cannot
	// do it. Then the rest is as the server has it.
	if control.Flush() != nil || control.SetReadDeadline(time.Now().Add(lingerMax)) != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = control.SetReadDeadline(time.Now()) })
	defer stop()
	_, _ = io.Copy(io.Discard, body)
}
