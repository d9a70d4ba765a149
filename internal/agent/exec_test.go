package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestSilentStreams: a stream in which nothing happens says so, and what it says
// cannot be taken for output.
func TestSilentStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := New(Config{LogDir: dir + "/logs", UploadDir: dir + "/uploads"}) // it hears signals, which come from elsewhere
	synctest.Test(t, func(t *testing.T) {
		p := &process{command: command{Name: "silent"}, out: newOutput(dir+"/1", testBudget(0)), done: make(chan struct{})}
		a.processes.all = append(a.processes.all, p)
		run, log := httptest.NewRecorder(), httptest.NewRecorder()
		var callers sync.WaitGroup
		callers.Go(func() { streamProcess(t.Context(), run, p) })
		callers.Go(func() { a.ServeHTTP(log, httptest.NewRequest(http.MethodGet, "/process/silent/logs/stream", nil)) })
		time.Sleep(time.Minute + time.Second)
		p.out.write(stdout, []byte("late\n"))
		p.out.end()
		close(p.done)
		callers.Wait()
		p.out.close()

		got := map[event]int{}
		for line := range strings.Lines(run.Body.String()) {
			var e event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Errorf("%v in %q", err, line)
			}
			if e.Type == "result" {
				e.Data = ""
			}
			got[e]++
		}
		want := map[event]int{{Type: "keepalive"}: int(time.Minute / execKeepAlive), {"stdout", "late\n"}: 1, {Type: "result"}: 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the stream of the command (-want +got):\n%s", diff)
		}
		if want := strings.Repeat("[keepalive]\n", int(time.Minute/logsKeepAlive)) + "stdout:late\n"; log.Body.String() != want {
			t.Errorf("the log is %q", log.Body)
		}
	})
}

// wire is a listener in memory: whoever dials waits until it is accepted.
type wire chan net.Conn

func (w wire) dial() net.Conn {
	near, far := net.Pipe()
	w <- far
	return near
}

func (w wire) Accept() (net.Conn, error) {
	conn, ok := <-w
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (w wire) Close() error { close(w); return nil }

func (w wire) Addr() net.Addr { return &net.UnixAddr{Name: "wire"} }

// chunk is a piece of a body of unknown length.
func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

// TestSlowUpload: no clock of the server cuts a body that keeps coming.
func TestSlowUpload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := New(Config{Env: []string{"WORKDIR=" + dir}, LogDir: dir + "/logs", UploadDir: dir + "/uploads"})
	synctest.Test(t, func(t *testing.T) {
		ln, done := make(wire), make(chan error, 1)
		srv := a.server(t.Context())
		go func() { done <- srv.Serve(ln) }()
		conn := ln.dial()
		send := func(text string) {
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
		}
		const minutes = 30
		head := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
		send("PUT /filesystem/slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n")
		for _, text := range append(append([]string{head}, strings.Split(strings.Repeat("x", minutes), "")...), "\r\n--b--\r\n") {
			time.Sleep(time.Minute)
			send(chunk(text))
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("it is answered with %v, %v", answer, err)
		}
		if b, err := os.ReadFile(dir + "/slow"); string(b) != strings.Repeat("x", minutes) {
			t.Errorf("the file has %q, %v", b, err)
		}
		if err := errors.Join(srv.Close(), conn.Close()); err != nil || !errors.Is(<-done, http.ErrServerClosed) {
			t.Errorf("the server ended with %v", err)
		}
	})
}

// TestRefusedSenderGoesOn: who is refused has the whole answer at once, and need
// not send the rest of its body for it.
func TestRefusedSenderGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := New(Config{Env: []string{"WORKDIR=" + dir}, LogDir: dir + "/logs", UploadDir: dir + "/uploads"})
	tests := map[string]struct {
		head   string
		status int
	}{
		"too large":         {"PUT /filesystem/x HTTP/1.1\r\nContent-Length: 70000000", http.StatusRequestEntityTooLarge},
		"command":           {"POST /process HTTP/1.1\r\nContent-Length: 70000000", http.StatusRequestEntityTooLarge},
		"no such process":   {"POST /process/none/stdin HTTP/1.1\r\nContent-Length: 9000000", http.StatusNotFound},
		"no such route":     {"PUT /none HTTP/1.1\r\nContent-Length: 9000000", http.StatusNotFound},
		"of unknown length": {"POST /process/none/stdin HTTP/1.1\r\nTransfer-Encoding: chunked", http.StatusNotFound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln, done := make(wire), make(chan error, 1)
				srv := a.server(t.Context())
				go func() { done <- srv.Serve(ln) }()
				conn, began := ln.dial(), time.Now()
				if _, err := io.WriteString(conn, test.head+"\r\nHost: a\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(answer.Body)
				if answer.StatusCode != test.status || err != nil || time.Since(began) > 0 {
					t.Errorf("after %v: status %d, %s, %v", time.Since(began), answer.StatusCode, text, err)
				}
				if err := errors.Join(conn.Close(), srv.Close()); err != nil || !errors.Is(<-done, http.ErrServerClosed) {
					t.Errorf("the server ended with %v", err)
				}
			})
		})
	}
}
