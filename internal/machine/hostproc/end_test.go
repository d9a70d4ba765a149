package hostproc

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestParts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ processes, parts int }{
		"none":          {0, 0},
		"few":           {endWhole, 0},
		"one too many":  {endWhole + 1, 2},
		"some hundreds": {801, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const engine = 7
			var pids, left []int
			for i := range tc.processes {
				pids = append(pids, engine+i)
			}
			got := parts(pids, engine)
			if len(got) != tc.parts {
				t.Errorf("%d parts, want %d", len(got), tc.parts)
			}
			for _, part := range got {
				if left = append(left, part...); len(part) > endPart {
					t.Errorf("a part has %d processes", len(part))
				}
			}
			if tc.parts > 0 && !slices.Equal(left, pids[1:]) {
				t.Errorf("%d processes end, want all but the engine", len(left))
			}
		})
	}
}

// TestEnd ends processes as those of a machine: the engine last, although its others
// were children of this process.
func TestEnd(t *testing.T) {
	t.Parallel()
	var all []*exec.Cmd
	var listed strings.Builder
	for range endWhole + 50 {
		p := exec.Command("sleep", "600")
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Process.Kill() })
		all = append(all, p)
		listed.WriteString(strconv.Itoa(p.Process.Pid) + "\n")
	}
	g := &Group{memory: t.TempDir()}
	if err := os.WriteFile(filepath.Join(g.memory, "cgroup.procs"), []byte(listed.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	g.End(all[0].Process.Pid)
	for _, p := range all {
		_ = p.Wait() // it fails: the process was killed
		status, ok := p.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || status.Signal() != syscall.SIGKILL {
			t.Errorf("process %d: %v", p.Process.Pid, p.ProcessState)
		}
	}
}
