package intercept

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
)

const (
	// webSocket is the one protocol that a request may change to whose answer is
	// searched for secrets.
	webSocket = "websocket"
	// extensionsHeader asks for frames that are compressed, for example.
	extensionsHeader = "Sec-Websocket-Extensions"
)

// Of the header of a frame: see RFC 6455, 5.2.
const (
	frameHead   = 2
	frameMasked = 0x80 // of the second byte
	frameLength = 0x7f // likewise
	frameShort  = 126  // the length follows in two bytes
	frameLong   = 127  // in eight
)

var errFrame = errors.New("a frame of a WebSocket that no server may send")

// searchable leaves a request no way to an answer in a protocol that we cannot search.
func searchable(h http.Header) {
	h.Del(extensionsHeader)
	if !strings.EqualFold(h.Get("Upgrade"), webSocket) {
		h.Del("Upgrade")
		h.Del("Connection") // which has nothing else
	}
}

// frames is a WebSocket in whose frames secrets are masked as they go by. Nothing of
// a frame is held back behind its end: the next one may come much later.
type frames struct {
	io.ReadWriteCloser
	traces []*trace

	head    []byte    // of the frame, not read yet
	payload *redacted // of the frame; nil before the first, and between two
	err     error
}

func (f *frames) Read(p []byte) (int, error) {
	for len(p) > 0 {
		switch {
		case len(f.head) > 0:
			n := copy(p, f.head)
			f.head = f.head[n:]
			return n, nil
		case f.err != nil:
			return 0, f.err
		case f.payload == nil:
			f.begin()
			continue
		}
		n, err := f.payload.Read(p)
		if errors.Is(err, io.EOF) {
			err = f.payload.Close()
			f.payload = nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// begin reads the header of the next frame.
func (f *frames) begin() {
	head := make([]byte, frameHead, frameHead+8)
	n, err := io.ReadFull(f.ReadWriteCloser, head)
	if err != nil {
		f.head, f.err = head[:n], io.EOF
		if n == 0 {
			f.err = err
		}
		return
	}
	if head[1]&frameMasked != 0 {
		f.err = errFrame
		return
	}
	length := uint64(head[1] & frameLength)
	if more := map[uint64]int{frameShort: 2, frameLong: 8}[length]; more > 0 {
		var long [8]byte
		if _, f.err = io.ReadFull(f.ReadWriteCloser, long[8-more:]); f.err != nil {
			return
		}
		head, length = append(head, long[8-more:]...), binary.BigEndian.Uint64(long[:])
	}
	if length > math.MaxInt64 {
		f.err = errFrame
		return
	}
	f.head = head
	f.payload = &redacted{ReadCloser: io.NopCloser(io.LimitReader(f.ReadWriteCloser, int64(length))), traces: f.traces, ended: func() {}}
}

// CloseWrite ends what is sent.
func (f *frames) CloseWrite() error {
	if half, ok := f.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
