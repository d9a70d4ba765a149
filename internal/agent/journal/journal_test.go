package journal_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// book is a log that goroutines write to.
type book struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Not in parallel: there is one log.
func TestLog(t *testing.T) {
	b, old := &book{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(b, nil)))
	defer slog.SetDefault(old)
	s := agenttest.Start(t)
	quiet := agenttest.Start(t, "DISABLE_REQUEST_LOGGING=true")

	s.Call(t, "GET", "/health?a=1&token=hunter2&My_Api_KEY=hunter2", "")
	s.Call(t, "GET", "/none%0A{%22source%22:%22audit%22}", "")
	quiet.Call(t, "GET", "/health?quiet", "")
	caller := []string{"X-Blaxel-Subject-Id: alice", "X-Blaxel-Subject-Type: user", "X-Request-Id: r1"}
	s.Call(t, "POST", "/process", `{"name":"one\ntwo","command":"echo\ntrue","waitForCompletion":true}`, caller...)
	s.Call(t, "POST", "/process", `{"name":"streamed","command":"true"}`, append(caller, "Accept: text/event-stream")...)
	s.Call(t, "GET", "/process/streamed/logs", "", "X-Subject-Id: bob")
	s.Call(t, "GET", "/process/streamed/logs/stream", "", caller...)
	s.Call(t, "DELETE", "/process/streamed", "", caller...)
	s.Call(t, "DELETE", "/process/streamed/kill", "", caller...)

	got := b.String()
	for _, want := range []string{
		`"source":"access","route":"GET /health?a=1&token=[hidden]&My_Api_KEY=[hidden]","status":200,"took":`,
		`"source":"access","route":"GET /none%0A`,
		`"source":"audit","event":"process_exec","subject":"alice","subject_type":"user","request":"r1","target":"one\ntwo: echo\ntrue"`,
		`"source":"audit","event":"process_exec_stream","subject":"alice"`,
		`"source":"audit","event":"process_logs_access","subject":"bob"`,
		`"event":"process_logs_stream"`, `"event":"process_stop"`, `"event":"process_kill"`,
		`"route":"DELETE /process/streamed/kill","status":404`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the log has no %s", want)
		}
	}
	if strings.Contains(got, "hunter2") || strings.Contains(got, "quiet") {
		t.Error("the log says too much")
	}
	for line := range strings.Lines(got) {
		if !strings.HasPrefix(line, `{"time":`) {
			t.Errorf("somebody began the line %s", line)
		}
	}
	if t.Failed() {
		t.Logf("it is\n%s", got)
	}
}
