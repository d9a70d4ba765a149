package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// inside returns the inside of a sandbox whose terminal a function serves.
func inside(t *testing.T, protocols []string, serve func(context.Context, *websocket.Conn)) *client.Agent {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: protocols})
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		serve(r.Context(), conn)
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{Address: srv.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := c.Agent(doze.Sandbox{Metadata: doze.Metadata{URL: srv.URL}})
	if err != nil {
		t.Fatal(err)
	}
	return agent
}

// TestRunTerminalNeedsItsProtocol: an agent that does not know the protocol gets no
// command, and the shell that it began is ended.
func TestRunTerminalNeedsItsProtocol(t *testing.T) {
	t.Parallel()
	typed := make(chan string, 1)
	agent := inside(t, nil, func(ctx context.Context, conn *websocket.Conn) {
		_, b, _ := conn.Read(ctx)
		typed <- string(b)
	})
	_, err := agent.RunTerminal(t.Context(), client.Screen{Command: "rm -r /tmp/x"})
	if doze.Public(err).Kind != doze.Unsupported {
		t.Errorf("%v", err)
	}
	if got := <-typed; got != `{"type":"input","data":"exit\n"}` {
		t.Errorf("it got %s", got)
	}
}

// TestRunTerminal: the command goes first, and the exit is known at the end; a connection
// that breaks before it is no end of the command.
func TestRunTerminal(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		frames []string
		want   *client.Exit
	}{
		"it exits":            {[]string{`{"type":"output","data":"hi"}`, `{"type":"exit","code":7}`}, &client.Exit{Code: 7}},
		"by a signal":         {[]string{`{"type":"output","data":"hi"}`, `{"type":"exit","code":-1,"signal":9}`}, &client.Exit{Code: -1, Signal: 9}},
		"nobody says how":     {[]string{`{"type":"output","data":"hi"}`}, nil},
		"something newer too": {[]string{`{"type":"bell"}`, `{"type":"output","data":"hi"}`, `{"type":"exit"}`}, &client.Exit{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agent := inside(t, []string{doze.TerminalProtocol}, func(ctx context.Context, conn *websocket.Conn) {
				var start struct {
					Type, Command string
					Env           map[string]string
				}
				_, b, err := conn.Read(ctx)
				if err != nil || json.Unmarshal(b, &start) != nil || start.Type != "start" || start.Command != "ls" || start.Env["A"] != "b" {
					t.Errorf("it began with %s, %v", b, err)
				}
				for _, f := range tt.frames {
					if err := conn.Write(ctx, websocket.MessageText, []byte(f)); err != nil {
						t.Error(err)
					}
				}
				_ = conn.Close(websocket.StatusNormalClosure, "")
			})
			term, err := agent.RunTerminal(t.Context(), client.Screen{Command: "ls", Env: map[string]string{"A": "b"}})
			if err != nil {
				t.Fatal(err)
			}
			defer term.Close()
			if data, err := term.Read(t.Context()); err != nil || data != "hi" {
				t.Fatalf("%q, %v", data, err)
			}
			_, err = term.Read(t.Context())
			if ended := errors.Is(err, io.EOF); ended != (tt.want != nil) || !ended && doze.Public(err).Kind != doze.Unavailable {
				t.Errorf("it ended with %v", err)
			}
			if got := term.Exit(); (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
				t.Errorf("the exit is %+v, want %+v", got, tt.want)
			}
		})
	}
}
