package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/serve"
)

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
		srv := a.server.HTTP(t.Context())
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
				srv := a.server.HTTP(t.Context())
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

// TestEveryBodyCounts: that of a message is one like all others, and so are the
// names of a tree.
func TestEveryBodyCounts(t *testing.T) {
	t.Parallel()
	const (
		total = 10 << 20 // bytes of memory, of which bodies may hold a tenth
		small = body.Free / 2
		large = 2 * body.Free
		most  = 16 << 20 // of a message
	)
	dir := t.TempDir()
	a := New(Config{Env: []string{"WORKDIR=" + dir}, LogDir: t.TempDir() + "/logs", UploadDir: t.TempDir() + "/uploads"})
	srv := serve.New(a.routes(), a.vars, a.archives.Frozen, total)
	serve := func(method, path string, body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, httptest.NewRequest(method, path, body))
		return w
	}
	coming, sender := io.Pipe()
	other := make(chan int, 1)
	go func() { other <- serve("POST", "/mcp", coming).Code }() // drained below
	if _, err := io.WriteString(sender, strings.Repeat(" ", total/10)); err != nil {
		t.Fatal(err)
	}
	message := func(size int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"ping"` + strings.Repeat(" ", size) + "}"
	}
	tree := func(names int) string {
		files := make([]string, names)
		for i := range files {
			files[i] = fmt.Sprintf(`"%d":""`, i)
		}
		return `{"files":{` + strings.Join(files, ",") + `}}`
	}
	content := `{"files":{"a":"` + strings.Repeat("x", 2*large) + `"}}`
	for name, test := range map[string]struct {
		method, path, body string
		status             int
	}{
		"small":          {"POST", "/mcp", message(small), http.StatusOK},
		"large":          {"POST", "/mcp", message(large), http.StatusTooManyRequests},
		"too large":      {"POST", "/mcp", message(most), http.StatusRequestEntityTooLarge},
		"few names":      {"PUT", "/filesystem/tree" + dir + "/few", tree(10), http.StatusOK},
		"a large file":   {"PUT", "/filesystem/tree" + dir + "/large", content, http.StatusOK}, // on the disk
		"many names":     {"PUT", "/filesystem/tree" + dir + "/many", tree(10_000), http.StatusTooManyRequests},
		"much beside it": {"PUT", "/filesystem" + dir + "/file", `{"x":"` + strings.Repeat("x", small) + `"}`, http.StatusOK},
	} {
		w := serve(test.method, test.path, strings.NewReader(test.body))
		if w.Code != test.status {
			t.Errorf("%s: status %d: %.200s", name, w.Code, w.Body)
		}
		if after := w.Header().Get("Retry-After"); (after != "") != (test.status == http.StatusTooManyRequests) {
			t.Errorf("%s: it is to come back after %q", name, after)
		}
	}
	_ = sender.CloseWithError(io.ErrUnexpectedEOF)
	if code := <-other; code != http.StatusBadRequest {
		t.Errorf("the other one: status %d", code)
	}
	if w := serve("POST", "/mcp", strings.NewReader(message(large))); w.Code != http.StatusOK {
		t.Errorf("after all: status %d: %s", w.Code, w.Body)
	}
}
