package export_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// TestQuiesce: the host learns what ran, however often it asks, and what is
// frozen can go on.
func TestQuiesce(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t, "KEY=hunter2", "SET=")
	type noted struct {
		Processes []struct {
			Name, Command string
			Env           map[string]string
		}
	}
	agenttest.Get[any](t, s, "POST", "/process", `{"name":"over","command":"true","waitForCompletion":true}`)
	agenttest.Get[any](t, s, "POST", "/process", `{"name":"app","command":"sleep 1000","env":{"A":"b","KEY":"hunter2","SET":"","HOME":"/elsewhere","NEW":""},"restartOnFailure":true}`)
	first := agenttest.Get[noted](t, s, "POST", "/doze/quiesce", `{"stopTimeoutSeconds":5}`)
	if len(first.Processes) != 1 || first.Processes[0].Name != "app" || first.Processes[0].Command != "sleep 1000" {
		t.Fatalf("it says %+v", first)
	}
	own := map[string]string{"A": "b", "HOME": "/elsewhere", "NEW": ""} // no other is lost, and no secret of the sandbox told
	if diff := cmp.Diff(own, first.Processes[0].Env); diff != "" {
		t.Errorf("variables of the process (-want +got):\n%s", diff)
	}
	if app := agenttest.Get[struct{ Status string }](t, s, "GET", "/process/app", ""); app.Status == "running" {
		t.Error("the process runs on")
	}
	if diff := cmp.Diff(first, agenttest.Get[noted](t, s, "POST", "/doze/quiesce", `{"stopTimeoutSeconds":5}`)); diff != "" {
		t.Errorf("asked again (-first +again):\n%s", diff)
	}
	s.Fails(t, 409, "frozen", "POST", "/process", `{"command":"true"}`)
	agenttest.Get[any](t, s, "POST", "/archive/resume", "")
	agenttest.Get[any](t, s, "POST", "/process", `{"name":"app","command":"sleep 1000"}`)
	if again := agenttest.Get[noted](t, s, "POST", "/doze/quiesce", `{"stopTimeoutSeconds":0}`); len(again.Processes) != 1 || len(again.Processes[0].Env) != 0 {
		t.Errorf("frozen anew, it says %+v", again)
	}
	if code, body := s.Call(t, "POST", "/doze/quiesce", "["); code != 400 {
		t.Errorf("nonsense: %d %s", code, body)
	}
	agenttest.Get[any](t, s, "POST", "/archive/resume", "")
	s.Fails(t, 422, "no root", "POST", "/doze/files", "") // else it would be that of the host
}
