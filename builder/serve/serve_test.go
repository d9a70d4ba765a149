package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/builder/unpack"
)

// TestTableIsComplete: each call of the protocol has a handler.
func TestTableIsComplete(t *testing.T) {
	t.Parallel()
	table := (&Server{}).table()
	for _, call := range buildapi.Calls {
		if table[call] == nil {
			t.Errorf("%s has no handler", call.Pattern())
		}
	}
	if len(table) != len(buildapi.Calls) {
		t.Errorf("%d handlers, %d calls", len(table), len(buildapi.Calls))
	}
}

func server(t *testing.T) *Server {
	t.Helper()
	s, err := New(Config{Dir: filepath.Join(t.TempDir(), "contexts"), Token: "right", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOnlyTheNode: no call answers without the token, whatever else it is.
func TestOnlyTheNode(t *testing.T) {
	t.Parallel()
	h := server(t).Handler()
	for _, call := range append(buildapi.Calls, buildapi.Call{Method: "GET", Path: "/"}) {
		for _, token := range []string{"", "Bearer ", "Bearer wrong", "right", "Basic right"} {
			r := httptest.NewRequestWithContext(t.Context(), call.Method, strings.ReplaceAll(call.Path, "{id}", "x"), http.NoBody)
			r.Header.Set("Authorization", token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusUnauthorized {
				t.Errorf("%s with %q: %d", call.Pattern(), token, w.Code)
			}
		}
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	h := server(t).Handler()
	for name, c := range map[string]struct {
		method, path, body string
		want               int
		text               string
	}{
		"an id":           {"PUT", "/v1/contexts/..%2Fx", "x", 400, "id"},
		"no archive":      {"PUT", "/v1/contexts/c", "FROM x", 400, "neither a zip"},
		"no context":      {"POST", "/v1/contexts/c/plan", "{}", 404, "put it first"},
		"no JSON":         {"POST", "/v1/builds", "{", 400, "unexpected EOF"},
		"an order":        {"POST", "/v1/builds", `{"id":"b"}`, 400, "context"},
		"its context":     {"POST", "/v1/builds", `{"id":"b","context":"c"}`, 404, "put it first"},
		"a plan's values": {"POST", "/v1/contexts/c/plan", `{"args":{"":"x"}}`, 400, "args"},
		"no path":         {"GET", "/v1/x", "", 404, ""},
		"a method":        {"GET", "/v1/builds", "", 405, ""},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body))
		r.Header.Set("Authorization", "Bearer right")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s: %d %s, want %d and %q", name, w.Code, w.Body, c.want, c.text)
		}
	}
}

// TestInsideIsClosed: a program of this machine reaches nothing, even with the token.
func TestInsideIsClosed(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server(t).Run(ctx, l) }()
	client := buildapi.Client{Token: "right", Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}}}
	if _, err := client.Status(t.Context()); err == nil {
		t.Error("it was answered")
	} else if _, refused := errors.AsType[*buildapi.RefusalError](err); refused {
		t.Errorf("it was answered: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, logins string
		wantArgs     map[string]string
		wantLogins   map[string]buildapi.Login
		mistake      string
	}{
		"none": {wantArgs: map[string]string{}, wantLogins: map[string]buildapi.Login{}},
		"both": {
			args:     "# a comment\n\nA=b\nexport C = \"d e\"\nE='f'\nG=h=i\nJ=\n",
			logins:   `{"auths":{"https://index.docker.io/v1/":{"auth":"dTpwOnE="},"ghcr.io":{"username":"a","password":"b"},"empty.io":{}},"credsStore":"desktop"}`,
			wantArgs: map[string]string{"A": "b", "C": "d e", "E": "f", "G": "h=i", "J": ""},
			wantLogins: map[string]buildapi.Login{
				"docker.io": {User: "u", Password: "p:q"}, "ghcr.io": {User: "a", Password: "b"},
			},
		},
		"no value":     {args: "A=b\nC\n", mistake: "line 2"},
		"no JSON":      {logins: "{", mistake: "config.json"},
		"no base64":    {logins: `{"auths":{"ghcr.io":{"auth":"!"}}}`, mistake: "ghcr.io"},
		"no password":  {logins: `{"auths":{"ghcr.io":{"auth":"dQ=="}}}`, mistake: "ghcr.io"},
		"a large file": {args: strings.Repeat("#", settingsMax+1), mistake: "bytes"},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, ".docker"), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{argsFile: c.args, loginsFile: c.logins} {
			if text != "" {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		args, logins, err := takeSettings(dir)
		if c.mistake != "" {
			if m, ok := errors.AsType[*unpack.MistakeError](err); !ok || !strings.Contains(m.Text, c.mistake) {
				t.Errorf("%s: %v, want %q", name, err, c.mistake)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.wantArgs, args) + cmp.Diff(c.wantLogins, logins); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for _, file := range []string{argsFile, loginsFile} {
			if _, err := os.Lstat(filepath.Join(dir, file)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %s is still in the context: %v", name, file, err)
			}
		}
	}
}

// TestSettingsStayInside: a link in place of a file leads nowhere.
func TestSettingsStayInside(t *testing.T) {
	t.Parallel()
	above := t.TempDir()
	dir, secret := filepath.Join(above, "files"), filepath.Join(above, "secret")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(secret, []byte("A=b\n"), 0o600), os.Symlink("../secret", filepath.Join(dir, argsFile))); err != nil {
		t.Fatal(err)
	}
	if args, _, err := takeSettings(dir); err != nil || len(args) > 0 {
		t.Errorf("got %v, %v", args, err)
	}
}

// TestMistakesOfArgs: each names its line.
func TestMistakesOfArgs(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range buildapi.ArgsMax + 1 {
		fmt.Fprintf(&many, "A%d=b\n", i)
	}
	for text, want := range map[string]string{
		"# A\n\nA=b\nB\n":     "line 4 is not NAME=value",
		"A=b\n=c\n":           "line 2 is not NAME=value",
		"A=b\nexport B C=d\n": `line 2 has a space in the name "B C"`,
		"A=b\nB=" + strings.Repeat("x", buildapi.ArgBytesMax+1): "line 2 has more than 65536 bytes",
		many.String(): "line 257 is one more than 256 arguments",
	} {
		if _, err := parseArgs(text); err == nil || !strings.Contains(err.Error(), argsFile+": "+want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func FuzzSettings(f *testing.F) {
	f.Add("A=b\n", `{"auths":{"ghcr.io":{"auth":"dTpw"}}}`)
	f.Fuzz(func(t *testing.T, args, logins string) {
		if got, err := parseArgs(args); err == nil {
			for name, value := range got {
				if name == "" || len(value) > buildapi.ArgBytesMax {
					t.Errorf("%q=%q", name, value)
				}
			}
		}
		if got, err := parseLogins([]byte(logins)); err == nil && len(got) > loginsMax {
			t.Errorf("%d logins", len(got))
		}
	})
}

// TestContextsAreBounded: what nodes that crashed have left goes, but for what a call reads.
func TestContextsAreBounded(t *testing.T) {
	t.Parallel()
	s := server(t)
	dirOf := func(id string) string { return filepath.Join(s.dir, id) }
	put := func(id string) {
		s.makeRoom(id)
		if err := os.Mkdir(dirOf(id), 0o700); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.contexts[id] = &archive{dir: dirOf(id)}
	}
	put("read")
	_, closes, ok := s.open("read")
	if !ok {
		t.Fatal("it is not there")
	}
	for i := range 2 * buildapi.ContextsMax {
		put("c" + strings.Repeat("x", i))
	}
	if len(s.contexts) != buildapi.ContextsMax || s.contexts["read"] == nil {
		t.Errorf("there are %d: %v", len(s.contexts), maps.Keys(s.contexts))
	}
	s.mu.Lock()
	s.forget("read")
	s.mu.Unlock()
	if _, err := os.Stat(dirOf("read")); err != nil {
		t.Errorf("it was deleted under its reader: %v", err)
	}
	closes()
	if _, err := os.Stat(dirOf("read")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if all, _ := os.ReadDir(s.dir); len(all) != len(s.contexts) {
		t.Errorf("%d directories of %d contexts", len(all), len(s.contexts))
	}
}
