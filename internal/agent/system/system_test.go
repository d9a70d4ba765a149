package system_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	got := agenttest.Get[map[string]any](t, s, "GET", "/health", "")
	startedAt, _ := got["startedAt"].(string)
	if at, err := time.Parse(time.RFC3339, startedAt); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("startedAt: %v, %v", got["startedAt"], err)
	}
	for _, k := range []string{"startedAt", "uptime", "uptimeSeconds", "gitCommit", "buildTime"} {
		if got[k] == nil {
			t.Errorf("no %s", k)
		}
		delete(got, k)
	}
	want := map[string]any{
		"status": "ok", "version": "1.2.3", "goVersion": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		"upgradeCount": 0.0, "wakeCount": 0.0, "lastUpgrade": map[string]any{"status": "idle", "step": "none", "version": "1.2.3"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	if _, body := s.Call(t, "POST", "/doze/wake", ""); body != "{}\n" {
		t.Errorf("wake: %s", body)
	}
	got = agenttest.Get[map[string]any](t, s, "GET", "/health", "")
	if got["wakeCount"] != 1.0 || got["lastWake"] == nil {
		t.Errorf("after a wake: %v", got)
	}
}

func TestWelcome(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
		got := agenttest.Get[map[string]string](t, s, method, "/", "")
		if len(got) != 3 || got["message"] == "" || got["documentation"] == "" || got["description"] == "" {
			t.Errorf("%s: %v", method, got)
		}
	}
}
