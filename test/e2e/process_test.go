package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/client"
)

// TestProcesses runs commands through the edge, in every way the API has.
func TestProcesses(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	sb, agent := create(t, c, named("processes", 1024))
	url := sb.Metadata.URL

	t.Run("wait", func(t *testing.T) {
		t.Parallel()
		var proc client.Process
		call{method: "POST", url: url + "/process", body: `{"command":"cd /tmp; echo out $A; echo err >&2; exit 3","env":{"A":"ä\n"},"waitForCompletion":true,"unknown":1}`}.
			want(t, p, 200).into(t, &proc)
		if proc.ExitCode != 3 || proc.Status != "failed" || proc.Stdout != "out ä\n" || proc.Stderr != "err\n" {
			t.Errorf("%+v", proc)
		}
		a := call{method: "POST", url: url + "/process", body: `{"command":"sleep 30","name":"slow","waitForCompletion":true,"timeout":1}`}.want(t, p, 422)
		if !strings.Contains(a.body, "timed out") {
			t.Error(a.body)
		}
		call{method: "DELETE", url: url + "/process/slow/kill"}.want(t, p, 200)
	})

	t.Run("mistakes", func(t *testing.T) {
		t.Parallel()
		for body, status := range map[string]int{
			`{}`: 400, ``: 400, `[]`: 400, `{"command":""}`: 400, `{"command":7}`: 400, `{"command":"true","timeout":"x"}`: 400,
			`{"command":"true","workingDir":"/none"}`: 422,
		} {
			var said struct{ Error string }
			call{method: "POST", url: url + "/process", body: body}.want(t, p, status).into(t, &said)
			if said.Error == "" {
				t.Errorf("%s: no message", body)
			}
		}
		for _, row := range []string{"GET /process/none", "GET /process/none/logs", "GET /process/none/logs/stream", "DELETE /process/none", "DELETE /process/none/kill", "POST /process/none/stdin", "DELETE /process/none/stdin"} {
			method, path, _ := strings.Cut(row, " ")
			if a := (call{method: method, url: url + path}).want(t, p, 404); !strings.Contains(a.body, `"error"`) {
				t.Errorf("%s: %s", row, a.body)
			}
		}
	})

	t.Run("events", func(t *testing.T) {
		t.Parallel()
		// One line at a time, on both channels: each must come when it is
		// written, and in order.
		const script = `for i in 1 2 3; do echo out $i; sleep 0.2; echo err $i >&2; sleep 0.2; done; exit 5`
		began := time.Now()
		resp, err := call{method: "POST", url: url + "/process", header: map[string]string{"Accept": "text/event-stream"}, body: encode(t, map[string]any{"command": script})}.open(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); got != "application/x-ndjson" {
			t.Errorf("Content-Type %s", got)
		}
		var (
			text   []string
			first  time.Duration
			result client.Process
		)
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			var e struct{ Type, Data string }
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			switch e.Type {
			case "stdout", "stderr":
				if first == 0 {
					first = time.Since(began)
				}
				text = append(text, e.Type+" "+e.Data)
			case "result":
				if err := json.Unmarshal([]byte(e.Data), &result); err != nil {
					t.Fatal(err)
				}
			case "keepalive":
			default:
				t.Errorf("an event of type %q", e.Type)
			}
		}
		const want = "stdout out 1\nstderr err 1\nstdout out 2\nstderr err 2\nstdout out 3\nstderr err 3\n"
		if got := strings.Join(text, ""); got != want {
			t.Errorf("it said %q", got)
		}
		if result.ExitCode != 5 || result.Stdout != "out 1\nout 2\nout 3\n" {
			t.Errorf("the result is %+v", result)
		}
		if all := time.Since(began); first > all/2 {
			t.Errorf("the first line came after %v of %v", first, all)
		}
	})

	t.Run("logs", func(t *testing.T) {
		t.Parallel()
		proc := spawn(t, agent, client.Command{Name: "logger", Command: "echo before; echo warning >&2; while [ ! -e /tmp/go ]; do sleep 0.05; done; printf 'pa'; sleep 0.1; echo rt; echo after"})
		resp, err := call{url: url + "/process/logger/logs/stream"}.open(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		var got []string
		for range 2 {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, line)
		}
		put(t, agent, "/tmp/go", "")
		rest, err := io.ReadAll(lines)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(got, "") + string(rest)
		if all != "stdout:before\nstderr:warning\nstdout:part\nstdout:after\n" && all != "stderr:warning\nstdout:before\nstdout:part\nstdout:after\n" {
			t.Errorf("the stream says %q", all)
		}
		var logs client.Logs
		call{url: url + "/process/" + proc.PID + "/logs"}.want(t, p, 200).into(t, &logs)
		if logs.Stdout != "before\npart\nafter\n" || logs.Stderr != "warning\n" {
			t.Errorf("%+v", logs)
		}
		// Once it is over, the stream is the same and ends at once.
		if a := (call{url: url + "/process/logger/logs/stream"}).want(t, p, 200); a.body != all {
			t.Errorf("the stream says %q later", a.body)
		}
	})

	t.Run("stop and kill", func(t *testing.T) {
		t.Parallel()
		for how, want := range map[string]struct{ path, message, status string }{
			"polite":   {"/process/polite", "Process stopped successfully", "stopped"},
			"stubborn": {"/process/stubborn/kill", "Process killed successfully", "killed"},
		} {
			spawn(t, agent, client.Command{Name: how, Command: "sleep 1000 & echo $!; wait"})
			var child string
			until(t, how+" has a child", func() bool {
				logs, err := agent.Logs(t.Context(), how)
				child = strings.TrimSpace(logs.Stdout)
				return err == nil && child != ""
			})
			var done client.Done
			call{method: "DELETE", url: url + want.path}.want(t, p, 200).into(t, &done)
			if done.Message != want.message {
				t.Errorf("%s: %+v", how, done)
			}
			if proc, err := agent.Process(t.Context(), how); err != nil || proc.Status != want.status {
				t.Errorf("%s is %s at once, %v", how, proc.Status, err)
			}
			until(t, how+" is over with its child", func() bool {
				proc, err := agent.Process(t.Context(), how)
				if err != nil {
					t.Fatal(err)
				}
				return proc.CompletedAt != "" && sh(t, agent, "kill -0 "+child+" 2>/dev/null && echo there || echo gone") == "gone"
			})
			call{method: "DELETE", url: url + "/process/" + how + "/kill"}.want(t, p, 404)
		}
	})

	t.Run("stdin", func(t *testing.T) {
		t.Parallel()
		call{method: "POST", url: url + "/process", body: `{"command":"cat; echo end","name":"reader","stdin":true}`}.want(t, p, 200)
		for i := range 3 {
			call{method: "POST", url: url + "/process/reader/stdin", body: fmt.Sprintf("line %d\n", i)}.want(t, p, 200)
		}
		call{method: "DELETE", url: url + "/process/reader/stdin"}.want(t, p, 200)
		call{method: "DELETE", url: url + "/process/reader/stdin"}.want(t, p, 200)
		if a := (call{url: url + "/process/reader/logs/stream"}).want(t, p, 200); a.body != "stdout:line 0\nstdout:line 1\nstdout:line 2\nstdout:end\n" {
			t.Errorf("it read %q", a.body)
		}
		call{method: "POST", url: url + "/process/reader/stdin", body: "late"}.want(t, p, 409)
		call{method: "POST", url: url + "/process", body: `{"command":"sleep 1000","name":"deaf"}`}.want(t, p, 200)
		call{method: "POST", url: url + "/process/deaf/stdin", body: "x"}.want(t, p, 409)
		call{method: "POST", url: url + "/process", body: `{"command":"true","name":"deaf"}`}.want(t, p, 400)
	})

	t.Run("restarts", func(t *testing.T) {
		t.Parallel()
		var proc client.Process
		call{method: "POST", url: url + "/process", body: `{"command":"echo try; exit 1","restartOnFailure":true,"maxRestarts":1,"waitForCompletion":true}`}.want(t, p, 200).into(t, &proc)
		if proc.RestartCount != 1 || strings.Count(proc.Stdout, "try\n") != 2 || !strings.Contains(proc.Stdout, "[Process failed with exit code 1. Attempting restart 1/1...]") {
			t.Errorf("%+v", proc)
		}
	})

	t.Run("ports", func(t *testing.T) {
		t.Parallel()
		call{method: "POST", url: url + "/process", body: `{"command":"sleep 0.3; exec python3 -m http.server 6000","waitForPorts":[6000],"timeout":30}`}.want(t, p, 200)
		call{url: url + "/port/6000/etc/hostname"}.want(t, p, 200)
		a := call{url: url + "/port/6001/"}.want(t, p, 503)
		if !strings.Contains(a.body, "nothing listens on port 6001") {
			t.Error(a.body)
		}
	})

	t.Run("list", func(t *testing.T) {
		t.Parallel()
		spawn(t, agent, client.Command{Name: "listed", Command: "sleep 1000"})
		all, err := agent.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, proc := range all {
			found = found || proc.Name == "listed" && proc.Status == "running" && proc.CompletedAt == ""
		}
		if !found {
			t.Errorf("%+v", all)
		}
	})

	t.Run("terminal", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		term, err := agent.Terminal(ctx, client.Screen{Cols: 100, Rows: 30, Session: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer term.Close()
		if err := term.Write(ctx, []byte("echo $((6*7)); stty size; exit\n")); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for {
			piece, err := term.Read(ctx)
			if err != nil {
				if ctx.Err() != nil {
					t.Fatalf("the terminal goes on after its shell: %q", all.String())
				}
				break
			}
			all.WriteString(piece)
		}
		if !strings.Contains(all.String(), "42\r\n30 100\r\n") {
			t.Errorf("the terminal shows %q", all.String())
		}
	})
}
