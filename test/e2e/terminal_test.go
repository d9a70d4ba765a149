package e2e_test

import (
	"context"
	"testing"

	"github.com/coder/websocket"
)

// TestTerminalEnds: a terminal closes with its shell, also while a process that
// left its session has it open.
func TestTerminalEnds(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	sb, agent := create(t, c, named("terminal", 256))
	ws := dial(t, p, sb.Metadata.URL+"/terminal/ws")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := ws.Write(ctx, websocket.MessageText, []byte(`{"type":"input","data":"setsid sleep 304 &\nexit\n"}`)); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, _, err = ws.Read(ctx)
	}
	if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %v: %v", code, err)
	}
	if got := sh(t, agent, "pgrep -f 'sleep 304' >/dev/null && echo lives"); got != "lives" {
		t.Errorf("the process that left is gone: %q", got)
	}
}
