package launcher

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// TestFate: the reason is known of a child that nobody has collected yet, and
// looking at it collects nothing.
func TestFate(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"exit 137":      "killed from inside (signal 9)",
		"exit 2":        "crashed",
		"exit 7":        "exit code 7",
		"kill -TERM $$": "killed on the host (signal 15)",
	} {
		child := exec.Command("sh", "-c", script)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		end, err := hostproc.Waiter(child.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		end()
		for range 2 {
			if got := fate(child.Process.Pid); !strings.Contains(got, want) || !strings.Contains(got, machine.Recovery) {
				t.Errorf("%s: %q, want %q", script, got, want)
			}
		}
		_ = child.Wait()
		if got := fate(child.Process.Pid); !strings.Contains(got, "or its processes were killed") {
			t.Errorf("a process that is nobody's child: %q", got)
		}
	}
}
