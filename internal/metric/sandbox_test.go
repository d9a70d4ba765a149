package metric_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/metric"
)

// TestSandboxes: at most so many sandboxes have metrics of their own, they stay the same
// ones while they are there, and the sums are those of all.
func TestSandboxes(t *testing.T) {
	t.Parallel()
	m := metric.New()
	text := func(most int, names ...string) string {
		t.Helper()
		of := metric.Sandboxes{Most: most}
		for _, name := range names {
			u := doze.Usage{Tier: "awake", Memory: doze.MemoryUsage{ResidentBytes: 10}, Wakes: doze.WakeUsage{Count: 2}}
			of.All = append(of.All, metric.Sandbox{UID: "uid-" + name, Workspace: "main", Name: name, Usage: u})
		}
		raw, err := m.Text(metric.Now{Sandboxes: of})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	has := func(text string, want map[string]int) {
		t.Helper()
		if got := strings.Count(text, "\ndoze_sandbox_wakes_total{"); got != len(want) {
			t.Errorf("%d sandboxes have metrics, want %d", got, len(want))
		}
		for name, sandboxes := range want {
			workspace := "main"
			if name == "other" {
				workspace = ""
			}
			for _, line := range []string{
				fmt.Sprintf("doze_sandbox_awake{sandbox=%q,workspace=%q} %d", name, workspace, sandboxes),
				fmt.Sprintf("doze_sandbox_memory_bytes{sandbox=%q,workspace=%q} %d", name, workspace, 10*sandboxes),
				fmt.Sprintf("doze_sandbox_wakes_total{sandbox=%q,workspace=%q} %d", name, workspace, 2*sandboxes),
			} {
				if !strings.Contains(text, line+"\n") {
					t.Errorf("there is no %s", line)
				}
			}
		}
	}
	has(text(0, "a", "b"), nil)
	has(text(2, "a", "b", "c", "d"), map[string]int{"a": 1, "b": 1, "other": 2})
	has(text(2, "d", "c", "b", "a"), map[string]int{"a": 1, "b": 1, "other": 2})
	has(text(2, "d", "c", "b"), map[string]int{"b": 1, "d": 1, "other": 1})
	has(text(2, "d"), map[string]int{"d": 1})
}
