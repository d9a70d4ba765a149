package entrypoint_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
	"github.com/dozehq/doze/internal/agentapi"
)

// start runs an agent whose image has a directory of its own.
func start(t *testing.T, env ...string) (s *agenttest.Sandbox, dir string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return agenttest.Start(t, append(env, "DOZE_WORKDIR="+dir)...), dir
}

// begin has an agent run what an image says, as its host does.
func begin(t *testing.T, s *agenttest.Sandbox, in agentapi.Image) {
	t.Helper()
	agenttest.Get[any](t, s, "POST", "/doze/image", agenttest.Object(t, in))
}

// shell is an image that runs a line of a shell.
func shell(line string) agentapi.Image { return agentapi.Image{Program: []string{"sh", "-c", line}} }

// entry is the process of the image.
func entry(t *testing.T, s *agenttest.Sandbox) agenttest.Process {
	t.Helper()
	return agenttest.Get[agenttest.Process](t, s, "GET", "/process/entrypoint", "")
}

// restart starts the process of the image again, as soon as its name is free.
func restart(t *testing.T, s *agenttest.Sandbox, body string) (p agenttest.Process) {
	t.Helper()
	agenttest.Until(t, "the name is free", func() bool {
		status, answer := s.Call(t, "POST", "/process", body)
		return status == http.StatusOK && json.Unmarshal([]byte(answer), &p) == nil
	})
	return p
}

// await waits until the host hears what it wants to.
func await(t *testing.T, s *agenttest.Sandbox, what string, ok func(agentapi.ImageState) bool) (state agentapi.ImageState) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), agenttest.Patience)
	defer cancel()
	c := agentapi.Client{Transport: to(s.URL)}
	for {
		next, err := c.AwaitImage(ctx, state.Change)
		if err != nil {
			t.Fatalf("%s: %v; the last state is %+v", what, err, state)
		}
		if next.Change <= state.Change || next.At == 0 {
			t.Fatalf("%+v follows on %+v", next, state)
		}
		if state = next; ok(state) {
			return state
		}
	}
}

// to sends every request to one server.
type to string

// RoundTrip implements [http.RoundTripper].
func (o to) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = strings.TrimPrefix(string(o), "http://")
	return http.DefaultTransport.RoundTrip(r)
}

// TestBegin: the program of the image is a process like all others. It runs without a
// shell, in the directory and with the variables of the sandbox, once.
func TestBegin(t *testing.T) {
	t.Parallel()
	s, dir := start(t, "WORD=$HOME")
	in := agentapi.Image{Program: []string{"sh", "-c", `echo "$WORD" "$1"; pwd; exec sleep 1000`, "it's", "a  b"}}
	begin(t, s, in)
	begin(t, s, in)
	begin(t, s, shell("echo another"))
	agenttest.Until(t, "it writes", func() bool { return strings.Count(entry(t, s).Stdout, "\n") == 2 })
	p := entry(t, s)
	if want := "$HOME a  b\n" + dir + "\n"; p.Stdout != want || p.Status != "running" || !p.RestartOnFailure || p.KeepAlive {
		t.Errorf("it is %+v, want %q", p, want)
	}
	if want := `sh -c 'echo "$WORD" "$1"; pwd; exec sleep 1000' 'it'\''s' 'a  b'`; p.Command != want {
		t.Errorf("its command is %s, want %s", p.Command, want)
	}
	all := agenttest.Get[[]agenttest.Process](t, s, "GET", "/process", "")
	if len(all) != 1 || all[0].Name != "entrypoint" {
		t.Errorf("there are %+v", all)
	}
	if state := await(t, s, "it runs", func(agentapi.ImageState) bool { return true }); state.Status != "running" || state.Health != "" {
		t.Errorf("the host hears %+v", state)
	}
	s.Fails(t, 400, "already exists", "POST", "/process", `{"name":"entrypoint","command":"true"}`)
}

// TestEnds: a program that ends by itself is completed and stays so: images without a
// service run a shell or an interpreter, which find no input.
func TestEnds(t *testing.T) {
	t.Parallel()
	for name, program := range map[string][]string{"a shell": {"sh"}, "a program": {"true"}, "it reads": {"cat"}} {
		s := agenttest.Start(t)
		begin(t, s, agentapi.Image{Program: program})
		state := await(t, s, name+" ends", func(i agentapi.ImageState) bool { return i.Status != "running" })
		if state.Status != "completed" || state.ExitCode != 0 || state.Restarts != 0 || state.Message != "" {
			t.Errorf("%s: %+v", name, state)
		}
	}
}

// TestNoProgram: a program that is not there is a failure that says so, and callers can
// start it once it is there.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	begin(t, s, agentapi.Image{Program: []string{"./app", "-v"}})
	state := await(t, s, "it fails", func(i agentapi.ImageState) bool { return i.Status == "failed" })
	if !strings.Contains(state.Message, "there is no program './app'") {
		t.Errorf("the host hears %+v", state)
	}
	s.Exec(t, `printf '#!/bin/sh\necho hello "$@"\n' >app && chmod +x app`)
	p := agenttest.Get[agenttest.Process](t, s, "POST", "/process", `{"name":"entrypoint","waitForCompletion":true}`)
	if p.Stdout != "hello -v\n" || p.Status != "completed" {
		t.Errorf("it is %+v", p)
	}
	await(t, s, "it ends", func(i agentapi.ImageState) bool { return i.Status == "completed" && i.Message == "" })
}

// TestStopAndStart: callers stop the program and start it again, with other variables if
// they like.
func TestStopAndStart(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	begin(t, s, shell(`trap 'echo asked; exit 0' INT; trap '' TERM; echo "ready $WORD"; while :; do sleep 0.01; done`))
	s.Fails(t, 400, "command", "POST", "/process", `{"name":"web"}`)
	agenttest.Until(t, "it runs", func() bool { return entry(t, s).Stdout != "" })
	agenttest.Get[any](t, s, "DELETE", "/process/entrypoint/kill", "")
	await(t, s, "it is killed", func(i agentapi.ImageState) bool { return i.Status == "killed" })
	again := restart(t, s, `{"name":"entrypoint","env":{"WORD":"again"}}`)
	if again.Status != "running" || !again.RestartOnFailure || again.MaxRestarts != 10 {
		t.Errorf("it is %+v", again)
	}
	agenttest.Until(t, "it runs again", func() bool { return entry(t, s).Stdout == "ready again\n" })
	await(t, s, "the host hears of it", func(i agentapi.ImageState) bool { return i.Status == "running" })
}

// TestStopSignal: the image says what asks its program to end, and nothing else does.
func TestStopSignal(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*agenttest.Sandbox){
		"by a caller": func(s *agenttest.Sandbox) { agenttest.Get[any](t, s, "DELETE", "/process/entrypoint", "") },
		"at the end":  func(s *agenttest.Sandbox) { agenttest.Get[any](t, s, "POST", "/doze/stop", "") },
	} {
		s := agenttest.Start(t)
		in := shell(`trap 'echo int; exit 0' INT; trap 'echo term; exit 1' TERM; echo ready; while :; do sleep 0.01; done`)
		in.StopSignal = 2
		begin(t, s, in)
		agenttest.Until(t, "it runs", func() bool { return entry(t, s).Stdout != "" })
		stop(s)
		agenttest.Until(t, "it ends", func() bool { return *entry(t, s).CompletedAt != "" })
		if p := entry(t, s); !strings.Contains(p.Stdout, "int\n") || strings.Contains(p.Stdout, "term") || p.Status != "completed" {
			t.Errorf("%s: it is %+v", name, p)
		}
	}
}

// TestRestart: a program that fails starts again, with longer and longer pauses, and the
// host hears of each start.
func TestRestart(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	begin(t, s, shell(`echo try; test -e flag || { touch flag; exit 7; }; exec sleep 1000`))
	state := await(t, s, "it starts again", func(i agentapi.ImageState) bool { return i.Restarts == 1 })
	if state.Status != "running" {
		t.Errorf("the host hears %+v", state)
	}
	agenttest.Until(t, "it runs", func() bool { return strings.Count(entry(t, s).Stdout, "try\n") == 2 })
	if p := entry(t, s); !strings.Contains(p.Stdout, "[Process failed with exit code 7. Attempting restart 1/10...]") {
		t.Errorf("it says %q", p.Stdout)
	}
}

// TestGivesUp: a program that fails again and again is a failure in the end.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	begin(t, s, shell("exit 7"))
	agenttest.Until(t, "it fails", func() bool { return entry(t, s).Stdout != "" })
	agenttest.Get[any](t, s, "DELETE", "/process/entrypoint", "") // between two starts
	await(t, s, "it is stopped", func(i agentapi.ImageState) bool { return i.Status == "stopped" })
	restart(t, s, `{"name":"entrypoint","restartOnFailure":true,"maxRestarts":1}`)
	state := await(t, s, "it gives up", func(i agentapi.ImageState) bool { return i.Status == "failed" })
	if state.ExitCode != 7 || state.Restarts != 1 {
		t.Errorf("the host hears %+v", state)
	}
}

// health is what the agent says of itself.
type health struct {
	HealthCheck *struct {
		Status, Output, At string
		Failures, ExitCode int
	}
}

// TestHealthCheck: the host and callers hear whether the program is healthy, as long as it
// runs.
func TestHealthCheck(t *testing.T) {
	t.Parallel()
	s, dir := start(t)
	in := shell("exec sleep 1000")
	in.Health = &agentapi.HealthCheck{
		Test: []string{"CMD-SHELL", "cat sick 2>/dev/null && exit 1; echo fine"}, IntervalMillis: 1000, TimeoutMillis: 10_000, Retries: 1,
	}
	begin(t, s, in)
	await(t, s, "it starts", func(i agentapi.ImageState) bool { return i.Health == "starting" })
	await(t, s, "it is healthy", func(i agentapi.ImageState) bool { return i.Health == "healthy" && i.Output == "fine\n" })
	if h := agenttest.Get[health](t, s, "GET", "/health", "").HealthCheck; h == nil || h.Status != "healthy" || h.Output != "fine\n" || h.At == "" {
		t.Errorf("callers hear %+v", h)
	}
	if err := os.WriteFile(filepath.Join(dir, "sick"), []byte("no database\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	state := await(t, s, "it is unhealthy", func(i agentapi.ImageState) bool { return i.Health == "unhealthy" })
	if state.Output != "no database\n" || state.Status != "running" {
		t.Errorf("the host hears %+v", state)
	}
	if h := agenttest.Get[health](t, s, "GET", "/health", "").HealthCheck; h == nil || h.Status != "unhealthy" || h.ExitCode != 1 || h.Failures == 0 {
		t.Errorf("callers hear %+v", h)
	}
	agenttest.Get[any](t, s, "DELETE", "/process/entrypoint", "")
	await(t, s, "it is over", func(i agentapi.ImageState) bool { return i.Status == "stopped" && i.Health == "" })
	if h := agenttest.Get[health](t, s, "GET", "/health", "").HealthCheck; h != nil {
		t.Errorf("callers hear %+v of what is over", h)
	}
}

// TestHealthCheckAlone: an image whose program is an agent may have a check of that.
func TestHealthCheckAlone(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	begin(t, s, agentapi.Image{Health: &agentapi.HealthCheck{Test: []string{"CMD", "true"}, IntervalMillis: 1000}})
	state := await(t, s, "it is healthy", func(i agentapi.ImageState) bool { return i.Health == "healthy" })
	if state.Status != "" {
		t.Errorf("the host hears %+v", state)
	}
	if all := agenttest.Get[[]agenttest.Process](t, s, "GET", "/process", ""); len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
}

// TestQuiet: before an archive, the program is named alone: its command is that of the
// image. On the same machine its name starts it again.
func TestQuiet(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	begin(t, s, shell("echo ready; exec sleep 1000"))
	ran := agenttest.Get[struct{ Processes []map[string]any }](t, s, "POST", "/doze/quiesce", `{"stopTimeoutSeconds":5}`)
	if len(ran.Processes) != 1 || ran.Processes[0]["name"] != "entrypoint" || ran.Processes[0]["command"] != "" {
		t.Fatalf("it says %+v", ran)
	}
	agenttest.Get[any](t, s, "POST", "/archive/resume", "")
	agenttest.Get[any](t, s, "POST", "/process", agenttest.Object(t, ran.Processes[0]))
	await(t, s, "it runs again", func(i agentapi.ImageState) bool { return i.Status == "running" })
}

// TestWaits: a program that ran before an archive starts by its name, as it ran. One that
// did not run does not start.
func TestWaits(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	in := shell(`echo "ready $WORD"; exec sleep 1000`)
	in.Waits = true
	begin(t, s, in)
	in.Waits = false
	begin(t, s, in) // it was told already
	if all := agenttest.Get[[]agenttest.Process](t, s, "GET", "/process", ""); len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
	agenttest.Get[any](t, s, "POST", "/process", `{"name":"entrypoint","command":"","env":{"WORD":"again"}}`)
	await(t, s, "it runs", func(i agentapi.ImageState) bool { return i.Status == "running" })
	agenttest.Until(t, "it writes", func() bool { return entry(t, s).Stdout == "ready again\n" })
}

// TestMistakes: what a host cannot mean is refused.
func TestMistakes(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	for _, body := range []string{"", "[", `{"program":"sh"}`} {
		if status, answer := s.Call(t, "POST", "/doze/image", body); status != 400 {
			t.Errorf("%q: %d %s", body, status, answer)
		}
	}
	for _, after := range []string{"", "x"} {
		if status, answer := s.Call(t, "GET", fmt.Sprintf("/doze/image?after=%s", after), ""); status != 400 {
			t.Errorf("%q: %d %s", after, status, answer)
		}
	}
}
