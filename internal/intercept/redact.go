package intercept

import (
	"bytes"
	"errors"
	"io"
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
			found, _, err := find([]byte(v), traces)
			if err != nil {
				found = []span{{0, len(v)}}
			}
			if len(found) > 0 {
				b := []byte(v)
				redact(b, found)
				all[i] = string(b)
			}
		}
	}
}

// span is where something is in a text.
type span struct{ start, end int }

// errLong reports padding too long to be accidental, around a secret or the beginning
// of a secret.
var errLong = errors.New("the padding around a possible secret exceeds the limit")

// find returns where secrets are in b, also those that overlap, and the length of
// the longest end of b that one may begin with, or errLong if that is too long.
func find(b []byte, traces []*trace) (found []span, begun int, err error) {
	var begins, first [256]bool
	for _, t := range traces {
		for c, is := range t.begins {
			begins[c] = begins[c] || is
			first[c] = first[c] || t.same(byte(c), t.text[0])
		}
	}
	in := text{table: known, b: b}
	var escaped []reading
	for i, c := range b {
		if !begins[c] || !first[c] && in.dull(i, &first) {
			continue
		}
		in.more = false
		escaped = in.escaped(i, layers, escaped[:0])
		for _, t := range traces {
			if !t.begins[c] || !in.more && (!t.mayBegin(c, escaped) || !in.escapers[c] && !t.goesOn(b[i+1:])) {
				continue
			}
			end, more := t.match(b[i:])
			if end > 0 {
				found = append(found, span{i, i + end})
			}
			if more {
				begun = max(begun, len(b)-i)
				if len(b)-i > t.longest {
					err = errLong
				}
			}
		}
	}
	return found, begun, err
}

// goesOn reports whether b may be behind the first character of what is looked for.
func (t *trace) goesOn(b []byte) bool {
	return len(b) == 0 || len(t.text) == 1 || t.same(b[0], t.text[1]) || known.escapers[b[0]] || t.encoded && (b[0] == '\r' || b[0] == '\n')
}

// mayBegin reports whether a byte, or one of the readings of what it begins, is at the
// beginning of what is looked for.
func (t *trace) mayBegin(c byte, escaped []reading) bool {
	if t.same(c, t.text[0]) {
		return true
	}
	for _, r := range escaped {
		var bytes [4]byte
		if n, ok := t.follows(r.bytes(bytes[:0]), 0); ok && n > 0 {
			return true
		}
	}
	return false
}

// redact masks what was found in b.
func redact(b []byte, found []span) {
	for _, f := range found {
		for i := f.start; i < f.end; i++ {
			b[i] = mask
		}
	}
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
	found, held, long := find(buf, r.traces)
	if long != nil {
		r.in, r.out, r.err = nil, nil, long
		r.ended()
		return
	}
	if err != nil {
		held = 0
		r.ended()
	}
	r.in = bytes.Clone(buf[len(buf)-held:]) // as it came: a secret may begin in the end of another one
	redact(buf, found)
	for i := range r.masked {
		buf[i] = mask
	}
	r.out = buf[:len(buf)-held]
	for _, f := range found {
		if f.start < len(r.out) { // the others are found again
			r.masked = max(r.masked, f.end)
		}
	}
	r.masked = max(r.masked-len(r.out), 0)
}
