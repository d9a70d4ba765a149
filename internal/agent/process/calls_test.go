package process

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/output"
)

// TestSilentStreams: a stream in which nothing happens says so, and what it says
// cannot be taken for output.
func TestSilentStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	calls := NewCalls(New(child.Launcher{}, dir))
	synctest.Test(t, func(t *testing.T) {
		p := &Process{Spec: command.Spec{Name: "silent"}, out: output.New("silent", dir+"/1", output.NewBudget(0, func() bool { return false }), nil), done: make(chan struct{})}
		calls.table.all = append(calls.table.all, p)
		run, log := httptest.NewRecorder(), httptest.NewRecorder()
		var callers sync.WaitGroup
		callers.Go(func() { streamProcess(t.Context(), run, p) })
		callers.Go(func() {
			_ = calls.FollowLogs(log, httptest.NewRequest(http.MethodGet, "/process/silent/logs/stream", nil), "silent")
		})
		time.Sleep(time.Minute + time.Second)
		p.out.Write(output.Stdout, []byte("late\n"))
		p.out.End()
		close(p.done)
		callers.Wait()
		p.out.Close()

		got := map[Event]int{}
		for line := range strings.Lines(run.Body.String()) {
			var e Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Errorf("%v in %q", err, line)
			}
			if e.Type == "result" {
				e.Data = ""
			}
			got[e]++
		}
		want := map[Event]int{{Type: "keepalive"}: int(time.Minute / execKeepAlive), {"stdout", "late\n"}: 1, {Type: "result"}: 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the stream of the command (-want +got):\n%s", diff)
		}
		if want := strings.Repeat("[keepalive]\n", int(time.Minute/logsKeepAlive)) + "stdout:late\n"; log.Body.String() != want {
			t.Errorf("the log is %q", log.Body)
		}
	})
}
