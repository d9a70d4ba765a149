package edge

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"sync/atomic"
)

var errBodyTooLarge = errors.New("the body is too large")

// limitedBody is a request body with an end, and with the trailers that come
// behind it. Its Close does nothing: what is left of the body is read by linger, and the
// server closes it.
type limitedBody struct {
	io.Reader
	in   *http.Request // whose Trailer is filled in at the end of the body
	left int64
	// The handler reads these, and the transport writes them.
	begun, over, ended atomic.Bool

	out http.Header // the trailers that the sandbox gets
}

func (b *limitedBody) exceeded() bool { return b.over.Load() }

func (b *limitedBody) Close() error { return nil }

// trailer returns the map that will hold the trailers. Only those announced
// and not of the platform pass.
func (b *limitedBody) trailer() http.Header {
	b.out = maps.Clone(b.in.Trailer)
	maps.DeleteFunc(b.out, func(name string, _ []string) bool { return isOurs(name) })
	return b.out
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.over.Load() {
		return 0, errBodyTooLarge
	}
	b.begun.Store(true)
	n, err := b.Reader.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.over.Store(true)
		return 0, errBodyTooLarge
	}
	if err == io.EOF {
		b.ended.Store(true)
		for name := range b.out {
			b.out[name] = b.in.Trailer[name]
		}
	}
	return n, err
}
