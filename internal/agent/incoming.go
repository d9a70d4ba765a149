package agent

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// bodiesShare of the memory is what the bodies of all requests may hold
	// together. To decode one takes up to three times as much.
	bodiesShare = 10 // percent
	// bodyFree is what each may hold besides: a command must get through while
	// others send large files.
	bodyFree = 64 << 10
	// bodyFirst is the first piece of memory of a body. Most need no more.
	bodyFirst = 512
	// bodyPiece is the largest: what a slow sender may leave unused.
	bodyPiece = 64 << 10
	// giveBack is how much bodies have held that are over when their memory goes
	// back to the sandbox, whether or not there are other requests.
	giveBack = 8 << 20

	// drainMax and drainTime bound what is read of a body that nobody wants, so
	// that its sender, which reads after it has sent, gets the answer rather
	// than a broken connection. More than drainMax the edge lets nobody send.
	drainMax  = 512 << 20
	drainTime = time.Minute
)

// errCrowded is the answer to a body for which there is no memory now.
var errCrowded = doze.Errorf(doze.Exhausted, "other requests with large bodies take the memory for this one; send it again later")

// bodies is what the bodies of all requests hold in memory.
type bodies struct {
	max int64

	mu   sync.Mutex
	held int64 // guarded by mu
	past int64 // guarded by mu; what those held that are over, since memory was given back
}

// newBodies returns what bodies may hold where there are so many bytes of memory.
func newBodies(memory int64) *bodies { return &bodies{max: memory / 100 * bodiesShare} }

// hold counts what the body of a request holds in memory, until its release.
func (all *bodies) hold(r *http.Request) *incoming {
	in := &incoming{ReadCloser: r.Body, all: all}
	r.Body = in
	return in
}

// incoming is the body of one request, and what it holds in memory.
type incoming struct {
	io.ReadCloser

	all   *bodies
	held  int64 // guarded by all.mu
	ended bool  // all of it was read
}

func (in *incoming) Read(b []byte) (n int, err error) {
	n, err = in.ReadCloser.Read(b)
	in.ended = in.ended || errors.Is(err, io.EOF)
	return n, err
}

// take lets the body hold n bytes instead of what it held. One that is alone may
// hold any number.
func (in *incoming) take(n int64) bool {
	if n <= bodyFree {
		return true
	}
	in.all.mu.Lock()
	defer in.all.mu.Unlock()
	others := in.all.held - in.held
	if others > 0 && others+n > in.all.max {
		return false
	}
	in.all.held, in.held = others+n, n
	return true
}

// release ends what the body held, with its request, and reports whether it is
// time to give memory back.
func (in *incoming) release() bool {
	all := in.all
	all.mu.Lock()
	defer all.mu.Unlock()
	all.held -= in.held
	all.past += in.held
	in.held = 0
	if all.past < giveBack {
		return false
	}
	all.past = 0
	return true
}

// readAll reads all of src, which is the body with a limit on it. It comes in
// pieces: to make room by moving it would leave as much again for the collector,
// of each slow sender.
func (in *incoming) readAll(src io.Reader) ([]byte, error) {
	b, size := make([]byte, 0, bodyFirst), bodyFirst // of all pieces
	var full [][]byte
	for {
		n, err := src.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case errors.Is(err, io.EOF):
			return in.join(append(full, b), size)
		case err != nil:
			return nil, err
		case len(b) < cap(b):
			continue
		}
		more := min(size, bodyPiece)
		if size += more; !in.take(int64(size)) {
			return nil, errCrowded
		}
		full, b = append(full, b), make([]byte, 0, more)
	}
}

// join makes one of the pieces of a body, for which both must fit.
func (in *incoming) join(pieces [][]byte, size int) ([]byte, error) {
	if len(pieces) == 1 {
		return pieces[0], nil
	}
	if size > bodyFree && !in.take(2*int64(size)) {
		return nil, errCrowded
	}
	b := slices.Concat(pieces...)
	in.take(int64(len(b)))
	return b, nil
}

// refuse answers a request with err, and then reads what is left of its body,
// within bounds.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errCrowded) {
		w.Header().Set("Retry-After", "1") // seconds
	}
	in, ok := r.Body.(*incoming)
	if !ok || in.ended {
		httpx.WriteErrorAs(w, r, err, httpx.SandboxBody)
		return
	}
	answer := http.NewResponseController(w)
	// An error of these means that the answer comes after the body.
	_ = answer.EnableFullDuplex()
	_ = answer.SetReadDeadline(time.Now().Add(drainTime)) // without it, the edge has one
	httpx.WriteErrorAs(w, r, err, httpx.SandboxBody)
	_ = answer.Flush()
	_, _ = io.CopyN(io.Discard, in, drainMax) // the answer says what is wrong
}
