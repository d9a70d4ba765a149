package serve_test

import (
	"regexp"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestTiming(t *testing.T) {
	t.Parallel()
	header := regexp.MustCompile(`^total;dur=\d+\.\d\d;desc="[^"]*"$`)
	on, off := agenttest.Start(t, "ENABLE_PROCESSING_TIME=true"), agenttest.Start(t, "ENABLE_PROCESSING_TIME=1")
	for _, path := range []string{"/health", "/none", "/process/none"} {
		if got := on.Do(t, "GET", path, "").Header.Get("Server-Timing"); !header.MatchString(got) {
			t.Errorf("%s: %q", path, got)
		}
		if got := off.Do(t, "GET", path, "").Header.Get("Server-Timing"); got != "" {
			t.Errorf("%s, switched off: %q", path, got)
		}
	}
	// Streams and sockets work behind it.
	if resp := on.Do(t, "POST", "/process", `{"command":"echo x"}`, "Accept: text/event-stream"); !header.MatchString(resp.Header.Get("Server-Timing")) {
		t.Errorf("a stream: %v", resp.Header)
	}
	v := on.Look(t, "shell=sh")
	v.Enter(t, "echo $((40+2))")
	v.Await(t, "42")
}
