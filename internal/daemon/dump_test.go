package daemon_test

import (
	"bytes"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/daemon"
)

// TestNoCoreDump crashes processes that may leave a dump as large as they are, and
// are told to.
func TestNoCoreDump(t *testing.T) {
	const variable = "DOZED_TEST_CRASH"
	if how, ok := os.LookupEnv(variable); ok { //nolint:forbidigo // how the test reaches its child
		crash(t, how == "undumpable")
	}
	for name, undumpable := range map[string]bool{"undumpable": true, "as usual": false} {
		pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
		if err != nil || !undumpable && bytes.ContainsAny(pattern, "/|") {
			t.Logf("SKIPPED: what is dumped would go to %q: %v", pattern, err)
			continue
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Dir, cmd.Env = t.TempDir(), []string{variable + "=" + name}
		out, err := cmd.CombinedOutput()
		if err == nil && bytes.Contains(out, []byte(noDumps)) {
			t.Skipf("SKIPPED: %s", out)
		}
		if err == nil || !strings.Contains(string(out), "this is why") {
			t.Fatalf("%s: it does not crash: %v\n%s", name, err, out)
		}
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.CoreDump() == undumpable {
			t.Errorf("%s: it left a core dump: %v, %v", name, status.CoreDump(), err)
		}
	}
}

// noDumps is what a process says that may leave no dump of any size.
const noDumps = "this system lets no dump be made"

// crash ends this process.
func crash(t *testing.T, quietly bool) {
	t.Helper()
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unlimited); err != nil {
		t.Skipf("%s: %v", noDumps, err)
	}
	if quietly {
		if err := daemon.ForbidDumps(); err != nil {
			t.Fatal(err)
		}
	}
	debug.SetTraceback("crash")
	panic("this is why")
}
