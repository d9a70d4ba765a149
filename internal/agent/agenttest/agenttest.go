// Package agenttest runs agents in tests, and asks them like callers do.
package agenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/dozehq/doze/internal/agent"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

// Patience bounds every wait of a test. It is never reached on a good day.
const Patience = 20 * time.Second

// Sandbox is an agent that runs in this process, with a directory of its own.
type Sandbox struct {
	URL  string
	Dir  string // the working directory
	Logs string // where output is kept
}

// Start runs an agent until the end of the test. Variables are KEY=value.
func Start(tb testing.TB, env ...string) *Sandbox {
	tb.Helper()
	dir, err := filepath.EvalSymlinks(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	s := &Sandbox{Dir: dir, Logs: filepath.Join(tb.TempDir(), "logs")}
	a := agent.New(agent.Config{
		Version: "1.2.3",
		Env:     append([]string{"PATH=/usr/bin:/bin", "HOME=" + dir, "WORKDIR=" + dir}, env...),
		LogDir:  s.Logs,

		UploadDir: filepath.Join(tb.TempDir(), "uploads"),
	})
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s.URL = "http://" + ln.Addr().String()
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

// Do sends a request as it is: the path is not cleaned. Headers are
// "Name: value".
func (s *Sandbox) Do(tb testing.TB, method, path, body string, headers ...string) *http.Response {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
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
	tb.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// Call sends a request and returns the status and the whole body.
func (s *Sandbox) Call(tb testing.TB, method, path, body string, headers ...string) (int, string) {
	tb.Helper()
	resp := s.Do(tb, method, path, body, headers...)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(b)
}

// Get decodes the answer to a request that must succeed.
func Get[T any](tb testing.TB, s *Sandbox, method, path, body string) (v T) {
	tb.Helper()
	status, b := s.Call(tb, method, path, body)
	if status != http.StatusOK {
		tb.Fatalf("%s %s: status %d: %s", method, path, status, b)
	}
	if err := json.Unmarshal([]byte(b), &v); err != nil {
		tb.Fatalf("%s %s: %v in %s", method, path, err, b)
	}
	return v
}

// Fails checks that a request has the status and an error body with a text.
func (s *Sandbox) Fails(tb testing.TB, status int, want, method, path, body string, headers ...string) {
	tb.Helper()
	got, b := s.Call(tb, method, path, body, headers...)
	var e map[string]string
	if err := json.Unmarshal([]byte(b), &e); err != nil || len(e) != 1 || e["error"] == "" {
		tb.Errorf("%s %s: the body is not {error}: %s", method, path, b)
	}
	if got != status || !strings.Contains(e["error"], want) {
		tb.Errorf("%s %s: status %d %q, want %d with %q", method, path, got, e["error"], status, want)
	}
}

// Write puts a file below the working directory.
func (s *Sandbox) Write(tb testing.TB, name, content string) string {
	tb.Helper()
	file := filepath.Join(s.Dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // commands of other users read it
		tb.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil { //nolint:gosec // likewise
		tb.Fatal(err)
	}
	return file
}

// Until waits for something outside this process, such as a command's file.
func Until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.After(Patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatalf("%s: not after %v", what, Patience)
		}
	}
}

// Object makes a JSON body.
func Object(tb testing.TB, v any) string {
	tb.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// Process is a process in answers.
type Process struct {
	PID, Name, Command, WorkingDir, Status, StartedAt string
	CompletedAt, Logs                                 *string
	Stdout, Stderr                                    string
	ExitCode, MaxRestarts, RestartCount, Signal       int
	RestartOnFailure, KeepAlive, Stdin                bool
}

// Exec runs a command to its end.
func (s *Sandbox) Exec(tb testing.TB, command string) Process {
	tb.Helper()
	return Get[Process](tb, s, "POST", "/process", Object(tb, map[string]any{"command": command, "waitForCompletion": true}))
}

// Spawn starts a command under a name.
func (s *Sandbox) Spawn(tb testing.TB, name, command string, more ...string) Process {
	tb.Helper()
	members := append([]string{fmt.Sprintf(`"name":%q,"command":%q`, name, command)}, more...)
	return Get[Process](tb, s, "POST", "/process", "{"+strings.Join(members, ",")+"}")
}

// Screen is a viewer of a terminal.
type Screen struct {
	Conn *websocket.Conn
	ctx  context.Context //nolint:containedctx // the one of the test
	seen string
}

// Look opens a terminal with a query.
func (s *Sandbox) Look(t *testing.T, query string) *Screen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	//nolint:bodyclose // the library has closed it
	conn, _, err := websocket.Dial(ctx, s.URL+"/terminal/ws?"+query, &websocket.DialOptions{
		HTTPHeader: http.Header{"Origin": {"https://elsewhere.example"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &Screen{Conn: conn, ctx: ctx}
}

// Send sends a frame.
func (s *Screen) Send(t *testing.T, text string) {
	t.Helper()
	if err := s.Conn.Write(s.ctx, websocket.MessageText, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// Enter types a line.
func (s *Screen) Enter(t *testing.T, line string) {
	t.Helper()
	b, _ := json.Marshal(map[string]string{"type": "input", "data": line + "\n"})
	s.Send(t, string(b))
}

// Next reads one frame.
func (s *Screen) Next() (kind, data string, err error) {
	_, b, err := s.Conn.Read(s.ctx)
	if err != nil {
		return "", "", err
	}
	var f struct{ Type, Data string }
	err = json.Unmarshal(b, &f)
	return f.Type, f.Data, err
}

// Await reads until the text was shown.
func (s *Screen) Await(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(s.seen, text) {
		kind, data, err := s.Next()
		if err != nil || kind != "output" {
			t.Fatalf("waiting for %q: %s %q, %v; seen %q", text, kind, data, err, s.seen)
		}
		s.seen += data
	}
	_, s.seen, _ = strings.Cut(s.seen, text)
}

// Main runs the tests of a package. A command of a test may be its binary:
// "listen <network> <address>" waits with an open socket until it is killed.
func Main(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "listen" {
		if err := listen(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err) // and the caller that waits for the port says what it means
			return
		}
		time.Sleep(time.Hour)
	}
	time.Local = time.FixedZone("elsewhere", 5*60*60) // answers are in UTC
	m.Run()
}

// listen opens a socket that is open until the process ends.
func listen(network, address string) (err error) {
	if strings.HasPrefix(network, "tcp") {
		_, err = net.Listen(network, address) //nolint:noctx // it does not wait
	} else {
		_, err = net.ListenPacket(network, address) //nolint:noctx // likewise
	}
	return err
}

// Serve starts a process with a server in its background for each address,
// see [Main], and returns its pid and their ports.
func (s *Sandbox) Serve(t *testing.T, name string, addresses ...string) (pid int, ports []int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var command strings.Builder
	for _, addr := range addresses {
		network, host, _ := strings.Cut(addr, "/")
		ports = append(ports, FreePort(t))
		fmt.Fprintf(&command, "%s listen %s %s:%d & ", self, network, host, ports[len(ports)-1])
	}
	p := s.Spawn(t, name, command.String()+"wait")
	if pid, err = strconv.Atoi(p.PID); err != nil {
		t.Fatal(err)
	}
	return pid, ports
}

// FreePort returns a port that nobody else gets.
func FreePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.Port(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// At makes the path of a request out of an absolute one, as the clients do.
func At(file string) string { return "/filesystem/" + url.PathEscape(file) }

// File is a file in answers.
type File struct {
	Path, Name, Permissions    string
	Size                       int
	LastModified, Owner, Group string
	Content                    string
}

// Directory is a listing in an answer.
type Directory struct {
	Path, Name     string
	Files          []File
	Subdirectories []struct{ Path, Name string }
}

// Gone reports whether the process of a pid has ended.
func Gone(pid string) bool {
	n, err := strconv.Atoi(pid)
	return err == nil && syscall.Kill(n, 0) != nil
}
