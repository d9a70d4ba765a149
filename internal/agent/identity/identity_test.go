package identity_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// What runs keeps what it was started with; what is started later has nothing
// of the sandbox before.
func TestIdentity(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "OLD=secret", "NAME=a")
	s.Call(t, "POST", "/process", `{"name":"before","command":"while ! test -e `+s.Dir+`/go; do sleep 0.01; done; echo $NAME $OLD"}`)
	s.Call(t, "POST", "/doze/wake", "")
	before := agenttest.Get[map[string]any](t, s, "GET", "/health", "")

	body := `{"env":["PATH=/usr/bin:/bin","HOME=/h","WORKDIR=` + s.Dir + `","NAME=b","DOZE_USER=nobody","DOZE_NAMESERVERS=192.0.2.1"]}`
	if status, answer := s.Call(t, "POST", "/doze/identity", body); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, answer)
	}
	got := agenttest.Get[map[string]any](t, s, "POST", "/process", `{"command":"env; touch `+s.Dir+`/go","waitForCompletion":true}`)
	logs, _ := got["logs"].(string)
	for _, want := range []string{"NAME=b\n", "HOME=/h\n"} {
		if !strings.Contains(logs, want) {
			t.Errorf("variables %q lack %q", logs, want)
		}
	}
	for _, never := range []string{"secret", "DOZE_"} {
		if strings.Contains(logs, never) {
			t.Errorf("variables %q have %q", logs, never)
		}
	}
	var old map[string]any
	for deadline := time.Now().Add(agenttest.Patience); old["status"] != "completed" && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		old = agenttest.Get[map[string]any](t, s, "GET", "/process/before", "")
	}
	if old["logs"] != "a secret\n" {
		t.Errorf("a process from before: %v", old)
	}
	after := agenttest.Get[map[string]any](t, s, "GET", "/health", "")
	if before["wakeCount"] != 1.0 || after["wakeCount"] != 0.0 {
		t.Errorf("wakes %v, then %v", before["wakeCount"], after["wakeCount"])
	}
	for name, body := range map[string]string{"nothing": "", "no JSON": "{", "no list": `{"env":"A=1"}`} {
		if status, answer := s.Call(t, "POST", "/doze/identity", body); status != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", name, status, answer)
		}
	}
}

// TestVariables: the platform replaces its own variables for new processes, and
// neither those of the image nor those of the caller.
func TestVariables(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	tell := func(path, body string) {
		t.Helper()
		if status, answer := s.Call(t, "POST", path, body); status != http.StatusOK {
			t.Fatalf("status %d: %s", status, answer)
		}
	}
	show := func() string {
		return strings.TrimSpace(s.Exec(t, `echo "${NO_PROXY-no} ${HTTPS_PROXY-none} ${BUNDLE-empty}"`).Stdout)
	}
	tell("/doze/identity", `{"env":["PATH=/usr/bin:/bin","NO_PROXY=a","BUNDLE=mine"],"platform":["NO_PROXY"]}`)
	for _, step := range []struct{ body, want string }{
		{`{"env":["NO_PROXY=b","HTTPS_PROXY=p","BUNDLE=ours"]}`, "b p mine"},
		{`{"env":["NO_PROXY=c"]}`, "c none mine"},
		{`{"env":["BAD","=x"]}`, "no none mine"},
	} {
		tell("/doze/variables", step.body)
		if got := show(); got != step.want {
			t.Errorf("after %s: %s, want %s", step.body, got, step.want)
		}
	}
	tell("/doze/identity", `{"env":["PATH=/usr/bin:/bin"]}`)
	tell("/doze/variables", `{"env":[]}`)
	if got := show(); got != "no none empty" {
		t.Errorf("of another sandbox: %s", got)
	}
	if status, answer := s.Call(t, "POST", "/doze/variables", `{"env":"A=1"}`); status != http.StatusBadRequest {
		t.Errorf("no list: status %d: %s", status, answer)
	}
}
