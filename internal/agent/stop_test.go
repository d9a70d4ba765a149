package agent_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStopLetsProcessesEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	const ready = "; echo ready; while :; do sleep 0.01; done"
	s.spawn(t, "tidy", "trap 'sleep 0.2; echo saved >"+s.dir+"/saved; exit 0' TERM"+ready, `"restartOnFailure":true,"maxRestarts":-1`)
	s.spawn(t, "plain", "echo ready; exec sleep 60")
	for _, name := range []string{"tidy", "plain"} {
		until(t, name+" runs", func() bool { return get[proc](t, s, "GET", "/process/"+name, "").Stdout != "" })
	}
	if got := get[map[string]any](t, s, "POST", "/doze/stop", ""); len(got) != 0 {
		t.Errorf("answer %v", got)
	}
	if b, err := os.ReadFile(filepath.Join(s.dir, "saved")); err != nil || string(b) != "saved\n" {
		t.Errorf("it ended without its last words: %q, %v", b, err)
	}
	for name, status := range map[string]string{"tidy": "completed", "plain": "stopped"} {
		if p := get[proc](t, s, "GET", "/process/"+name, ""); p.Status != status {
			t.Errorf("%s is %s", name, p.Status)
		}
	}
	s.fails(t, 503, "stopping", "POST", "/process", `{"command":"true"}`)
	get[map[string]any](t, s, "POST", "/doze/stop", "") // once more
}

// TestStopEndsWithItsCaller: what does not end in time is killed.
func TestStopEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.spawn(t, "stubborn", "trap 'echo no' TERM; echo ready; while :; do sleep 0.01; done")
	said := func(text string) func() bool {
		return func() bool { return strings.Contains(get[proc](t, s, "GET", "/process/stubborn", "").Stdout, text) }
	}
	until(t, "it runs", said("ready"))
	ctx, hangUp := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/doze/stop", nil)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := http.DefaultTransport.RoundTrip(r)
		answered <- err
	}()
	until(t, "it is asked", said("no"))
	hangUp()
	if err := <-answered; err == nil {
		t.Error("the agent says that it ended")
	}
	until(t, "it is killed", func() bool { return get[proc](t, s, "GET", "/process/stubborn", "").Status == "killed" })
}
