package agent_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// screen is a viewer of a terminal.
type screen struct {
	conn *websocket.Conn
	ctx  context.Context //nolint:containedctx // the one of the test
	seen string
}

func (s *sandbox) look(t *testing.T, query string) *screen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, s.url+"/terminal/ws?"+query, &websocket.DialOptions{
		HTTPHeader: http.Header{"Origin": {"https://elsewhere.example"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &screen{conn: conn, ctx: ctx}
}

func (s *screen) send(t *testing.T, text string) {
	t.Helper()
	if err := s.conn.Write(s.ctx, websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// enter types a line.
func (s *screen) enter(t *testing.T, line string) {
	t.Helper()
	b, _ := json.Marshal(map[string]string{"type": "input", "data": line + "\n"})
	s.send(t, string(b))
}

// next reads one frame.
func (s *screen) next() (kind, data string, err error) {
	_, b, err := s.conn.Read(s.ctx)
	if err != nil {
		return "", "", err
	}
	var f struct{ Type, Data string }
	err = json.Unmarshal(b, &f)
	return f.Type, f.Data, err
}

// await reads until the text was shown.
func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(s.seen, text) {
		kind, data, err := s.next()
		if err != nil || kind != "output" {
			t.Fatalf("waiting for %q: %s %q, %v; seen %q", text, kind, data, err, s.seen)
		}
		s.seen += data
	}
	_, s.seen, _ = strings.Cut(s.seen, text)
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	s := start(t, "PS1=")
	a := s.look(t, "cols=100&rows=30&shell=sh&workingDir="+s.dir)
	a.enter(t, "echo $TERM $(stty size) $PWD")
	a.await(t, "xterm-256color 30 100 "+s.dir)
	a.send(t, "nonsense")
	a.send(t, `{"type":"resize","cols":0,"rows":9}`)
	a.send(t, `{"type":"resize","cols":50,"rows":20}`)
	a.enter(t, "stty size; printf '\\303'; sleep 0.05; printf '\\274\\n'")
	a.await(t, "20 50")
	a.await(t, "ü")

	// A second viewer sees what was there, and both see what comes.
	b := s.look(t, "cols=70&rows=10")
	_, past, err := b.next()
	if err != nil || !strings.HasPrefix(past, "\x1b[0m") || !strings.Contains(past, "xterm-256color") {
		t.Errorf("replay %q, %v", past, err)
	}
	b.enter(t, "stty size")
	a.await(t, "10 70")
	b.await(t, "10 70")

	// The end of the shell is the end of the connection, and of its children.
	b.enter(t, "sleep 1000 & echo pid=$!=; exit")
	b.await(t, "pid=")
	b.await(t, "pid=") // the first is the echo of what was typed
	b.await(t, "=")
	for _, v := range []*screen{a, b} {
		for err = nil; err == nil; {
			_, _, err = v.next()
		}
		if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
			t.Errorf("closed with %v: %v", code, err)
		}
	}

	// A session that is over is replaced.
	c := s.look(t, "shell=sh")
	c.enter(t, "echo fr''esh")
	c.await(t, "fresh")
}

func TestTerminalSessions(t *testing.T) {
	t.Parallel()
	s := start(t, "PS1=", "TERM=dumb")
	a := s.look(t, "sessionId=one&shell=sh&token=secret")
	a.enter(t, "x=mine; echo $TERM")
	a.await(t, "dumb")
	if err := a.conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	other := s.look(t, "sessionId=two&shell=sh")
	other.enter(t, "echo [$x]")
	other.await(t, "[]")
	again := s.look(t, "sessionId=one")
	again.enter(t, "echo [$x]")
	again.await(t, "[mine]")
}

func TestTerminalKillsItsSession(t *testing.T) {
	t.Parallel()
	s := start(t, "PS1=")
	a := s.look(t, "shell=sh")
	a.enter(t, "set -m; sleep 1000 & echo $! > "+s.dir+"/pid; exit") // a group of its own
	var pid string
	until(t, "the child runs", func() bool {
		b, _ := os.ReadFile(s.dir + "/pid")
		pid = strings.TrimSpace(string(b))
		return pid != ""
	})
	until(t, "the child ends", func() bool { return gone(pid) })
}

func TestTerminalRefuses(t *testing.T) {
	t.Parallel()
	s := start(t)
	for query, want := range map[string]string{
		"sessionId=a&shell=/no/such":     "no shell /no/such",
		"sessionId=b&workingDir=/no/dir": "/no/dir",
	} {
		v := s.look(t, query)
		if kind, data, err := v.next(); kind != "error" || !strings.Contains(data, want) {
			t.Errorf("%s: %s %q, %v", query, kind, data, err)
		}
		if _, _, err := v.next(); err == nil || websocket.CloseStatus(err) != -1 {
			t.Errorf("%s: then %v", query, err)
		}
	}
	s.fails(t, 400, "sessionId", "GET", "/terminal/ws?sessionId="+strings.Repeat("x", 300), "", "Upgrade: websocket", "Connection: Upgrade")
	off := start(t, "DISABLE_TERMINAL=1")
	for _, path := range []string{"/terminal", "/terminal/ws"} {
		if status, body := off.call(t, "GET", path, ""); status != 404 || !strings.Contains(body, `"error":"there is no such path`) {
			t.Errorf("disabled: status %d: %s", status, body)
		}
	}
}

func TestTerminalPage(t *testing.T) {
	t.Parallel()
	s := start(t)
	resp := s.do(t, "GET", "/terminal?token=x", "")
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
	s := start(t, "PS1=")
	a := s.look(t, "shell=sh")
	a.enter(t, "setsid sleep 1000 & echo $! > "+s.dir+"/pid; exit")
	var err error
	for err == nil {
		_, _, err = a.next()
	}
	if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %v: %v", code, err)
	}
	pid, err := os.ReadFile(s.dir + "/pid")
	if err != nil {
		t.Fatal(err)
	}
	s.exec(t, "kill "+string(pid))
}
