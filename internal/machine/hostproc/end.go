package hostproc

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Linux 6.18 stands still for good when it frees 1,024 seccomp filters at once. They fill
// the queue of work on which the first of them waits. Each process of a guest has a
// filter. So a machine with many ends in parts.
const (
	// endWhole is with how many processes a machine ends at once.
	endWhole = 200
	// endPart is how many processes end together in one with more.
	endPart = 100
	// endPause is between two parts. The kernel frees the filters of one within a
	// millisecond.
	endPause = 20 * time.Millisecond
)

// ending is held while a machine ends in parts: one at a time.
var ending sync.Mutex

// End kills the process of an engine and all others in its group, if the engine is
// alive. With many of them it takes a fraction of a second. First the engine stands
// still, so that no process comes. Then the others end in parts, and the engine last.
func (g *Group) End(engine int) {
	for _, part := range parts(g.pids(), engine) {
		ending.Lock()
		_ = unix.Kill(engine, unix.SIGSTOP) // or it has ended
		for _, pid := range part {
			_ = unix.Kill(pid, unix.SIGKILL) // likewise
		}
		time.Sleep(endPause)
		ending.Unlock()
	}
	_ = unix.Kill(engine, unix.SIGKILL)
}

// parts divides the processes of a machine but for its engine. There are none if they
// may all end with the engine.
func parts(pids []int, engine int) [][]int {
	if len(pids) <= endWhole {
		return nil
	}
	guests := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return pid == engine })
	return slices.Collect(slices.Chunk(guests, endPart))
}
