package system_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

// TestUpgradeRunsNothing: an upgrade is completed at once, and the agent stays the same.
func TestUpgradeRunsNothing(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("it asked for %s", r.URL) }))
	t.Cleanup(server.Close)
	for _, test := range []struct{ body, version, base string }{
		{"", "latest", ""}, {"{", "latest", ""}, {agenttest.Object(t, map[string]string{"version": "v9", "baseUrl": server.URL}), "v9", server.URL},
	} {
		got := agenttest.Get[map[string]string](t, s, "POST", "/upgrade", test.body)
		if got["version"] != test.version || got["baseUrl"] != test.base || got["message"] == "" {
			t.Errorf("%s: %v", test.body, got)
		}
	}
	got := agenttest.Get[struct {
		UpgradeCount int
		Version      string
		LastUpgrade  map[string]string
	}](t, s, "GET", "/health", "")
	at, err := time.Parse(time.RFC3339, got.LastUpgrade["lastAttempt"])
	last := got.LastUpgrade
	if got.UpgradeCount != 3 || got.Version != "1.2.3" || last["status"] != "completed" || last["step"] != "completed" || last["version"] != "1.2.3" {
		t.Errorf("health %+v", got)
	}
	if err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("the last upgrade was at %v, %v", at, err)
	}
}
