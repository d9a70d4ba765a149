package intercept

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"slices"
	"strings"
)

const (
	// codingsMax is how often a body may be encoded: who does it more often than
	// twice hides something.
	codingsMax = 2
	// ratioMax is how much longer than it came a body may become by each coding.
	// Logs and tables come near a hundred, a bomb has a thousand. Up to ratioFree
	// any will do: that is more than bodyMax.
	ratioMax  = 256
	ratioFree = 4 << 20
	// decodedMax bounds what an answer is decoded to: a processor is busy with
	// it for ten seconds or so.
	decodedMax = 4 << 30
)

var (
	errBomb   = errors.New("the body exceeds the limit after decoding")
	errBehind = errors.New("the body goes on after the end of its encoding")
)

// codings are the content codings that we undo, by name. Each needs a window of 32 KiB,
// whatever the sender chose. zstd and Brotli are not here, since the sender chooses a
// window of many MiB.
var codings = map[string]func(*bufio.Reader) (io.Reader, error){
	"gzip": gunzip, "x-gzip": gunzip, "deflate": inflate,
}

func gunzip(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) }

// inflate reads the format of zlib, which deflate means, or without its frame,
// which some servers mean by it.
func inflate(r *bufio.Reader) (io.Reader, error) {
	head, err := r.Peek(2)
	switch {
	case len(head) == 0:
		return nil, err
	case len(head) == 2 && head[0]&0xf == 8 && (int(head[0])<<8|int(head[1]))%31 == 0:
		return zlib.NewReader(r)
	default:
		return flate.NewReader(r), nil
	}
}

// codingsOf are the codings that headers name, without those that change nothing.
func codingsOf(headers []string) (names []string) {
	for name := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		if name = strings.ToLower(strings.TrimSpace(name)); name != "" && name != "identity" {
			names = append(names, name)
		}
	}
	return names
}

// undo returns what was encoded, in this order, or false if it does not know a
// coding, or there are too many. Nothing is read before the first Read.
func undo(r io.Reader, names []string) (io.Reader, bool) {
	if len(names) > codingsMax {
		return nil, false
	}
	for _, name := range slices.Backward(names) {
		open, ok := codings[name]
		if !ok {
			return nil, false
		}
		l := &layer{came: &counted{Reader: r}, open: open}
		l.from, r = bufio.NewReader(l.came), l
	}
	return r, true
}

// layer is one coding of a body.
type layer struct {
	came *counted
	from *bufio.Reader // of came
	open func(*bufio.Reader) (io.Reader, error)
	to   counted // of nothing before it is open
}

func (l *layer) Read(p []byte) (n int, err error) {
	if l.to.Reader == nil {
		if l.to.Reader, err = l.open(l.from); err != nil {
			return 0, err // io.EOF if there is nothing at all
		}
	}
	n, err = l.to.Read(p)
	if l.to.n > max(ratioFree, ratioMax*l.came.n) {
		return 0, errBomb
	}
	if err != io.EOF { //nolint:errorlint // as io.Reader has it
		return n, err
	}
	if _, err = l.from.ReadByte(); err == nil { // trailers come with the end
		err = errBehind
	}
	return n, err
}

// decoded is the body of an answer without its codings.
type decoded struct {
	counted
	io.Closer
}

func (d *decoded) Read(p []byte) (int, error) {
	n, err := d.counted.Read(p)
	if d.n > decodedMax {
		return 0, errBomb
	}
	return n, err
}

// counted knows how many bytes of it were read.
type counted struct {
	io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}
