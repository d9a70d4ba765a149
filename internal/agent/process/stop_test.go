package process_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestStopLetsProcessesEnd(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	const ready = "; echo ready; while :; do sleep 0.01; done"
	s.Spawn(t, "tidy", "trap 'sleep 0.2; echo saved >"+s.Dir+"/saved; exit 0' TERM"+ready, `"restartOnFailure":true,"maxRestarts":-1`)
	s.Spawn(t, "plain", "echo ready; exec sleep 60")
	for _, name := range []string{"tidy", "plain"} {
		agenttest.Until(t, name+" runs", func() bool { return agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+name, "").Stdout != "" })
	}
	if got := agenttest.Get[map[string]any](t, s, "POST", "/doze/stop", ""); len(got) != 0 {
		t.Errorf("answer %v", got)
	}
	if b, err := os.ReadFile(filepath.Join(s.Dir, "saved")); err != nil || string(b) != "saved\n" {
		t.Errorf("it ended without its last words: %q, %v", b, err)
	}
	for name, status := range map[string]string{"tidy": "completed", "plain": "stopped"} {
		if p := agenttest.Get[agenttest.Process](t, s, "GET", "/process/"+name, ""); p.Status != status {
			t.Errorf("%s is %s", name, p.Status)
		}
	}
	s.Fails(t, 503, "stopping", "POST", "/process", `{"command":"true"}`)
	agenttest.Get[map[string]any](t, s, "POST", "/doze/stop", "") // once more
}

// TestStopEndsWithItsCaller: what does not end in time is killed.
func TestStopEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Spawn(t, "stubborn", "trap 'echo no' TERM; echo ready; while :; do sleep 0.01; done")
	said := func(text string) func() bool {
		return func() bool {
			return strings.Contains(agenttest.Get[agenttest.Process](t, s, "GET", "/process/stubborn", "").Stdout, text)
		}
	}
	agenttest.Until(t, "it runs", said("ready"))
	ctx, hangUp := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/doze/stop", nil)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := http.DefaultTransport.RoundTrip(r)
		answered <- err
	}()
	agenttest.Until(t, "it is asked", said("no"))
	hangUp()
	if err := <-answered; err == nil {
		t.Error("the agent says that it ended")
	}
	agenttest.Until(t, "it is killed", func() bool {
		return agenttest.Get[agenttest.Process](t, s, "GET", "/process/stubborn", "").Status == "killed"
	})
}
