package terminal_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/agenttest"
	"github.com/dozehq/doze/internal/agent/terminal"
)

// runner is a client that runs a command in a terminal.
type runner struct {
	t    *testing.T
	conn *websocket.Conn
}

// run starts a command. start is its first frame.
func run(t *testing.T, s *agenttest.Sandbox, query, start string) runner {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), agenttest.Patience)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, s.URL+"/terminal/ws?"+query, &websocket.DialOptions{
		HTTPHeader: http.Header{"Origin": {"https://elsewhere.example"}}, Subprotocols: []string{doze.TerminalProtocol},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	if conn.Subprotocol() != doze.TerminalProtocol {
		t.Fatalf("the protocol is %q", conn.Subprotocol())
	}
	conn.SetReadLimit(1 << 20)
	r := runner{t, conn}
	r.send(start)
	return r
}

func (r runner) send(frame string) {
	r.t.Helper()
	if err := r.conn.Write(r.t.Context(), websocket.MessageText, []byte(frame)); err != nil {
		r.t.Fatal(err)
	}
}

// read reads up to the end, or until a text was shown. It returns what was shown, and the
// last frame, if that is of another type.
func (r runner) read(until string) (shown string, last terminal.Frame) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), agenttest.Patience)
	defer cancel()
	for until == "" || !strings.Contains(shown, until) {
		_, b, err := r.conn.Read(ctx)
		if err != nil {
			if ctx.Err() != nil {
				r.t.Fatalf("seen %q: %v", shown, err)
			}
			break
		}
		last = terminal.Frame{}
		if err := json.Unmarshal(b, &last); err != nil {
			r.t.Fatal(err)
		}
		if last.Type == "output" {
			shown += last.Data
		}
	}
	return shown, last
}

// ends reads to the end, which must be an exit.
func (r runner) ends(code, signal int) (shown string) {
	r.t.Helper()
	shown, last := r.read("")
	if last.Type != "exit" || last.Code == nil || *last.Code != code || last.Signal != signal {
		r.t.Errorf("after %q the last frame is %+v (%v), want the exit %d, %d", shown, last, last.Code, code, signal)
	}
	return shown
}

// TestTerminalRunsACommand: a command in a terminal has its directory, variables and size,
// and its exit is told, whatever it was.
func TestTerminalRunsACommand(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "PS1=")
	r := run(t, s, "sessionId=a&cols=100&rows=30&workingDir="+s.Dir, `{"type":"start","command":"tty -s && echo $A $(stty size) $PWD; exit 7","env":{"A":"it's"}}`)
	if got := r.ends(7, 0); !strings.Contains(got, "it's 30 100 "+s.Dir+"\r\n") {
		t.Errorf("it printed %q", got)
	}
	run(t, s, "sessionId=b", `{"type":"start","command":"kill -SEGV $$"}`).ends(-1, 11)
	run(t, s, "sessionId=c", `{"type":"start","command":"true"}`).ends(0, 0)

	// Input, and a size that changes.
	r = run(t, s, "sessionId=d", `{"type":"start","command":"stty -echo; echo ready; read x; echo [$x] $(stty size)"}`)
	r.read("ready")
	r.send(`{"type":"resize","cols":50,"rows":20}`)
	r.send(`{"type":"input","data":"hello\n"}`)
	if got := r.ends(0, 0); !strings.Contains(got, "[hello] 20 50") {
		t.Errorf("it printed %q", got)
	}

	// The shell itself.
	r = run(t, s, "sessionId=e&shell=sh", `{"type":"start"}`)
	r.send(`{"type":"input","data":"exit 3\n"}`)
	r.ends(3, 0)
}

// TestTerminalSendsSignals: a signal reaches the command and its children.
func TestTerminalSendsSignals(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	r := run(t, s, "sessionId=a", `{"type":"start","command":"trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.05; done"}`)
	r.read("ready")
	r.send(`{"type":"signal","data":"NONE"}`) // is ignored
	r.send(`{"type":"signal","data":"USR1"}`)
	if got := r.ends(9, 0); !strings.Contains(got, "caught") {
		t.Errorf("it printed %q", got)
	}
	r = run(t, s, "sessionId=b", `{"type":"start","command":"echo ready; sleep 1000"}`)
	r.read("ready")
	r.send(`{"type":"signal","data":"TERM"}`)
	r.ends(-1, 15)
}

// TestTerminalLosesNothing: a command waits for a client that is slow.
func TestTerminalLosesNothing(t *testing.T) {
	t.Parallel()
	const lines = 200_000
	s := agenttest.Start(t)
	r := run(t, s, "sessionId=a", fmt.Sprintf(`{"type":"start","command":"seq %d"}`, lines))
	r.read("100\r\n")
	time.Sleep(300 * time.Millisecond) // every buffer on the way is full
	got := r.ends(0, 0)
	if !strings.HasSuffix(got, fmt.Sprintf("\n%d\r\n", lines)) {
		t.Errorf("it ends with %q", got[max(0, len(got)-40):])
	}
	next := 0
	for line := range strings.Lines(got) {
		var n int
		if _, err := fmt.Sscanf(line, "%d", &n); err != nil || next != 0 && n != next {
			continue // the first lines were read before
		}
		next = n + 1
	}
	if next != lines+1 {
		t.Errorf("the lines after %d are not in their order", next)
	}
}

// TestTerminalRefusesACommand says what is wrong with what a client wants to run.
func TestTerminalRefusesACommand(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	for start, want := range map[string]string{
		`{"type":"input","data":"x"}`:                          "the first frame must be of the type start",
		`nonsense`:                                             "the first frame must be of the type start",
		`{"type":"start","command":" "}`:                       "command",
		`{"type":"start","env":{"A":"b"}}`:                     "command",
		`{"type":"start","command":"x","env":{"A=":"b"}}`:      "env",
		`{"type":"start","command":"true","env":{"": "none"}}`: "env",
	} {
		if _, last := run(t, s, "sessionId=a", start).read(""); last.Type != "error" || !strings.Contains(last.Data, want) {
			t.Errorf("%s: %+v", start, last)
		}
	}
	if _, last := run(t, s, "sessionId=b&workingDir=/no/dir", `{"type":"start","command":"true"}`).read(""); last.Type != "error" || !strings.Contains(last.Data, "/no/dir") {
		t.Errorf("%+v", last)
	}
}
