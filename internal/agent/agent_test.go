package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"doze/internal/agent"
)

// patience bounds every wait of a test. It is never reached on a good day.
const patience = 20 * time.Second

// sandbox is an agent that runs in this process, with a directory of its own.
type sandbox struct {
	url  string
	dir  string // the working directory
	logs string // where output is kept
}

// start runs an agent until the end of the test. Variables are KEY=value.
func start(t testing.TB, env ...string) *sandbox {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &sandbox{dir: dir, logs: filepath.Join(t.TempDir(), "logs")}
	a, err := agent.New(agent.Config{
		Version: "1.2.3",
		Env:     append([]string{"PATH=/usr/bin:/bin", "HOME=" + dir, "WORKDIR=" + dir}, env...),
		LogDir:  s.logs,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return s
}

// do sends a request as it is: the path is not cleaned. Headers are
// "Name: value".
func (s *sandbox) do(t testing.TB, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // which does not follow redirects
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// call sends a request and returns the status and the whole body.
func (s *sandbox) call(t testing.TB, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	resp := s.do(t, method, path, body, headers...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(b)
}

// get decodes the answer to a request that must succeed.
func get[T any](t testing.TB, s *sandbox, method, path, body string) (v T) {
	t.Helper()
	status, b := s.call(t, method, path, body)
	if status != http.StatusOK {
		t.Fatalf("%s %s: status %d: %s", method, path, status, b)
	}
	if err := json.Unmarshal([]byte(b), &v); err != nil {
		t.Fatalf("%s %s: %v in %s", method, path, err, b)
	}
	return v
}

// fails checks that a request has the status and an error body with a text.
func (s *sandbox) fails(t testing.TB, status int, want, method, path, body string, headers ...string) {
	t.Helper()
	got, b := s.call(t, method, path, body, headers...)
	var e map[string]string
	if err := json.Unmarshal([]byte(b), &e); err != nil || len(e) != 1 || e["error"] == "" {
		t.Errorf("%s %s: the body is not {error}: %s", method, path, b)
	}
	if got != status || !strings.Contains(e["error"], want) {
		t.Errorf("%s %s: status %d %q, want %d with %q", method, path, got, e["error"], status, want)
	}
}

// write puts a file below the working directory.
func (s *sandbox) write(t testing.TB, name, content string) string {
	t.Helper()
	file := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// until waits for something outside this process, such as a command's file.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// object makes a JSON body.
func object(t testing.TB, v any) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
