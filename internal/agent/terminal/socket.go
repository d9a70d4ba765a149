package terminal

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/journal"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/page"
)

const (
	// frameMax bounds a frame from a viewer: a large paste.
	frameMax = 1 << 20
	// sessionMax bounds the name of a session, in bytes.
	sessionMax = 256
)

// Frame is a message of a terminal's socket, in both directions.
type Frame struct {
	Type string `json:"type"` // input and resize come in, output and error go out
	Data string `json:"data,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
}

// parseFrame reads what a viewer sends. Nonsense is not an error: it is
// ignored.
func parseFrame(b []byte) (f Frame, ok bool) {
	if json.Unmarshal(b, &f) != nil {
		return f, false
	}
	return f, f.Type == "input" && f.Data != "" || f.Type == "resize" && f.Cols > 0 && f.Rows > 0
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
		return route.ErrNoRoute
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
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil // it has written the answer
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(frameMax)
	v, err := t.view(o)
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
		case ok && f.Type == "input":
			v.enter(f.Data)
		case ok:
			v.resize(window{f.Cols, f.Rows})
		}
	}
}

// show sends what the terminal shows until it is over, and then says goodbye.
func show(ctx context.Context, conn *websocket.Conn, v *viewer) {
	if v.past != "" && send(ctx, conn, Frame{Type: "output", Data: "\x1b[0m" + v.past}) != nil {
		return
	}
	for {
		select {
		case text, ok := <-v.output:
			if !ok {
				_ = conn.Close(websocket.StatusNormalClosure, "the shell ended") // the viewer may be gone
				return
			}
			if send(ctx, conn, Frame{Type: "output", Data: text}) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func send(ctx context.Context, conn *websocket.Conn, f Frame) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, b)
}

// Show sends the page of a terminal.
func (t *Terminals) Show(w http.ResponseWriter, _ *http.Request, _ string) error {
	if t.off() {
		return route.ErrNoRoute
	}
	return page.Terminal(w, page.Pass{}) // the edge in front of us lets the browser in
}

// off reports whether terminals are switched off.
func (t *Terminals) off() bool {
	off := t.Vars.List().Get("DISABLE_TERMINAL")
	return off == "true" || off == "1"
}
