package tool_test

import (
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestKeepAliveSwitchedOff(t *testing.T) {
	t.Parallel()
	for value, status := range map[string]int{"true": 400, "1": 400, "false": 200, "": 200} {
		s := agenttest.Start(t, "BL_DISABLE_KEEPALIVE="+value)
		if got, body := s.Call(t, "POST", "/process", `{"command":"true","keepAlive":true}`); got != status {
			t.Errorf("%q: status %d: %s", value, got, body)
		}
		if result, failed := use(t, s, "processExecute", `{"command":"true","keepAlive":true}`); failed != (status == 400) {
			t.Errorf("%q: %s", value, result)
		}
	}
}
