package agent_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReload(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "metadata")
	s := start(t, "BL_METADATA_PATH="+file, "BASE=old", "KEPT=kept")
	type reloaded struct {
		Generation, Applied, Removed int
		Skipped                      []string
	}
	s.fails(t, 404, "there is no "+file, "POST", "/environment/reload", "")
	for _, step := range []struct {
		doc  string
		want reloaded
		env  string
	}{
		{`{"generation":7,"environment":{"A":"1","BASE":"new","X=":"","N":"\u0000","":"x","T":5,"U":null},"unknown":1}`, reloaded{7, 2, 0, []string{"", "N", "T", "U", "X="}}, "A=1 BASE=new KEPT=kept"},
		{`{"generation":8,"environment":{"A":"2"}}`, reloaded{8, 1, 1, nil}, "A=2 BASE=old KEPT=kept"},
		{`{"generation":9}`, reloaded{9, 0, 1, nil}, "A= BASE=old KEPT=kept"},
	} {
		if err := os.WriteFile(file, []byte(step.doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, get[reloaded](t, s, "POST", "/environment/reload", "")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.doc, diff)
		}
		if p := s.exec(t, "echo A=$A BASE=$BASE KEPT=$KEPT"); strings.TrimSpace(p.Stdout) != step.env {
			t.Errorf("%s: %s", step.doc, p.Stdout)
		}
	}
	for _, bad := range []string{`{`, `[]`, `{"environment":[],"generation":"x"}`, strings.Repeat(" ", 4<<20) + "{}"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		s.fails(t, 500, file, "POST", "/environment/reload", "")
	}
	if err := os.WriteFile(file, []byte(`{"environment":[],"generation":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(t, 500, "environment must be an object, not array; generation must be a whole number, not string", "POST", "/environment/reload", "")
}

func TestOverflow(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "variables")
	if err := os.WriteFile(file, []byte("A\x00one\ntwo\x00BAD=\x00x\x00SET\x00no\x00EMPTY\x00no\x00B\x00last\x00C"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, "BL_ENV_VAR_PATH="+file, "SET=yes", "EMPTY=")
	if p := s.exec(t, `echo "$A|$SET|$EMPTY|$B|$C"`); p.Stdout != "one\ntwo|yes||last|\n" {
		t.Errorf("got %q", p.Stdout)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "BL_ENV_VAR_PATH="+pipe).exec(t, "true") // it does not wait for a writer
}

func TestUpgradeIsSkipped(t *testing.T) {
	t.Parallel()
	s := start(t)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("it asked for %s", r.URL) }))
	t.Cleanup(server.Close)
	for _, test := range []struct{ body, version, base string }{
		{"", "latest", ""}, {"{", "latest", ""}, {object(t, map[string]string{"version": "v9", "baseUrl": server.URL}), "v9", server.URL},
	} {
		got := get[map[string]string](t, s, "POST", "/upgrade", test.body)
		if got["version"] != test.version || got["baseUrl"] != test.base || got["message"] == "" {
			t.Errorf("%s: %v", test.body, got)
		}
	}
	got := get[struct {
		UpgradeCount int
		Version      string
		LastUpgrade  map[string]string
	}](t, s, "GET", "/health", "")
	at, err := time.Parse(time.RFC3339, got.LastUpgrade["lastAttempt"])
	if last := got.LastUpgrade; got.UpgradeCount != 0 || got.Version != "1.2.3" || last["status"] != "failed" || last["step"] != "skipped" || last["version"] != "v9" || last["error"] == "" || err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("health %+v, %v", got, err)
	}
}

func TestKeepAliveSwitchedOff(t *testing.T) {
	t.Parallel()
	for value, status := range map[string]int{"true": 400, "1": 400, "false": 200, "": 200} {
		s := start(t, "BL_DISABLE_KEEPALIVE="+value)
		if got, body := s.call(t, "POST", "/process", `{"command":"true","keepAlive":true}`); got != status {
			t.Errorf("%q: status %d: %s", value, got, body)
		}
		if result, failed := s.use(t, "processExecute", `{"command":"true","keepAlive":true}`); failed != (status == 400) {
			t.Errorf("%q: %s", value, result)
		}
	}
}
