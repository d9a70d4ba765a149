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

	"github.com/dozehq/doze/internal/agent"
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
func start(tb testing.TB, env ...string) *sandbox {
	tb.Helper()
	dir, err := filepath.EvalSymlinks(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	s := &sandbox{dir: dir, logs: filepath.Join(tb.TempDir(), "logs")}
	a := agent.New(agent.Config{
		Version: "1.2.3",
		Env:     append([]string{"PATH=/usr/bin:/bin", "HOME=" + dir, "WORKDIR=" + dir}, env...),
		LogDir:  s.logs,

		UploadDir: filepath.Join(tb.TempDir(), "uploads"),
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s.url = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, ln) }()
	tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			tb.Errorf("run: %v", err)
		}
	})
	return s
}

// do sends a request as it is: the path is not cleaned. Headers are
// "Name: value".
func (s *sandbox) do(tb testing.TB, method, path, body string, headers ...string) *http.Response {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // which does not follow redirects
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { resp.Body.Close() })
	return resp
}

// call sends a request and returns the status and the whole body.
func (s *sandbox) call(tb testing.TB, method, path, body string, headers ...string) (int, string) {
	tb.Helper()
	resp := s.do(tb, method, path, body, headers...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(b)
}

// get decodes the answer to a request that must succeed.
func get[T any](tb testing.TB, s *sandbox, method, path, body string) (v T) {
	tb.Helper()
	status, b := s.call(tb, method, path, body)
	if status != http.StatusOK {
		tb.Fatalf("%s %s: status %d: %s", method, path, status, b)
	}
	if err := json.Unmarshal([]byte(b), &v); err != nil {
		tb.Fatalf("%s %s: %v in %s", method, path, err, b)
	}
	return v
}

// fails checks that a request has the status and an error body with a text.
func (s *sandbox) fails(tb testing.TB, status int, want, method, path, body string, headers ...string) {
	tb.Helper()
	got, b := s.call(tb, method, path, body, headers...)
	var e map[string]string
	if err := json.Unmarshal([]byte(b), &e); err != nil || len(e) != 1 || e["error"] == "" {
		tb.Errorf("%s %s: the body is not {error}: %s", method, path, b)
	}
	if got != status || !strings.Contains(e["error"], want) {
		tb.Errorf("%s %s: status %d %q, want %d with %q", method, path, got, e["error"], status, want)
	}
}

// write puts a file below the working directory.
func (s *sandbox) write(tb testing.TB, name, content string) string {
	tb.Helper()
	file := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		tb.Fatal(err)
	}
	return file
}

// until waits for something outside this process, such as a command's file.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// object makes a JSON body.
func object(tb testing.TB, v any) string {
	tb.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}
