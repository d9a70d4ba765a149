package terminal

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/journal"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/page"
)

const (
	// frameMax bounds a frame from a viewer: a large paste.
	frameMax = 1 << 20
	// startMax is how long a client may take to say what to start.
	startMax = 10 * time.Second
	// sessionMax bounds the name of a session, in bytes.
	sessionMax = 256
)

// Frame is a message of a terminal's socket, in both directions.
type Frame struct {
	Type string `json:"type"` // start, input, resize and signal come in; output, error and exit go out
	Data string `json:"data,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`

	// Of start, the first frame of a client that speaks [doze.TerminalProtocol]: what runs
	// instead of the shell, with which variables besides. Without a command it is the shell.
	Command string            `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// Of exit, the last frame to such a client: how it ended, as in the answer of
	// POST /process.
	Code   *int `json:"code,omitempty"`
	Signal int  `json:"signal,omitempty"`
}

// signals are those that a viewer may send, by what is in data.
var signals = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// parseFrame reads what a viewer sends. Nonsense is not an error: it is
// ignored.
func parseFrame(b []byte) (f Frame, ok bool) {
	if json.Unmarshal(b, &f) != nil {
		return f, false
	}
	switch f.Type {
	case "input":
		return f, f.Data != ""
	case "resize":
		return f, f.Cols > 0 && f.Rows > 0
	case "signal":
		return f, signals[f.Data] != 0
	}
	return f, false
}

// parseStart reads the first frame of a client that runs a command, which is nil for
// the shell. Every error is Invalid.
func parseStart(b []byte, dir string, env environ.List) (*command.Spec, error) {
	var f Frame
	if err := json.Unmarshal(b, &f); err != nil || f.Type != "start" {
		return nil, doze.Errorf(doze.Invalid, `the first frame must be of the type start`)
	}
	if f.Command == "" && len(f.Env) == 0 {
		return nil, nil //nolint:nilnil // nil is the shell
	}
	c := &command.Spec{Command: f.Command, Env: f.Env, WorkingDir: dir}
	var p doze.Problems
	c.Complete(env, &p)
	return c, p.Err()
}

// parseOpening reads the query of a connection.
func parseOpening(q url.Values) opening {
	number := func(key string, without uint16) uint16 {
		n, err := strconv.ParseUint(q.Get(key), 10, 16)
		if err != nil || n == 0 {
			return without
		}
		return uint16(n)
	}
	o := opening{
		session: q.Get("sessionId"),
		shell:   q.Get("shell"),
		dir:     q.Get("workingDir"),
		window:  window{number("cols", 80), number("rows", 24)},
	}
	if o.session == "" {
		o.session = "default"
	}
	return o
}

// Open connects a WebSocket to the terminal of a session.
func (t *Terminals) Open(w http.ResponseWriter, r *http.Request, _ string) error {
	if t.off() {
		return route.NoRoute(r)
	}
	o := parseOpening(r.URL.Query())
	switch {
	case !strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		return doze.Errorf(doze.Invalid, "this is a WebSocket; connect with a client for those")
	case len(o.session) > sessionMax:
		return doze.Errorf(doze.Invalid, "sessionId has %d bytes; at most %d are allowed", len(o.session), sessionMax)
	}
	// Any origin may connect: the edge asks for a token, which no page of
	// another origin can send by accident.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, Subprotocols: []string{doze.TerminalProtocol}})
	if err != nil {
		return nil // it has written the answer
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(frameMax)
	v, err := t.enter(r.Context(), conn, o)
	if err != nil {
		_ = send(r.Context(), conn, Frame{Type: "error", Data: doze.Public(err).Message}) // it goes away anyhow
		return nil
	}
	defer v.leave()
	journal.Audit(r, "terminal_connect", o.session)
	defer journal.Audit(r, "terminal_disconnect", o.session)
	ctx, cancel := context.WithCancel(r.Context())
	sent := make(chan struct{})
	go func() { // ends with the terminal, the connection or this call
		defer close(sent)
		defer cancel()
		show(ctx, conn, v)
	}()
	defer func() { cancel(); <-sent }()
	for {
		_, b, err := conn.Read(ctx)
		if err != nil {
			return nil // the viewer left
		}
		switch f, ok := parseFrame(b); {
		case !ok:
		case f.Type == "input":
			v.enter(f.Data)
		case f.Type == "signal":
			v.signal(signals[f.Data])
		default:
			v.resize(window{f.Cols, f.Rows})
		}
	}
}

// enter connects a viewer. One that speaks [doze.TerminalProtocol] first says what it
// wants to run.
func (t *Terminals) enter(ctx context.Context, conn *websocket.Conn, o opening) (*viewer, error) {
	if conn.Subprotocol() == doze.TerminalProtocol {
		bounded, cancel := context.WithTimeout(ctx, startMax)
		defer cancel()
		_, b, err := conn.Read(bounded)
		if err != nil {
			return nil, doze.Wrap(err, doze.Invalid, "nothing said what to start")
		}
		if o.command, err = parseStart(b, o.dir, t.Vars.List()); err != nil {
			return nil, err
		}
		if o.all = true; o.command != nil {
			o.dir = o.command.WorkingDir
		}
	}
	return t.view(o)
}

// show sends what the terminal shows until it is over, and then says goodbye.
func show(ctx context.Context, conn *websocket.Conn, v *viewer) {
	if v.past != "" && send(ctx, conn, Frame{Type: "output", Data: "\x1b[0m" + v.past}) != nil {
		return
	}
	for over := false; ; {
		text, ok := v.next(ctx, over)
		switch {
		case ok && send(ctx, conn, Frame{Type: "output", Data: text}) != nil, ctx.Err() != nil:
			return
		case ok:
		case !over: // what was written until then is in the queue
			over = true
		default:
			if v.all {
				code, signal := v.child.Status.ExitStatus(), 0
				if v.child.Status.Signaled() {
					signal = int(v.child.Status.Signal())
				}
				_ = send(ctx, conn, Frame{Type: "exit", Code: &code, Signal: signal})
			}
			_ = conn.Close(websocket.StatusNormalClosure, "the shell ended") // the viewer may be gone
			return
		}
	}
}

// next waits for the next output. It is not ok at the end of the terminal, of ctx or,
// once the terminal is over, of the queue.
func (v *viewer) next(ctx context.Context, over bool) (text string, ok bool) {
	if over {
		select {
		case text = <-v.output:
			return text, true
		default:
			return "", false
		}
	}
	select {
	case text = <-v.output:
		return text, true
	case <-v.done:
	case <-ctx.Done():
	}
	return "", false
}

func send(ctx context.Context, conn *websocket.Conn, f Frame) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, b)
}

// Show sends the page of a terminal.
func (t *Terminals) Show(w http.ResponseWriter, r *http.Request, _ string) error {
	if t.off() {
		return route.NoRoute(r)
	}
	return page.Terminal(w, page.Pass{}) // the edge in front of us lets the browser in
}

// off reports whether terminals are switched off.
func (t *Terminals) off() bool {
	off := t.Vars.List().Get("DISABLE_TERMINAL")
	return off == "true" || off == "1"
}
