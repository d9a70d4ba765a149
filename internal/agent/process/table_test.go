package process

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/output"
)

func TestBudgetEvictsTheOldest(t *testing.T) {
	t.Parallel()
	tab := New(child.Launcher{}, t.TempDir())
	const step = 256 << 10 // of an output that grows
	tab.budget = output.NewBudget(4*step, tab.forgetOutput)
	var all []*Process
	for i := range 3 {
		p := &Process{out: output.New("", filepath.Join(tab.dir, fmt.Sprint(i)), tab.budget, nil)}
		defer p.out.Close()
		all = append(all, p)
		tab.all = append(tab.all, p)
		p.out.Write(output.Stdout, make([]byte, 1024))
		if i < 2 {
			p.ended.Store(1)
		}
	}
	for range 2 * step / 1024 {
		all[2].out.Write(output.Stdout, make([]byte, 1024))
	} // three steps, where two are left
	if all[0].out.Buffered() || !all[1].out.Buffered() {
		t.Errorf("kept: %v, %v", all[0].out.Buffered(), all[1].out.Buffered())
	}
	if n := len(all[2].out.Text(output.Stdout, 1<<30)); n != 2*step+1024 {
		t.Errorf("the running one has %d bytes", n)
	}
	if all[1].ended.Store(0); tab.forgetOutput() {
		t.Error("output of a running process was given up")
	}
}

func TestPruneByAge(t *testing.T) {
	t.Parallel()
	tab := New(child.Launcher{}, t.TempDir())
	now := time.Now()
	for _, ended := range []time.Time{now.Add(-25 * time.Hour), now.Add(-23 * time.Hour), {}} {
		p := &Process{out: output.New("", "", tab.budget, nil)}
		if !ended.IsZero() {
			p.ended.Store(ended.UnixNano())
		}
		tab.all = append(tab.all, p)
	}
	if tab.prune(now); len(tab.all) != 2 {
		t.Errorf("%d are left", len(tab.all))
	}
}

// What a caller makes large is bounded in sum, the oldest goes first.
func TestPruneByText(t *testing.T) {
	t.Parallel()
	tab := New(child.Launcher{}, t.TempDir())
	large := strings.Repeat("x", finishedText/4)
	for i := range 10 {
		p := &Process{out: output.New("", "", tab.budget, nil), pid: i}
		p.Command = large
		if i != 0 { // which runs
			p.ended.Store(time.Now().UnixNano())
		}
		tab.all = append(tab.all, p)
	}
	tab.prune(time.Now())
	var left []int
	for _, p := range tab.all {
		left = append(left, p.pid)
	}
	if diff := cmp.Diff([]int{0, 6, 7, 8, 9}, left); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	exit := func(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }
	tests := map[string]struct {
		exit  syscall.WaitStatus
		asked Status
		want  Status
		code  int
	}{
		"success":            {exit(0), "", completed, 0},
		"success after stop": {exit(0), Stopped, completed, 0},
		"failure":            {exit(3), "", failed, 3},
		"failure after stop": {exit(3), Stopped, Stopped, 3},
		"signal":             {syscall.WaitStatus(syscall.SIGSEGV), "", failed, -1},
		"signal after stop":  {syscall.WaitStatus(syscall.SIGTERM), Stopped, Stopped, -1},
		"signal after kill":  {syscall.WaitStatus(syscall.SIGKILL), Killed, Killed, -1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, code := outcome(test.exit, test.asked); got != test.want || code != test.code {
				t.Errorf("%s, %d", got, code)
			}
		})
	}
}
