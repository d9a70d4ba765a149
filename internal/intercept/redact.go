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

// redactHeader masks secrets in the values of h.
func redactHeader(h http.Header, traces [][]byte) {
	for _, all := range h {
		for i, v := range all {
			if b := []byte(v); redact(b, traces) > 0 {
				all[i] = string(b)
			}
		}
	}
}

// redact masks every trace in b, and returns where the last one ends; 0 without
// any. Those that overlap are all masked.
func redact(b []byte, traces [][]byte) (end int) {
	var found [][2]int
	for _, trace := range traces {
		for at := 0; ; at++ {
			i := bytes.Index(b[at:], trace)
			if i < 0 {
				break
			}
			at += i
			found = append(found, [2]int{at, at + len(trace)})
		}
	}
	for _, f := range found {
		end = max(end, f[1])
		for i := f[0]; i < f[1]; i++ {
			b[i] = mask
		}
	}
	return end
}

// redacted is a body in which secrets are masked as it goes by. It holds back no
// more than what may be the beginning of one.
type redacted struct {
	io.ReadCloser
	traces [][]byte
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
	keep := 0
	if err == nil {
		keep = r.begun(buf)
	} else {
		r.ended()
	}
	r.in = bytes.Clone(buf[len(buf)-keep:]) // as it came: a secret may begin in the end of another one
	end := redact(buf, r.traces)
	for i := range r.masked {
		buf[i] = mask
	}
	r.out = buf[:len(buf)-keep]
	r.masked = max(end, r.masked) - len(r.out)
	r.masked = max(r.masked, 0)
}

// begun is the length of the longest end of b that a secret may begin with.
func (r *redacted) begun(b []byte) int {
	longest := 0
	for _, trace := range r.traces {
		for n := min(len(trace)-1, len(b)); n > longest; n-- {
			if bytes.HasSuffix(b, trace[:n]) {
				longest = n
				break
			}
		}
	}
	return longest
}
