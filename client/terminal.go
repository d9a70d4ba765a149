package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
)

// frameMax bounds a message of a terminal in bytes: a replay of its last
// output, escaped.
const frameMax = 4 << 20

// Screen says how a terminal begins.
type Screen struct {
	Cols, Rows int
	Session    string // sockets with the same one share a shell; empty means the common one
	Shell      string // empty means the default of the sandbox
	WorkingDir string
}

// Terminal is a shell in a sandbox. One goroutine may read while others
// write.
type Terminal struct {
	conn *websocket.Conn

	mu      sync.Mutex
	pending []byte // guarded by mu; the beginning of a character
}

// message is a frame in either direction.
type message struct {
	Type string `json:"type"`
	Data string `json:"data,omitempty"`
	Cols int    `json:"cols,omitempty"`
	Rows int    `json:"rows,omitempty"`
}

// Terminal opens a terminal. The caller closes it.
func (b *Agent) Terminal(ctx context.Context, s Screen) (*Terminal, error) {
	q := url.Values{}
	for name, n := range map[string]int{"cols": s.Cols, "rows": s.Rows} {
		if n > 0 {
			q.Set(name, strconv.Itoa(n))
		}
	}
	for name, v := range map[string]string{"sessionId": s.Session, "shell": s.Shell, "workingDir": s.WorkingDir} {
		if v != "" {
			q.Set(name, v)
		}
	}
	conn, resp, err := websocket.Dial(ctx, b.base+"/terminal/ws?"+q.Encode(), &websocket.DialOptions{
		HTTPClient: b.c.http, HTTPHeader: b.c.identity(),
	})
	if resp != nil && resp.Body != nil {
		defer func() { _ = resp.Body.Close() }()
	}
	switch {
	case err == nil:
		conn.SetReadLimit(frameMax)
		return &Terminal{conn: conn}, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case resp != nil && resp.StatusCode >= http.StatusMultipleChoices:
		return nil, readError(resp)
	default:
		return nil, doze.Wrap(err, doze.Unavailable, "the terminal does not answer")
	}
}

// Read returns the next piece of output. It is io.EOF when the shell has
// ended.
func (t *Terminal) Read(ctx context.Context) (string, error) {
	for {
		_, b, err := t.conn.Read(ctx)
		if err != nil {
			return "", ended(ctx, err)
		}
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			return "", doze.Wrap(err, doze.Unavailable, "the terminal did not answer as expected")
		}
		switch m.Type {
		case "output":
			return m.Data, nil
		case "error":
			return "", doze.Errorf(doze.Unprocessable, "%s", m.Data)
		}
	}
}

func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case websocket.CloseStatus(err) == websocket.StatusNormalClosure, errors.Is(err, io.EOF):
		return io.EOF
	default:
		return doze.Wrap(err, doze.Unavailable, "the connection to the terminal broke")
	}
}

// Write sends keys. A character that is not complete waits for its rest,
// since frames hold text.
func (t *Terminal) Write(ctx context.Context, keys []byte) error {
	t.mu.Lock()
	t.pending = append(t.pending, keys...)
	n := complete(t.pending)
	data := string(t.pending[:n])
	t.pending = append(t.pending[:0], t.pending[n:]...)
	t.mu.Unlock()
	if data == "" {
		return nil
	}
	return t.send(ctx, message{Type: "input", Data: data})
}

// complete returns the length of b without an unfinished character at its end.
func complete(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if at := len(b) - i; utf8.RuneStart(b[at]) {
			if !utf8.FullRune(b[at:]) {
				return at
			}
			break
		}
	}
	return len(b)
}

// Resize tells the shell the size of the screen.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	return t.send(ctx, message{Type: "resize", Cols: cols, Rows: rows})
}

func (t *Terminal) send(ctx context.Context, m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return doze.Wrap(err, doze.Internal, "internal error")
	}
	if err := t.conn.Write(ctx, websocket.MessageText, b); err != nil {
		return ended(ctx, err)
	}
	return nil
}

// Close leaves the terminal. Its shell lives on for a while if it has not
// ended.
func (t *Terminal) Close() { _ = t.conn.CloseNow() }
