package body

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
	// Free is what each may hold besides: a command must get through while
	// others send large files.
	Free = 64 << 10
	// bodyFirst is the first piece of memory of a body. Most need no more.
	bodyFirst = 512
	// bodyPiece is the largest: what a slow sender may leave unused.
	bodyPiece = 64 << 10
	// giveBack is how much bodies have held that are over when their memory goes
	// back to the sandbox, whether or not there are other requests.
	giveBack = 8 << 20

	// drainMax and drainTime bound what is read of an unwanted body. Its sender reads
	// after it has sent, and must get the answer rather than a broken connection. The
	// edge admits no body larger than drainMax.
	drainMax  = 512 << 20
	drainTime = time.Minute
)

// ErrCrowded is the answer to a body for which there is no memory now.
var ErrCrowded = doze.Errorf(doze.Exhausted, "other requests with large bodies take the memory for this one; send it again later")

// Memory is what the bodies of all requests hold in memory.
type Memory struct {
	max int64

	mu   sync.Mutex
	held int64 // guarded by mu
	past int64 // guarded by mu; what those held that are over, since memory was given back
}

// NewMemory returns what bodies may hold where there are so many bytes of memory.
func NewMemory(memory int64) *Memory { return &Memory{max: memory / 100 * bodiesShare} }

// Hold counts what the body of a request holds in memory, until its release.
func (all *Memory) Hold(r *http.Request) *Incoming {
	in := &Incoming{ReadCloser: r.Body, all: all}
	r.Body = in
	return in
}

// Incoming is the body of one request, and what it holds in memory.
type Incoming struct {
	io.ReadCloser

	all   *Memory
	held  int64 // guarded by all.mu
	ended bool  // all of it was read
}

func (in *Incoming) Read(b []byte) (n int, err error) {
	n, err = in.ReadCloser.Read(b)
	in.ended = in.ended || errors.Is(err, io.EOF)
	return n, err
}

// Take lets the body hold n bytes instead of what it held. One that is alone may
// hold any number.
func (in *Incoming) Take(n int64) bool {
	if n <= Free {
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

// Release ends what the body held, with its request, and reports whether it is
// time to give memory back.
func (in *Incoming) Release() bool {
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
func (in *Incoming) readAll(src io.Reader) ([]byte, error) {
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
		if size += more; !in.Take(int64(size)) {
			return nil, ErrCrowded
		}
		full, b = append(full, b), make([]byte, 0, more)
	}
}

// join makes one of the pieces of a body, for which both must fit.
func (in *Incoming) join(pieces [][]byte, size int) ([]byte, error) {
	if len(pieces) == 1 {
		return pieces[0], nil
	}
	if size > Free && !in.Take(2*int64(size)) {
		return nil, ErrCrowded
	}
	b := slices.Concat(pieces...)
	in.Take(int64(len(b)))
	return b, nil
}

// Refuse answers a request with err, and then reads what is left of its body,
// within bounds.
func Refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, ErrCrowded) {
		w.Header().Set("Retry-After", "1") // seconds
	}
	in, ok := r.Body.(*Incoming)
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
