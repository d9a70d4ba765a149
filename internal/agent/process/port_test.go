package process_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestPortsAreFound(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := agenttest.Start(t)
	for name, test := range map[string]struct {
		network, host  string
		prefix, suffix string
		want           int
	}{
		"wildcard":      {"tcp", "", "", "", 200},
		"IPv4":          {"tcp4", "0.0.0.0", "", "", 200},
		"UDP":           {"udp4", "0.0.0.0", "", "", 200},
		"in background": {"tcp", "", "", " & exit", 200},
		"orphan":        {"tcp", "", "( ", " & ) & exit", 200},
		"loopback":      {"tcp", "127.0.0.1", "", "", 422},
		"loopback 6":    {"tcp6", "[::1]", "", "", 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := agenttest.FreePort(t)
			pid := filepath.Join(s.Dir, strings.ReplaceAll(name, " ", "-"))
			command := fmt.Sprintf("%ssh -c 'echo $$ > %s; exec %s listen %s %s:%d'%s", test.prefix, pid, self, test.network, test.host, port, test.suffix)
			t.Cleanup(func() { // the agent leaves alone what a process left behind
				b, _ := os.ReadFile(pid)
				if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 1 {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			})
			timeout := 15
			if test.want != 200 {
				timeout = 1
			}
			body, _ := json.Marshal(map[string]any{"command": command, "waitForPorts": []int{port}, "timeout": timeout})
			status, answer := s.Call(t, "POST", "/process", string(body))
			if status != test.want {
				t.Errorf("status %d: %s", status, answer)
			}
		})
	}
}
