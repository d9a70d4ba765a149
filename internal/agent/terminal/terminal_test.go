package terminal_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "PS1=")
	a := s.Look(t, "cols=100&rows=30&shell=sh&workingDir="+s.Dir)
	a.Enter(t, "echo $TERM $(stty size) $PWD")
	a.Await(t, "xterm-256color 30 100 "+s.Dir)
	a.Send(t, "nonsense")
	a.Send(t, `{"type":"resize","cols":0,"rows":9}`)
	a.Send(t, `{"type":"resize","cols":50,"rows":20}`)
	a.Enter(t, "stty size; printf '\\303'; sleep 0.05; printf '\\274\\n'")
	a.Await(t, "20 50")
	a.Await(t, "ü")

	// A second viewer sees what was there, and both see what comes.
	b := s.Look(t, "cols=70&rows=10")
	_, past, err := b.Next()
	if err != nil || !strings.HasPrefix(past, "\x1b[0m") || !strings.Contains(past, "xterm-256color") {
		t.Errorf("replay %q, %v", past, err)
	}
	b.Enter(t, "stty size")
	a.Await(t, "10 70")
	b.Await(t, "10 70")

	// The end of the shell is the end of the connection, and of its children.
	b.Enter(t, "sleep 1000 & echo pid=$!=; exit")
	b.Await(t, "pid=")
	b.Await(t, "pid=") // the first is the echo of what was typed
	b.Await(t, "=")
	for _, v := range []*agenttest.Screen{a, b} {
		for err = nil; err == nil; {
			_, _, err = v.Next()
		}
		if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
			t.Errorf("closed with %v: %v", code, err)
		}
	}

	// A session that is over is replaced.
	c := s.Look(t, "shell=sh")
	c.Enter(t, "echo fr''esh")
	c.Await(t, "fresh")
}

func TestTerminalSessions(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "PS1=", "TERM=dumb")
	a := s.Look(t, "sessionId=one&shell=sh&token=secret")
	a.Enter(t, "x=mine; echo $TERM")
	a.Await(t, "dumb")
	if err := a.Conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	other := s.Look(t, "sessionId=two&shell=sh")
	other.Enter(t, "echo [$x]")
	other.Await(t, "[]")
	again := s.Look(t, "sessionId=one")
	again.Enter(t, "echo [$x]")
	again.Await(t, "[mine]")
}

func TestTerminalKillsItsSession(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "PS1=")
	a := s.Look(t, "shell=sh")
	a.Enter(t, "set -m; sleep 1000 & echo $! > "+s.Dir+"/pid; exit") // a group of its own
	var pid string
	agenttest.Until(t, "the child runs", func() bool {
		b, _ := os.ReadFile(s.Dir + "/pid")
		pid = strings.TrimSpace(string(b))
		return pid != ""
	})
	agenttest.Until(t, "the child ends", func() bool { return agenttest.Gone(pid) })
}

func TestTerminalRefuses(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	for query, want := range map[string]string{
		"sessionId=a&shell=/no/such":     "no shell /no/such",
		"sessionId=b&workingDir=/no/dir": "/no/dir",
	} {
		v := s.Look(t, query)
		if kind, data, err := v.Next(); kind != "error" || !strings.Contains(data, want) {
			t.Errorf("%s: %s %q, %v", query, kind, data, err)
		}
		if _, _, err := v.Next(); err == nil || websocket.CloseStatus(err) != -1 {
			t.Errorf("%s: then %v", query, err)
		}
	}
	s.Fails(t, 400, "sessionId", "GET", "/terminal/ws?sessionId="+strings.Repeat("x", 300), "", "Upgrade: websocket", "Connection: Upgrade")
	off := agenttest.Start(t, "DISABLE_TERMINAL=1")
	for _, path := range []string{"/terminal", "/terminal/ws"} {
		if status, body := off.Call(t, "GET", path, ""); status != 404 || !strings.Contains(body, `"error":"no such path, or it does not take GET: `+path) {
			t.Errorf("disabled: status %d: %s", status, body)
		}
	}
}

func TestTerminalPage(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	resp := s.Do(t, "GET", "/terminal?token=x", "")
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(b), "</html>\n") {
		t.Errorf("status %d, %d bytes, %v", resp.StatusCode, len(b), err)
	}
	for key, want := range map[string]string{"Content-Type": "text/html; charset=utf-8", "Referrer-Policy": "no-referrer"} {
		if got := resp.Header.Get(key); got != want {
			t.Errorf("%s: %q", key, got)
		}
	}
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'") {
		t.Errorf("the policy is %q", policy)
	}
}

// TestTerminalEndsWithItsShell: what left the session holds the terminal open,
// and is not waited for.
func TestTerminalEndsWithItsShell(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "PS1=")
	a := s.Look(t, "shell=sh")
	a.Enter(t, "setsid sleep 1000 & echo $! > "+s.Dir+"/pid; exit")
	var err error
	for err == nil {
		_, _, err = a.Next()
	}
	if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %v: %v", code, err)
	}
	pid, err := os.ReadFile(s.Dir + "/pid")
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "kill "+string(pid))
}
