package process_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestExecWaits(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "AGENT=one", "SHADOWED=agent")
	if err := os.Mkdir(filepath.Join(s.Dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		body string
		want agenttest.Process
	}{
		"output":        {`{"command":"echo out; echo err >&2"}`, agenttest.Process{Status: "completed", Stdout: "out\n", Stderr: "err\n"}},
		"nothing":       {`{"command":"true"}`, agenttest.Process{Status: "completed"}},
		"exit code":     {`{"command":"exit 3"}`, agenttest.Process{Status: "failed", ExitCode: 3}},
		"not found":     {`{"command":"no-such-program 2>/dev/null"}`, agenttest.Process{Status: "failed", ExitCode: 127}},
		"signal":        {`{"command":"kill -9 $$"}`, agenttest.Process{Status: "failed", ExitCode: -1, Signal: 9}},
		"environment":   {`{"command":"echo $AGENT $SHADOWED $MINE","env":{"SHADOWED":"request","MINE":"a b\n$(id)"}}`, agenttest.Process{Status: "completed", Stdout: "one request a b $(id)\n"}},
		"directory":     {`{"command":"basename $PWD","workingDir":"` + s.Dir + `/sub"}`, agenttest.Process{Status: "completed", Stdout: "sub\n", WorkingDir: s.Dir + "/sub"}},
		"home":          {`{"command":"basename $PWD","workingDir":"~/sub"}`, agenttest.Process{Status: "completed", Stdout: "sub\n", WorkingDir: s.Dir + "/sub"}},
		"no stdin":      {`{"command":"cat; echo end"}`, agenttest.Process{Status: "completed", Stdout: "end\n"}},
		"unknown field": {`{"command":"true","cwd":"/x"}`, agenttest.Process{Status: "completed"}},
		"background":    {`{"command":"sleep 60 & echo started"}`, agenttest.Process{Status: "completed", Stdout: "started\n"}},
		"no newline":    {`{"command":"printf x"}`, agenttest.Process{Status: "completed", Stdout: "x"}},
		"timeout":       {`{"command":"echo in time","timeout":30}`, agenttest.Process{Status: "completed", Stdout: "in time\n"}},
		"blocking pipe": {`{"command":"python3 -c 'import os;print(os.get_blocking(1))' 2>/dev/null || echo True"}`, agenttest.Process{Status: "completed", Stdout: "True\n"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := agenttest.Get[agenttest.Process](t, s, "POST", "/process", strings.TrimSuffix(test.body, "}")+`,"waitForCompletion":true}`)
			var req struct{ Command string }
			_ = json.Unmarshal([]byte(test.body), &req)
			test.want.Command = req.Command
			logs := test.want.Stdout + test.want.Stderr
			test.want.Logs = &logs
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(agenttest.Process{}, "PID", "Name", "StartedAt", "CompletedAt")); diff != "" {
				t.Error(diff)
			}
			if got.CompletedAt == nil || *got.CompletedAt == "" || !strings.HasSuffix(got.StartedAt, " GMT") {
				t.Errorf("times: %q, %v", got.StartedAt, got.CompletedAt)
			}
			if at, err := time.Parse(time.RFC1123, got.StartedAt); err != nil || time.Since(at).Abs() > time.Minute {
				t.Errorf("startedAt %q is not now in UTC: %v", got.StartedAt, err)
			}
			if pid, err := strconv.Atoi(got.PID); err != nil || pid < 2 || !strings.HasPrefix(got.Name, "proc-") || len(got.Name) != 13 {
				t.Errorf("pid %q, name %q", got.PID, got.Name)
			}
		})
	}
}

func TestStartAnswersAtOnce(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	status, body := s.Call(t, "POST", "/process", `{"command":"sleep 60","name":"s","maxRestarts":2}`)
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 {
		t.Fatal(status, body, err)
	}
	want := map[string]any{
		"name": "s", "command": "sleep 60", "workingDir": "", "status": "running", "completedAt": "", "exitCode": 0.0,
		"logs": nil, "stdout": "", "stderr": "", "restartOnFailure": false, "maxRestarts": 2.0, "restartCount": 0.0,
		"keepAlive": false, "stdin": false, "signal": 0.0,
	}
	delete(got, "pid")
	delete(got, "startedAt")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, list := s.Call(t, "GET", "/process", "")
	if !strings.Contains(list, `"completedAt":null`) {
		t.Errorf("a running process in the list: %s", list)
	}
}

func TestExecRefuses(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	file := s.Write(t, "file", "")
	s.Spawn(t, "taken", "sleep 60")
	tests := map[string]struct {
		status     int
		body, want string
	}{
		"empty body":     {400, ``, "empty"},
		"bad json":       {400, `{"command":`, "JSON"},
		"trailing":       {400, `{"command":"true"} x`, "JSON"},
		"no command":     {400, `{}`, "command is required"},
		"blank command":  {400, `{"command":" "}`, "command is required"},
		"wrong type":     {400, `{"command":1}`, "command must be a string, not number"},
		"wrong types":    {400, `{"waitForPorts":["a"],"timeout":"x","name":7,"env":[],"stdin":1,"command":"true"}`, "env must be an object, not array; name must be a string, not number; stdin must be true or false, not number; timeout must be a whole number, not string; waitForPorts[0] must be a whole number, not string"},
		"half a second":  {400, `{"command":"true","timeout":0.5}`, "timeout must be a whole number, not number 0.5"},
		"all mistakes":   {400, `{"env":{"":"","=":""},"waitForPorts":[0,70000]}`, "command is required; env has the entry \"\"; a name must not be empty or have a =, and neither part a NUL byte; env has the entry \"=\"; a name must not be empty or have a =, and neither part a NUL byte; waitForPorts has the port 0; it must be 1 to 65535; waitForPorts has the port 70000; it must be 1 to 65535"},
		"wrong timeout":  {400, `{"command":"true","timeout":"x"}`, "timeout"},
		"name taken":     {400, `{"command":"true","name":"taken"}`, "process with name 'taken' already exists and is running"},
		"NUL":            {400, `{"command":"a\u0000b"}`, "NUL"},
		"bad variable":   {400, `{"command":"true","env":{"A=B":"c"}}`, "A=B"},
		"bad port":       {400, `{"command":"true","waitForPorts":[0]}`, "1 to 65535"},
		"long name":      {400, `{"command":"true","name":"` + strings.Repeat("n", 300) + `"}`, "300 bytes"},
		"missing folder": {422, `{"command":"pwd","workingDir":"/no/such"}`, "could not execute command 'pwd' because folder '/no/such' does not exist"},
		"relative":       {422, `{"command":"pwd","workingDir":"no-such"}`, "folder 'no-such' does not exist"},
		"no folder":      {422, `{"command":"pwd","workingDir":"` + file + `"}`, "is not a folder"},
		"too long":       {422, `{"command":"` + strings.Repeat("x", 1<<20) + `"}`, "argument list too long"},
		"timeout":        {422, `{"command":"sleep 60","timeout":1,"waitForCompletion":true,"name":"late"}`, "process timed out after 1 seconds; it goes on as late"},
		"its end":        {422, `{"command":"sleep 60","timeout":1,"waitForCompletion":true,"keepAlive":true,"name":"gone"}`, "process timed out after 1 seconds; with keepAlive, it is killed then; see the logs of gone"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Fails(t, test.status, test.want, "POST", "/process", test.body)
			if name == "timeout" {
				if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/late", ""); p.Status != "running" {
					t.Errorf("after the timeout: %s", p.Status)
				}
			}
		})
	}
}

func TestNoShell(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "PATH=/nowhere")
	s.Fails(t, 422, "the image has no shell", "POST", "/process", `{"command":"true"}`)
	s.Fails(t, 422, "the image has no shell", "POST", "/process", `{"command":"/bin/echo $HOME"}`)
	if p := s.Exec(t, "/bin/echo hello"); p.Stdout != "hello\n" { // which needs none
		t.Errorf("got %+v", p)
	}
}

func TestShellOfTheImage(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "SHELL=/bin/echo", "SHELL_ARGS=-n  -e")
	if p := s.Exec(t, "hello"); p.Stdout != "hello" {
		t.Errorf("got %q", p.Stdout)
	}
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	const callers = 20
	var won atomic.Int32
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			status, body := s.Call(t, "POST", "/process", `{"command":"sleep 60","name":"only"}`)
			switch {
			case status == 200:
				won.Add(1)
			case status != 400 || !strings.Contains(body, "already exists"):
				t.Errorf("status %d: %s", status, body)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of %d callers got the name", won.Load(), callers)
	}
	s.Call(t, "DELETE", "/process/only/kill", "")
	agenttest.Until(t, "the name is free", func() bool {
		status, _ := s.Call(t, "POST", "/process", `{"command":"true","name":"only","waitForCompletion":true}`)
		return status == 200
	})
	if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/only", ""); p.Command != "true" {
		t.Errorf("the name finds %q, not the newest", p.Command)
	}
}

func TestIdentifiers(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	p := s.Spawn(t, "a/b ü", "echo x; sleep 60")
	s.Spawn(t, "123456789", "sleep 60")
	for _, id := range []string{p.PID, "a%2Fb%20%C3%BC"} {
		if got := agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+id, ""); got.Name != "a/b ü" {
			t.Errorf("%s finds %q", id, got.Name)
		}
	}
	for _, path := range []string{"", "/logs", "/logs/stream"} {
		s.Fails(t, 404, "process not found", "GET", "/process/none"+path, "")
		s.Fails(t, 404, "process not found", "GET", "/process/123456789"+path, "") // numbers are pids
	}
	s.Fails(t, 404, "process not found", "DELETE", "/process/none", "")
	s.Fails(t, 404, "process not found", "DELETE", "/process/none/kill", "")
	s.Fails(t, 404, "process not found", "POST", "/process/none/stdin", "x")
	s.Fails(t, 404, "process not found", "DELETE", "/process/none/stdin", "")
}

func TestStopAndKill(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		command string
		method  string // the path after the name
		message string
		status  string
		code    int
		signal  int
	}{
		"stop":         {"sleep 60", "", "Process stopped successfully", "stopped", -1, 15},
		"kill":         {"sleep 60", "/kill", "Process killed successfully", "killed", -1, 9},
		"stop, code 7": {"trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done", "", "Process stopped successfully", "stopped", 7, 0},
		"stop, code 0": {"trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", "", "Process stopped successfully", "completed", 0, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := agenttest.Start(t)
			// A child in the background shows that the whole group is hit.
			p := s.Spawn(t, "p", "sleep 61 & echo $! > "+s.Dir+"/child; "+test.command)
			var child string
			agenttest.Until(t, "the child runs", func() bool {
				b, _ := os.ReadFile(filepath.Join(s.Dir, "child"))
				child = strings.TrimSpace(string(b))
				return child != "" && (!strings.Contains(test.command, "ready") || agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", "").Stdout != "")
			})
			got := agenttest.Get[map[string]string](t, s, "DELETE", "/process/p"+test.method, "")
			if diff := cmp.Diff(map[string]string{"path": "", "message": test.message}, got); diff != "" {
				t.Error(diff)
			}
			if now := agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", ""); now.Status == "running" {
				t.Error("it is still called running")
			}
			var end agenttest.Process
			agenttest.Until(t, "it ends", func() bool {
				end = agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+p.PID, "")
				return *end.CompletedAt != ""
			})
			if end.Status != test.status || end.ExitCode != test.code || end.Signal != test.signal {
				t.Errorf("it ended as %s, %d, by signal %d", end.Status, end.ExitCode, end.Signal)
			}
			agenttest.Until(t, "the child ends", func() bool { return agenttest.Gone(child) })
			s.Fails(t, 404, "not running", "DELETE", "/process/p", "")
			s.Fails(t, 404, "not running", "DELETE", "/process/p/kill", "")
		})
	}
}

func TestKillAfterStop(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Spawn(t, "deaf", "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	agenttest.Until(t, "it is ready", func() bool { return agenttest.Get[agenttest.Process](t, s, "GET", "/process/deaf", "").Stdout != "" })
	for range 2 { // a second stop is fine while it lives
		agenttest.Get[map[string]string](t, s, "DELETE", "/process/deaf", "")
		p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/deaf", "")
		if p.Status != "stopped" || *p.CompletedAt != "" {
			t.Errorf("after stop: %s, %q", p.Status, *p.CompletedAt)
		}
	}
	agenttest.Get[map[string]string](t, s, "DELETE", "/process/deaf/kill", "")
	agenttest.Until(t, "it is killed", func() bool {
		p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/deaf", "")
		return p.Status == "killed" && *p.CompletedAt != ""
	})
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	tests := map[string]struct {
		body     string
		status   string
		restarts int
		stdout   string
	}{
		"used up": {
			`{"command":"echo $MINE; exit 4","env":{"MINE":"try"},"restartOnFailure":true,"maxRestarts":1}`, "failed", 1,
			"try\n\n[Process failed with exit code 4. Attempting restart 1/1...]\ntry\n",
		},
		"unlimited": {
			`{"command":"test -e ` + s.Dir + `/flag || { touch ` + s.Dir + `/flag; exit 1; }","restartOnFailure":true,"maxRestarts":-1}`, "completed", 1,
			"\n[Process failed with exit code 1. Attempting restart 1/unlimited...]\n",
		},
		"none": {`{"command":"exit 1","restartOnFailure":true}`, "failed", 0, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := agenttest.Get[agenttest.Process](t, s, "POST", "/process", strings.TrimSuffix(test.body, "}")+`,"waitForCompletion":true}`)
			if got.Status != test.status || got.RestartCount != test.restarts || got.Stdout != test.stdout {
				t.Errorf("%s after %d restarts: %q", got.Status, got.RestartCount, got.Stdout)
			}
		})
	}
}

func TestStopBetweenRestarts(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	first := s.Spawn(t, "loop", "echo try; exit 1", `"restartOnFailure":true`, `"maxRestarts":-1`)
	// The notice is written when the process is dead and the next not begun.
	agenttest.Until(t, "it fails", func() bool {
		return strings.Contains(agenttest.Get[agenttest.Process](t, s, "GET", "/process/loop", "").Stdout, "Attempting restart 2/")
	})
	if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/loop", ""); p.Status != "running" || p.ExitCode != 0 {
		t.Errorf("it is %s with the code %d", p.Status, p.ExitCode)
	}
	agenttest.Get[map[string]string](t, s, "DELETE", "/process/"+first.PID, "")
	agenttest.Until(t, "it is over", func() bool {
		p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/loop", "")
		return p.Status == "stopped" && *p.CompletedAt != "" && p.PID == first.PID && p.RestartCount == 1 && p.ExitCode == 1
	})
}

func TestStopAfterRestart(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	flag := filepath.Join(s.Dir, "flag")
	s.Spawn(t, "p", "test -e "+flag+" || { touch "+flag+"; exit 1; }; echo second; sleep 60", `"restartOnFailure":true`, `"maxRestarts":1`)
	agenttest.Until(t, "it restarts", func() bool {
		return strings.Contains(agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", "").Stdout, "second")
	})
	if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", ""); p.Status != "running" || p.ExitCode != 0 {
		t.Errorf("it is %s with the code of the first attempt, %d", p.Status, p.ExitCode)
	}
	agenttest.Get[map[string]string](t, s, "DELETE", "/process/p", "")
	agenttest.Until(t, "it is over", func() bool { return *agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", "").CompletedAt != "" })
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	type answer struct {
		KeepAlive int
		KeptAgo   *int64
	}
	ask := func() answer { return agenttest.Get[answer](t, s, "GET", "/doze/keepalive", "") }
	holding := func() int { return ask().KeepAlive }
	if a := ask(); a.KeepAlive != 0 || a.KeptAgo != nil {
		t.Fatalf("at first: %+v", a)
	}
	began := time.Now()
	for _, name := range []string{"a", "b"} {
		if p := s.Spawn(t, name, "sleep 60", `"keepAlive":true`, `"timeout":0`); !p.KeepAlive {
			t.Errorf("%s is not kept", name)
		}
	}
	s.Spawn(t, "c", "true", `"keepAlive":true`)
	agenttest.Until(t, "the short one ends", func() bool { return holding() == 2 })
	if a := ask(); a.KeptAgo == nil || *a.KeptAgo < 0 || *a.KeptAgo > time.Since(began).Milliseconds() {
		t.Errorf("after the end of one: %+v", a)
	}
	agenttest.Get[map[string]string](t, s, "DELETE", "/process/a", "")
	if n := holding(); n != 1 {
		t.Errorf("%d after a stop", n)
	}
	agenttest.Get[map[string]string](t, s, "DELETE", "/process/b/kill", "")
	if n := holding(); n != 0 {
		t.Errorf("%d after a kill", n)
	}
	p := agenttest.Get[agenttest.Process](t, s, "POST", "/process", `{"command":"sleep 60","keepAlive":true,"timeout":1}`)
	agenttest.Until(t, "the timeout kills it", func() bool {
		p = agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+p.PID, "")
		return p.Status == "killed" && !p.KeepAlive && *p.CompletedAt != ""
	})
}

func TestStreamingExec(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	tests := map[string]struct {
		command string
		want    map[string]string // by type
		status  string
	}{
		"both":       {"echo a; echo b >&2; echo c", map[string]string{"stdout": "a\nc\n", "stderr": "b\n"}, "completed"},
		"nothing":    {"exit 5", map[string]string{}, "failed"},
		"split rune": {`printf '\303'; sleep 0.05; printf '\274x\303'`, map[string]string{"stdout": "üx\ufffd"}, "completed"},
		"a lot":      {"head -c 3000000 /dev/zero | tr '\\0' x", map[string]string{"stdout": strings.Repeat("x", 3000000)}, "completed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp := s.Do(t, "POST", "/process", agenttest.Object(t, map[string]string{"command": test.command}), "Accept: text/event-stream")
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-ndjson" {
				t.Fatalf("status %d, %s", resp.StatusCode, resp.Header.Get("Content-Type"))
			}
			got, result := map[string]string{}, ""
			in := json.NewDecoder(resp.Body)
			for in.More() {
				var e struct{ Type, Data string }
				if err := in.Decode(&e); err != nil {
					t.Fatal(err)
				}
				switch {
				case result != "":
					t.Errorf("%v after the result", e)
				case e.Type == "result":
					result = e.Data
				default:
					got[e.Type] += e.Data
				}
			}
			delete(got, "keepalive")
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			var p agenttest.Process
			if err := json.Unmarshal([]byte(result), &p); err != nil || p.Status != test.status {
				t.Errorf("result %s: %v", result, err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		s.Fails(t, 400, "command is required", "POST", "/process", `{}`, "Accept: text/event-stream")
		status, body := s.Call(t, "POST", "/process", `{"command":"x","workingDir":"/no"}`, "Accept: text/event-stream")
		if status != 200 || !strings.HasPrefix(body, `{"type":"error","data":"could not execute`) {
			t.Errorf("status %d: %s", status, body)
		}
	})
}

func TestStreamIsLive(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	for path, want := range map[string][2]string{
		"exec": {`{"type":"stdout","data":"first\n"}`, `{"type":"stdout","data":"\n[Process is being forcefully killed]\n"}`},
		"logs": {"stdout:first", "stdout:"},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			body := agenttest.Object(t, map[string]string{"command": "echo first; sleep 60", "name": path})
			var resp *http.Response
			if path == "exec" {
				resp = s.Do(t, "POST", "/process", body, "Accept: text/event-stream")
			} else {
				s.Call(t, "POST", "/process", body)
				resp = s.Do(t, "GET", "/process/logs/logs/stream", "")
			}
			in := bufio.NewScanner(resp.Body)
			if !in.Scan() || in.Text() != want[0] {
				t.Fatalf("first %q, %v", in.Text(), in.Err())
			}
			agenttest.Get[map[string]string](t, s, "DELETE", "/process/"+path+"/kill", "")
			if !in.Scan() || in.Text() != want[1] {
				t.Fatalf("then %q, %v", in.Text(), in.Err())
			}
			for in.Scan() {
				if strings.HasPrefix(in.Text(), `{"type":"keepalive"`) {
					continue
				}
				if path == "exec" && !strings.Contains(in.Text(), `\"status\":\"killed\"`) || path == "logs" && in.Text() != "stdout:[Process is being forcefully killed]" {
					t.Errorf("last %q", in.Text())
				}
			}
			// The notice is no output.
			if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+path, ""); p.Stdout != "first\n" {
				t.Errorf("kept %q", p.Stdout)
			}
		})
	}
}

func TestDisconnectLeavesProcess(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	resp := s.Do(t, "POST", "/process", `{"command":"echo a; sleep 60","name":"p"}`, "Accept: text/event-stream")
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", ""); p.Status != "running" {
		t.Errorf("it is %s", p.Status)
	}
}

// Every line of both streams, once and in order, whoever connects when.
func TestLogStreamIsExact(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	const lines = 3000
	command := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done; printf last`, lines)
	s.Spawn(t, "p", command)
	var readers sync.WaitGroup
	check := func() {
		resp := s.Do(t, "GET", "/process/p/logs/stream", "")
		if ct := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || ct != "text/plain; charset=utf-8" {
			t.Errorf("status %d, %s", resp.StatusCode, ct)
		}
		next := map[string]int{}
		in := bufio.NewScanner(resp.Body)
		for in.Scan() {
			name, text, _ := strings.Cut(in.Text(), ":")
			want := fmt.Sprintf("%s %d", strings.TrimPrefix(name, "std"), next[name])
			if name == "stdout" && next[name] == lines {
				want = "last"
			}
			if text != want {
				t.Errorf("%s: %q, want %q", name, text, want)
				return
			}
			next[name]++
		}
		if next["stdout"] != lines+1 || next["stderr"] != lines || in.Err() != nil {
			t.Errorf("got %v, %v", next, in.Err())
		}
	}
	for range 4 {
		readers.Go(check)
	}
	readers.Wait()
	check() // of a process that is over
}

func TestLogStreamAcrossRestarts(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Spawn(t, "p", `printf "half"; exit 2`, `"restartOnFailure":true`, `"maxRestarts":1`)
	_, body := s.Call(t, "GET", "/process/p/logs/stream", "")
	want := "stdout:half\nstdout:[Process failed with exit code 2. Attempting restart 1/1...]\nstdout:half\n"
	if diff := cmp.Diff(want, body); diff != "" {
		t.Error(diff)
	}
}

// A reader that is slower than the process holds it up rather than losing
// output, however much there is.
func TestSlowReaderLosesNothing(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	const size = 48 << 20 // more than is kept
	resp := s.Do(t, "POST", "/process", agenttest.Object(t, map[string]string{
		"command": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", size), "name": "p",
	}), "Accept: text/event-stream")
	in := bufio.NewReaderSize(resp.Body, 1<<20)
	line, err := in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Count(line, "x")
	agenttest.Until(t, "the ring is full", func() bool {
		files, _ := filepath.Glob(s.Logs + "/*.stdout")
		if len(files) != 1 {
			return false
		}
		info, err := os.Stat(files[0])
		return err == nil && info.Size() == 32<<20
	})
	if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", ""); p.Status != "running" {
		t.Errorf("it is %s though nobody read its output", p.Status)
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		if strings.HasPrefix(line, `{"type":"stdout"`) {
			if strings.Contains(line, "truncated") {
				t.Fatal("output was lost")
			}
			got += strings.Count(line, "x")
		}
	}
	if got != size {
		t.Errorf("got %d of %d bytes", got, size)
	}
	// What is kept is bounded, and said to be.
	files, _ := filepath.Glob(s.Logs + "/*")
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.Size() > 32<<20 {
			t.Errorf("%s has %d bytes", f, info.Size())
		}
	}
	p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/p", "")
	if !strings.HasPrefix(p.Stdout, "[... truncated, ") || len(p.Stdout) > 66<<10 {
		t.Errorf("a tail of %d bytes", len(p.Stdout))
	}
	logs := agenttest.Get[agenttest.Process](t, s, "GET", "/process/p/logs", "")
	if n := len(logs.Stdout); n < 4<<20 || n > 4<<20+100 {
		t.Errorf("logs of %d bytes", n)
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	p := s.Exec(t, "echo out; echo err >&2")
	got := agenttest.Get[map[string]string](t, s, "GET", "/process/"+p.Name+"/logs", "")
	want := map[string]string{"stdout": "out\n", "stderr": "err\n", "logs": "out\nerr\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestStdin(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Spawn(t, "cat", "cat", `"stdin":true`)
	s.Spawn(t, "none", "sleep 60")
	for _, text := range []string{"one\n", "two\n", ""} {
		if got := agenttest.Get[map[string]string](t, s, "POST", "/process/cat/stdin", text); got["message"] == "" {
			t.Errorf("answer %v", got)
		}
	}
	// Concurrent writers do not mix, though each writes more than a pipe takes.
	var writers sync.WaitGroup
	const block = 300_000
	for _, c := range "abcd" {
		writers.Go(func() {
			agenttest.Get[map[string]string](t, s, "POST", "/process/cat/stdin", strings.Repeat(string(c), block)+"\n")
		})
	}
	writers.Wait()
	for range 2 {
		agenttest.Get[map[string]string](t, s, "DELETE", "/process/cat/stdin", "")
	}
	s.Fails(t, 409, "closed", "POST", "/process/cat/stdin", "late")
	var p agenttest.Process
	agenttest.Until(t, "cat ends", func() bool {
		p = agenttest.Get[agenttest.Process](t, s, "GET", "/process/cat", "")
		return p.Status == "completed"
	})
	logs := agenttest.Get[agenttest.Process](t, s, "GET", "/process/cat/logs", "")
	rest, ok := strings.CutPrefix(logs.Stdout, "one\ntwo\n")
	if !ok || len(rest) != 4*(block+1) {
		t.Errorf("%d bytes, %.20q", len(logs.Stdout), logs.Stdout)
	}
	for line := range strings.Lines(rest) {
		if len(line) != block+1 || strings.Trim(line, line[:1]) != "\n" {
			t.Errorf("a mixed line of %d bytes", len(line))
		}
	}
	s.Spawn(t, "deaf", "exec <&-; echo ready; exec sleep 60", `"stdin":true`)
	agenttest.Until(t, "it closes its stdin", func() bool { return agenttest.Get[agenttest.Process](t, s, "GET", "/process/deaf", "").Stdout != "" })
	// A process of another test has the reading end until it runs its program.
	agenttest.Until(t, "nobody reads", func() bool {
		resp := s.Do(t, "POST", "/process/deaf/stdin", "unheard")
		if resp.StatusCode == http.StatusOK {
			return false
		}
		if unwritten := resp.Header.Get("Doze-Unwritten"); resp.StatusCode != http.StatusConflict || unwritten != "7" {
			t.Errorf("status %d, %q bytes not written", resp.StatusCode, unwritten)
		}
		return true
	})
	s.Fails(t, 409, "without stdin", "POST", "/process/none/stdin", "x")
	s.Fails(t, 409, "without stdin", "DELETE", "/process/none/stdin", "")
	s.Fails(t, 413, "8 MiB", "POST", "/process/none/stdin", strings.Repeat("x", 8<<20+1))
}

func TestWaitForPorts(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Fails(t, 422, "process timed out waiting for ports after 1 seconds", "POST", "/process", `{"command":"sleep 60","waitForPorts":[1],"timeout":1}`)
	s.Fails(t, 422, "ended before it served its ports", "POST", "/process", `{"command":"true","waitForPorts":[1]}`)
}

func TestFinishedProcessesAreBounded(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a thousand processes")
	}
	s := agenttest.Start(t)
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 260 {
				s.Exec(t, "true")
			}
		})
	}
	callers.Wait()
	if n := len(agenttest.Get[[]agenttest.Process](t, s, "GET", "/process", "")); n < 990 || n > 1000 {
		t.Errorf("%d processes are remembered", n)
	}
}

func BenchmarkExecTrueWaited(b *testing.B) {
	s := agenttest.Start(b)
	for b.Loop() {
		if status, body := s.Call(b, "POST", "/process", `{"command":"true","waitForCompletion":true}`); status != 200 {
			b.Fatal(body)
		}
	}
}
