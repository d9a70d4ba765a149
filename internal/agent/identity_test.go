package agent_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// What runs keeps what it was started with; what is started later has nothing
// of the sandbox before.
func TestIdentity(t *testing.T) {
	t.Parallel()
	s := start(t, "OLD=secret", "NAME=a")
	s.call(t, "POST", "/process", `{"name":"before","command":"while ! test -e `+s.dir+`/go; do sleep 0.01; done; echo $NAME $OLD"}`)
	s.call(t, "POST", "/doze/wake", "")
	before := get[map[string]any](t, s, "GET", "/health", "")

	body := `{"env":["PATH=/usr/bin:/bin","HOME=/h","WORKDIR=` + s.dir + `","NAME=b","DOZE_USER=nobody","DOZE_NAMESERVERS=192.0.2.1"]}`
	if status, answer := s.call(t, "POST", "/doze/identity", body); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, answer)
	}
	got := get[map[string]any](t, s, "POST", "/process", `{"command":"env; touch `+s.dir+`/go","waitForCompletion":true}`)
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
	for deadline := time.Now().Add(patience); old["status"] != "completed" && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		old = get[map[string]any](t, s, "GET", "/process/before", "")
	}
	if old["logs"] != "a secret\n" {
		t.Errorf("a process from before: %v", old)
	}
	after := get[map[string]any](t, s, "GET", "/health", "")
	if before["wakeCount"] != 1.0 || after["wakeCount"] != 0.0 {
		t.Errorf("wakes %v, then %v", before["wakeCount"], after["wakeCount"])
	}
	for name, body := range map[string]string{"nothing": "", "no JSON": "{", "no list": `{"env":"A=1"}`} {
		if status, answer := s.call(t, "POST", "/doze/identity", body); status != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", name, status, answer)
		}
	}
}
