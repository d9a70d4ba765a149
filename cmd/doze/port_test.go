package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// TestPort reaches a server in a sandbox by an address here.
func TestPort(t *testing.T) {
	t.Parallel()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.RequestURI, "/run/w/sandboxes/web/port/3000")
		switch {
		case r.URL.Path == "/v0/sandboxes/web":
			fmt.Fprintf(w, sandboxJSON, "web", s.URL+"/run/w/sandboxes/web")
		case !ok || r.Header.Get("Authorization") != "Bearer good" || r.Header.Get("X-Blaxel-Authorization") != "":
			http.Error(w, "not for callers: "+r.RequestURI, http.StatusNotFound)
		case rest == "/ws":
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			kind, b, err := c.Read(r.Context())
			_ = c.Write(r.Context(), kind, append([]byte("echo "), b...))
			_ = c.CloseNow()
			if err != nil {
				t.Error(err)
			}
		default:
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s", r.Method, rest, body)
		}
	}))
	t.Cleanup(s.Close)

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		env := map[string]string{"DOZE_ADDRESS": s.URL, "DOZE_KEY": "good", "DOZE_WORKSPACE": "w"}
		a := app{out: w, err: io.Discard, getenv: func(k string) string { return env[k] }}
		ended <- a.run(ctx, []string{"sandbox", "port", "web", "0:3000"})
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("it does not listen: %v, exit code %d", err, <-ended)
	}
	url := strings.TrimSpace(line)
	ask := func(method, path, body, host string) (int, string) {
		t.Helper()
		q, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Host = host
		q.Header.Set("Authorization", "Bearer of the program")
		q.Header.Set("X-Blaxel-Authorization", "Bearer bad")
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	for name, tt := range map[string]struct {
		method, path, body, host string
		status                   int
		want                     string
	}{
		"a page":           {"GET", "/a/b?c=d", "", "", 200, "GET /a/b?c=d "},
		"a body":           {"POST", "/", "hello", "localhost", 200, "POST / hello"},
		"bytes of a path":  {"GET", "/a%2Fb//c/../d", "", "app.localhost:80", 200, "GET /a%2Fb//c/../d "},
		"a name of others": {"GET", "/", "", "evil.example", 421, "ask for this address by its number, or as localhost\n"},
	} {
		if status, body := ask(tt.method, tt.path, tt.body, tt.host); status != tt.status || body != tt.want {
			t.Errorf("%s: %d %q", name, status, body)
		}
	}
	c, resp, err := websocket.Dial(ctx, url+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		defer resp.Body.Close()
	}
	if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, b, err := c.Read(ctx); err != nil || string(b) != "echo hello" {
		t.Errorf("the WebSocket: %q, %v", b, err)
	}
	interrupt()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestMistakesInPorts(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, port := range []string{"0", "x", "65536", "-1:80", "80:", ":80", "1:2:3", "65536:80"} {
		if code, _, errs := s.command(t.Context(), t, "", "sandbox", "port", "web", port); code != exitUsage {
			t.Errorf("%s: exit code %d, %q", port, code, errs)
		}
	}
}
