package intercept

import (
	"bytes"
	"io"
	"iter"
	"net/http"
	"slices"
	"sync"
)

// mask stands in an answer for every byte of a secret, so that lengths stay true.
const mask = '*'

// chunk is how much of an answer is looked at in one go: at least half of it.
const chunk = 32 << 10

// buffers have the length of a chunk. A request would spend as much time on new
// ones as on all the rest.
var buffers pool

// pool implements [httputil.BufferPool].
type pool struct{ all sync.Pool }

func (p *pool) Get() []byte {
	if b, ok := p.all.Get().(*[chunk]byte); ok {
		return b[:]
	}
	return make([]byte, chunk)
}

// Put takes a buffer that nobody uses any more; one of another size is dropped.
func (p *pool) Put(b []byte) {
	if cap(b) == chunk {
		p.all.Put((*[chunk]byte)(b[:chunk]))
	}
}

// redactHeader masks secrets in the values of h, and removes what has one in its
// name.
func redactHeader(h http.Header, traces []*trace) {
	for name, all := range h {
		if slices.ContainsFunc(traces, func(t *trace) bool { return t.names(name) }) {
			delete(h, name)
			continue
		}
		for i, v := range all {
			if found, _ := find([]byte(v), traces); len(found) > 0 {
				b := []byte(v)
				redact(b, found)
				all[i] = string(b)
			}
		}
	}
}

// span is where something is in a text.
type span struct{ start, end int }

// find returns where secrets are in b, also those that overlap, and the length of
// the longest end of b that one may begin with.
func find(b []byte, traces []*trace) (found []span, begun int) {
	for _, t := range traces {
		for _, c := range t.begins {
			for i := range places(b, c) {
				end, more := t.match(b[i:])
				if end > 0 {
					found = append(found, span{i, i + end})
				}
				if more {
					begun = max(begun, len(b)-i)
				}
			}
		}
	}
	return found, begun
}

// places are those of a byte in b. They are rare, and the processor has
// instructions that skip what is between them.
func places(b []byte, c byte) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; ; i++ {
			n := bytes.IndexByte(b[i:], c)
			if n < 0 {
				return
			}
			if i += n; !yield(i) {
				return
			}
		}
	}
}

// redact masks what was found in b, and returns where the last one ends; 0
// without any.
func redact(b []byte, found []span) (end int) {
	for _, f := range found {
		end = max(end, f.end)
		for i := f.start; i < f.end; i++ {
			b[i] = mask
		}
	}
	return end
}

// redacted is a body in which secrets are masked as it goes by. It holds back no
// more than what may be the beginning of one.
type redacted struct {
	io.ReadCloser
	traces []*trace
	ended  func() // when the body is over, before that is said

	buf     []byte // of which out is a part
	in, out []byte // read and not looked through yet; looked through
	masked  int    // so many bytes of in belong to a secret that began before them
	err     error
}

// Close ends the body, of which nothing is read any more.
func (r *redacted) Close() error {
	if r.buf != nil {
		buffers.Put(r.buf)
	}
	r.buf, r.out, r.err = nil, nil, http.ErrBodyReadAfterClose
	return r.ReadCloser.Close()
}

func (r *redacted) Read(p []byte) (int, error) {
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// fill reads on, and sets aside what cannot be part of a secret any more.
func (r *redacted) fill() {
	if r.buf == nil {
		r.buf = buffers.Get()
	}
	buf := slices.Grow(append(r.buf[:0], r.in...), chunk/2)
	r.buf = buf
	n, err := r.ReadCloser.Read(buf[len(buf):cap(buf)])
	buf, r.err = buf[:len(buf)+n], err
	found, keep := find(buf, r.traces)
	if err != nil {
		keep = 0
		r.ended()
	}
	r.in = bytes.Clone(buf[len(buf)-keep:]) // as it came: a secret may begin in the end of another one
	end := redact(buf, found)
	for i := range r.masked {
		buf[i] = mask
	}
	r.out = buf[:len(buf)-keep]
	r.masked = max(end, r.masked) - len(r.out)
	r.masked = max(r.masked, 0)
}
