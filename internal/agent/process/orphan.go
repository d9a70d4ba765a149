package process

import (
	"context"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/agent/proc"
)

// orphanPoll is how often the end of processes that nobody collects for us, or
// that are others' children, is looked for.
const orphanPoll = 20 * time.Millisecond

// Dismiss asks everything in the sandbox to end, also what left its session or
// lost its parent, and waits until all is gone, or until ctx ends. It returns the
// names of the processes that it asked. An interactive shell does not mind
// SIGTERM: hangUp ends the terminals.
func (t *Table) Dismiss(ctx context.Context, hangUp func()) (asked []string) {
	asked = t.ask()
	if !t.start.Children.Init { // the others are somebody else's
		hangUp()
		return asked
	}
	t.askOthers()
	hangUp()
	awaitOrphans(ctx, 0) // before their output is closed: it would end them
	return asked
}

// askOthers asks everything in the sandbox to end, but for the groups of processes that
// another signal asks: they have got theirs.
func (t *Table) askOthers() {
	asked := map[int]bool{}
	for _, p := range t.List() {
		if p.StopSignal() != syscall.SIGTERM && p.ended.Load() == 0 {
			asked[p.leader()] = true
		}
	}
	if len(asked) == 0 {
		_ = syscall.Kill(-1, syscall.SIGTERM) // ESRCH: there are none
		return
	}
	for _, other := range proc.Root.Tasks() {
		if other.PID != os.Getpid() && !asked[other.Group] {
			_ = syscall.Kill(other.PID, syscall.SIGTERM) // it may have just ended
		}
	}
}

// awaitOrphans waits until this process is the only one, and until then sends sig
// to the others, unless it is 0. It reports false if ctx ended first.
func awaitOrphans(ctx context.Context, sig syscall.Signal) bool {
	poll := time.NewTicker(orphanPoll)
	defer poll.Stop()
	for {
		if !slices.ContainsFunc(proc.Root.Tasks(), func(t proc.Task) bool { return t.PID != os.Getpid() }) {
			return true
		}
		_ = syscall.Kill(-1, sig) // ESRCH: they have just ended
		select {
		case <-poll.C:
		case <-ctx.Done():
			return false
		}
	}
}

// KillOrphans kills everything in the sandbox until nothing but this process is
// left. It reports false if ctx ended first. What is not the sandbox's first
// process has no orphans.
func (t *Table) KillOrphans(ctx context.Context) bool {
	return !t.start.Children.Init || awaitOrphans(ctx, syscall.SIGKILL)
}
