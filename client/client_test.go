package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// served returns a client of a server that answers every request with h, and
// the inside of a sandbox there.
func served(t *testing.T, h http.HandlerFunc) (*client.Client, *client.Agent) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k1" || r.Header.Get("X-Blaxel-Workspace") != "acme" {
			t.Errorf("%s %s came with %v", r.Method, r.URL, r.Header)
		}
		h(w, r)
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{Address: srv.URL, Key: "k1", Workspace: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	b, err := c.Agent(doze.Sandbox{Metadata: doze.Metadata{URL: srv.URL + "/run/acme/sandboxes/web"}})
	if err != nil {
		t.Fatal(err)
	}
	return c, b
}

func answer(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestNewChecksItsConfig(t *testing.T) {
	for name, c := range map[string]client.Config{
		"no address": {Key: "k"},
		"no scheme":  {Address: "host:80", Key: "k"},
		"no key":     {Address: "http://host"},
	} {
		if _, err := client.New(c); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestRequestsOfTheControlAPI(t *testing.T) {
	var got string
	c, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.RequestURI + " " + string(b)
		answer(200, "application/json", `{"metadata":{"name":"web"},"spec":{"runtime":{}}}`)(w, r)
	})
	ctx, in := t.Context(), doze.Sandbox{Metadata: doze.Metadata{Name: "web"}}
	const body = `{"metadata":{"name":"web"},"spec":{"runtime":{}}}`
	for want, do := range map[string]func() (doze.Sandbox, error){
		"POST /v0/sandboxes " + body:                       func() (doze.Sandbox, error) { return c.Create(ctx, in, false) },
		"POST /v0/sandboxes?createIfNotExist=true " + body: func() (doze.Sandbox, error) { return c.Create(ctx, in, true) },
		"PUT /v0/sandboxes/web " + body:                    func() (doze.Sandbox, error) { return c.Update(ctx, in) },
		"GET /v0/sandboxes/a%2Fb ":                         func() (doze.Sandbox, error) { return c.Sandbox(ctx, "a/b") },
		"DELETE /v0/sandboxes/web ":                        func() (doze.Sandbox, error) { return c.Delete(ctx, "web") },
		"GET /v0/sandboxes/by-external-id/x ":              func() (doze.Sandbox, error) { return c.ByExternalID(ctx, "x") },
	} {
		s, err := do()
		if err != nil || s.Metadata.Name != "web" || got != want {
			t.Errorf("sent %q, want %q; %v", got, want, err)
		}
	}
}

func TestListsAreReadToTheirEnd(t *testing.T) {
	next := map[string]string{"": "c1", "c1": "c2", "c2": ""}
	c, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		at := r.FormValue("cursor")
		if r.FormValue("limit") != "200" || r.FormValue("q") != "we" || r.FormValue("showTerminated") != "true" || r.FormValue("labels") != "k=a=b" || r.Header.Get("Blaxel-Version") == "" {
			t.Errorf("asked %s", r.URL)
		}
		fmt.Fprintf(w, `{"data":[{"metadata":{"name":"at-%s"}}],"meta":{"nextCursor":%q}}`, at, next[at])
	})
	list := func() (names []string) {
		for s, err := range c.Sandboxes(t.Context(), client.Filter{Query: "we", Labels: map[string]string{"k": "a=b"}, Terminated: true}) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, s.Metadata.Name)
		}
		return names
	}
	if diff := cmp.Diff([]string{"at-", "at-c1", "at-c2"}, list()); diff != "" {
		t.Error(diff)
	}
	next["c2"] = "c1" // a server that goes in circles
	if diff := cmp.Diff([]string{"at-", "at-c1", "at-c2"}, list()); diff != "" {
		t.Error(diff)
	}
}

func TestErrorKinds(t *testing.T) {
	cases := map[string]struct {
		status int
		body   string
		want   doze.Error
	}{
		"control":          {404, `{"error":"not_found","code":404,"message":"no such sandbox"}`, doze.Error{Kind: doze.NotFound, Name: "not_found", Message: "no such sandbox"}},
		"name taken":       {409, `{"error":"SANDBOX_ALREADY_EXISTS","code":"SANDBOX_ALREADY_EXISTS","message":"taken"}`, doze.Error{Kind: doze.Conflict, Name: "SANDBOX_ALREADY_EXISTS", Message: "taken"}},
		"gateway":          {503, `{"error":{"code":"WORKLOAD_UNAVAILABLE","message":"try again","status":503}}`, doze.Error{Kind: doze.Unavailable, Name: "WORKLOAD_UNAVAILABLE", Message: "try again"}},
		"sandbox":          {422, `{"error":"is a directory"}`, doze.Error{Kind: doze.Unprocessable, Message: "is a directory"}},
		"somebody else":    {502, `<html>`, doze.Error{Kind: doze.Unavailable, Message: "the server sent an unexpected answer"}},
		"redirect":         {302, ``, doze.Error{Kind: doze.Unavailable, Message: `the server sends us to "": use its final address`}},
		"success, no JSON": {200, `<html>`, doze.Error{Kind: doze.Unavailable, Message: "the server sent an unexpected answer"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			api, _ := served(t, answer(c.status, "application/json", c.body))
			_, err := api.Sandbox(t.Context(), "web")
			if diff := cmp.Diff(&c.want, doze.Public(err)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAServerThatIsNotThere(t *testing.T) {
	c, err := client.New(client.Config{Address: "http://127.0.0.1:1", Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sandbox(t.Context(), "web"); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Sandbox(ctx, "web"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// said collects output.
func said(b *strings.Builder) client.Output {
	return func(from client.Channel, data string) error {
		fmt.Fprintf(b, "%s<%s>", from, data)
		return nil
	}
}

func TestRun(t *testing.T) {
	result, _ := json.Marshal(map[string]string{"type": "result", "data": `{"name":"p","exitCode":3}`})
	cases := map[string]struct {
		kind, body string
		want, err  string
		code       int
	}{
		"streamed": {
			"application/x-ndjson", `{"type":"stdout","data":"a\nb"}` + "\n" + `{"type":"keepalive"}` + "\n" + `{"type":"stderr","data":"c"}` + "\n" + string(result) + "\n",
			"stdout<a\nb>stderr<c>", "", 3,
		},
		"whole":        {"application/json; charset=utf-8", `{"stdout":"a","stderr":"b","exitCode":4}`, "stdout<a>stderr<b>", "", 4},
		"error":        {"application/x-ndjson", `{"type":"error","data":"no such folder"}` + "\n", "", "no such folder", 0},
		"broken off":   {"application/x-ndjson", `{"type":"stdout","data":"a"}` + "\n", "stdout<a>", "the sandbox broke off its answer; the command may still run", 0},
		"not JSON":     {"application/x-ndjson", "[keepalive]\n", "", "the sandbox did not answer as expected", 0},
		"newer events": {"application/x-ndjson", `{"type":"weather","data":"sun"}` + "\n" + string(result), "", "", 3},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, agent := served(t, func(w http.ResponseWriter, r *http.Request) {
				var in map[string]any
				json.NewDecoder(r.Body).Decode(&in)
				want := map[string]any{"command": "make", "env": map[string]any{"A": "b"}, "waitForCompletion": true}
				if diff := cmp.Diff(want, in); diff != "" || r.Header.Get("Accept") != "text/event-stream" || r.URL.Path != "/run/acme/sandboxes/web/process" {
					t.Errorf("%s %s", r.URL, diff)
				}
				answer(200, c.kind, c.body)(w, r)
			})
			var got strings.Builder
			p, err := agent.Run(t.Context(), client.Command{Command: "make", Env: map[string]string{"A": "b"}}, said(&got))
			if got.String() != c.want || p.ExitCode != c.code {
				t.Errorf("heard %q, code %d", got.String(), p.ExitCode)
			}
			if err != nil && doze.Public(err).Message != c.err || err == nil && c.err != "" {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestRunPassesOutputOnAtOnce(t *testing.T) {
	heard := make(chan struct{})
	_, agent := served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		io.WriteString(w, `{"type":"stdout","data":"first"}`+"\n")
		http.NewResponseController(w).Flush()
		<-heard
		io.WriteString(w, `{"type":"result","data":"{}"}`+"\n")
	})
	_, err := agent.Run(t.Context(), client.Command{Command: "x"}, func(client.Channel, string) error { close(heard); return nil })
	if err != nil {
		t.Error(err)
	}
}

func TestProcessesAndLogs(t *testing.T) {
	_, agent := served(t, func(w http.ResponseWriter, r *http.Request) {
		body := map[string]string{
			"GET /process":                  `[{"pid":"7","name":"a"}]`,
			"GET /process/a%20b":            `{"pid":"7"}`,
			"DELETE /process/7":             `{"message":"stopped","path":""}`,
			"DELETE /process/7/kill":        `{"message":"killed"}`,
			"GET /process/7/logs":           `{"logs":"ab","stdout":"a","stderr":"b"}`,
			"GET /process/7/logs/stream":    "stdout:one\nstderr:two\n[keepalive]\n\n[Process is being gracefully terminated]\nstdout:[keepalive]",
			"GET /process/none/logs/stream": "",
		}[r.Method+" "+strings.TrimPrefix(r.RequestURI, "/run/acme/sandboxes/web")]
		status := 200
		if body == "" {
			status, body = 404, `{"error":"process not found"}`
		}
		answer(status, "application/json", body)(w, r)
	})
	ctx := t.Context()
	if ps, err := agent.Processes(ctx); err != nil || len(ps) != 1 || ps[0].PID != "7" {
		t.Errorf("%v %v", ps, err)
	}
	if p, err := agent.Process(ctx, "a b"); err != nil || p.PID != "7" {
		t.Errorf("%v %v", p, err)
	}
	if d, err := agent.Stop(ctx, "7"); err != nil || d.Message != "stopped" {
		t.Errorf("%v %v", d, err)
	}
	if d, err := agent.Kill(ctx, "7"); err != nil || d.Message != "killed" {
		t.Errorf("%v %v", d, err)
	}
	if l, err := agent.Logs(ctx, "7"); err != nil || l != (client.Logs{Logs: "ab", Stdout: "a", Stderr: "b"}) {
		t.Errorf("%v %v", l, err)
	}
	var got strings.Builder
	err := agent.Follow(ctx, "7", said(&got))
	want := "stdout<one\n>stderr<two\n>notice<[Process is being gracefully terminated]\n>stdout<[keepalive]\n>"
	if err != nil || got.String() != want {
		t.Errorf("heard %q, %v", got.String(), err)
	}
	if err := agent.Follow(ctx, "none", said(&got)); doze.Public(err).Kind != doze.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestFiles(t *testing.T) {
	var asked, wrote string
	_, agent := served(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + strings.TrimPrefix(r.RequestURI, "/run/acme/sandboxes/web/filesystem/")
		switch {
		case r.Method == http.MethodPut && strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/form-data"):
			form, err := r.MultipartReader()
			if err != nil {
				t.Error(err)
				return
			}
			wrote = ""
			for part, err := form.NextPart(); err == nil; part, err = form.NextPart() {
				b, err := io.ReadAll(part)
				wrote += fmt.Sprintf("%s(%s)=%q %v;", part.FormName(), part.FileName(), b, err)
			}
		case r.Header.Get("Accept") == "application/octet-stream" && !strings.Contains(r.RequestURI, "dir"):
			w.Header().Set("Content-Disposition", "attachment")
			w.Write([]byte{0, 255, '\n'})
			return
		}
		answer(200, "application/json", `{"path":"/x","message":"ok","files":[{"name":"f","size":3}],"subdirectories":[{"name":"d"}]}`)(w, r)
	})
	ctx := t.Context()

	d, err := agent.WriteFile(ctx, "/tmp/a b/c.bin", strings.NewReader("\x00\xff\r\n--x"), "0600")
	if err != nil || d.Message != "ok" || asked != "PUT %2Ftmp%2Fa%20b%2Fc.bin" || wrote != `permissions()="0600" <nil>;file(c.bin)="\x00\xff\r\n--x" <nil>;` {
		t.Errorf("%v %v %s %s", d, err, asked, wrote)
	}
	rc, err := agent.ReadFile(ctx, "src/a b/main.go")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(rc)
	rc.Close()
	if string(b) != "\x00\xff\n" || asked != "GET src/a%20b/main.go" {
		t.Errorf("read %q, %s", b, asked)
	}
	if _, err := agent.ReadFile(ctx, "/dir"); doze.Public(err).Kind != doze.Invalid {
		t.Errorf("a directory: %v", err)
	}
	if l, err := agent.ReadDir(ctx, "/"); err != nil || asked != "GET %2F" || len(l.Files) != 1 || l.Files[0].Size != 3 || l.Subdirectories[0].Name != "d" {
		t.Errorf("%v %v %s", l, err, asked)
	}
	if _, err := agent.WriteTree(ctx, "/app", map[string]string{"a": "b"}); err != nil || asked != "PUT tree/%2Fapp" {
		t.Errorf("%v %s", err, asked)
	}
	if _, err := agent.Remove(ctx, "/x", true); err != nil || asked != "DELETE %2Fx?recursive=true" {
		t.Errorf("%v %s", err, asked)
	}
}

func TestTerminal(t *testing.T) {
	_, agent := served(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.RawQuery; got != "cols=100&rows=30&sessionId=s" {
			t.Errorf("query %s", got)
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		for range 4 {
			_, b, err := c.Read(r.Context())
			if err != nil {
				t.Error(err)
				return
			}
			out, _ := json.Marshal(map[string]string{"type": "output", "data": string(b)})
			c.Write(r.Context(), websocket.MessageText, out)
		}
		c.Close(websocket.StatusNormalClosure, "")
	})
	ctx := t.Context()
	term, err := agent.Terminal(ctx, client.Screen{Cols: 100, Rows: 30, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	for _, keys := range []string{"a", "\xc3", "\xa9\xe2\x82", "\xac"} { // é and € in pieces
		if err := term.Write(ctx, []byte(keys)); err != nil {
			t.Fatal(err)
		}
	}
	if err := term.Resize(ctx, 80, 24); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		s, err := term.Read(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s)
	}
	want := []string{`{"type":"input","data":"a"}`, `{"type":"input","data":"é"}`, `{"type":"input","data":"€"}`, `{"type":"resize","cols":80,"rows":24}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTerminalErrorKinds(t *testing.T) {
	_, agent := served(t, answer(404, "application/json", `{"error":{"code":"WORKLOAD_NOT_FOUND","message":"gone"}}`))
	if _, err := agent.Terminal(t.Context(), client.Screen{}); doze.Public(err).Kind != doze.NotFound || doze.Public(err).Message != "gone" {
		t.Errorf("got %v", err)
	}
}

func FuzzRun(f *testing.F) {
	f.Add("application/x-ndjson", `{"type":"stdout","data":"a"}`+"\n"+`{"type":"result","data":"{}"}`)
	f.Add("application/json", `{}`)
	var kind, body string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(200, kind, body)(w, r) }))
	f.Cleanup(srv.Close)
	c, err := client.New(client.Config{Address: srv.URL, Key: "k"})
	if err != nil {
		f.Fatal(err)
	}
	agent, err := c.Agent(doze.Sandbox{Metadata: doze.Metadata{URL: srv.URL}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, k, b string) {
		if kind, body = k, b; strings.ContainsAny(k, "\r\n") {
			return
		}
		_, err := agent.Run(t.Context(), client.Command{Command: "x"}, func(client.Channel, string) error { return nil })
		if err == nil && !strings.Contains(b, "{") {
			t.Errorf("%q is a result", b)
		}
	})
}
