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

	// Command runs instead of the shell, as text for a shell, with Env besides the
	// variables of the sandbox. See [Agent.RunTerminal].
	Command string
	Env     map[string]string
}

// Terminal is a shell in a sandbox. One goroutine may read while others
// write.
type Terminal struct {
	conn *websocket.Conn
	runs bool // its end has an exit

	mu      sync.Mutex
	pending []byte // guarded by mu; the beginning of a character
	exit    *Exit  // guarded by mu; how it ended
}

// Exit is how a command ended: with a code, or by a signal of Linux, where the code is
// -1.
type Exit struct {
	Code, Signal int
}

// message is a frame in either direction.
type message struct {
	Type string `json:"type"`
	Data string `json:"data,omitempty"`
	Cols int    `json:"cols,omitempty"`
	Rows int    `json:"rows,omitempty"`

	Command string            `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Code    int               `json:"code,omitempty"`
	Signal  int               `json:"signal,omitempty"`
}

// RunTerminal opens a terminal that runs a command or, without one, a shell, and knows
// how that ends. No output is lost if the caller is slow: the command waits. An agent of an
// older platform cannot do that: the error is Unsupported. The caller closes the terminal.
func (b *Agent) RunTerminal(ctx context.Context, s Screen) (*Terminal, error) {
	t, err := b.open(ctx, s, doze.TerminalProtocol)
	if err != nil {
		return nil, err
	}
	if t.conn.Subprotocol() != doze.TerminalProtocol {
		_ = t.Write(ctx, []byte("exit\n")) // it began a shell that nobody wants
		t.Close()
		return nil, doze.Errorf(doze.Unsupported, "the sandbox was made by an older platform, which runs no commands in terminals: redeploy it, or run the command without a terminal")
	}
	t.runs = true
	if err := t.send(ctx, message{Type: "start", Command: s.Command, Env: s.Env}); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Terminal opens a terminal with a shell, which others may share. The caller closes it.
func (b *Agent) Terminal(ctx context.Context, s Screen) (*Terminal, error) { return b.open(ctx, s) }

func (b *Agent) open(ctx context.Context, s Screen, protocols ...string) (*Terminal, error) {
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
		HTTPClient: b.c.http, HTTPHeader: b.c.identity(), Subprotocols: protocols,
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
			if err = ended(ctx, err); errors.Is(err, io.EOF) && t.runs && t.Exit() == nil {
				err = doze.Errorf(doze.Unavailable, "the connection to the terminal broke; the command may still run")
			}
			return "", err
		}
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			return "", doze.Wrap(err, doze.Unavailable, "the terminal did not answer as expected")
		}
		switch m.Type {
		case "output":
			return m.Data, nil
		case "exit":
			t.mu.Lock()
			t.exit = &Exit{m.Code, m.Signal}
			t.mu.Unlock()
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

// Exit returns how the command ended, or nil if nobody said so.
func (t *Terminal) Exit() *Exit {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit
}

// Signal sends a signal to the command, by its name without SIG: HUP, INT, QUIT, TERM,
// KILL, USR1 or USR2.
func (t *Terminal) Signal(ctx context.Context, name string) error {
	return t.send(ctx, message{Type: "signal", Data: name})
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
