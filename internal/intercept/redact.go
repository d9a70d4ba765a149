package intercept

import (
	"bytes"
	"io"
	"net/http"
	"slices"
)

// mask stands in an answer for every byte of a secret, so that lengths stay true.
const mask = '*'

// chunk is how much of an answer is looked at in one go.
const chunk = 32 << 10

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
		for i, c := range b {
			if !t.begins[c] {
				continue
			}
			end, more := t.match(b[i:])
			if end > 0 {
				found = append(found, span{i, i + end})
			}
			if more {
				begun = max(begun, len(b)-i)
			}
		}
	}
	return found, begun
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
	buf := slices.Grow(append(r.buf[:0], r.in...), chunk)
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
