package hostproc

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit of times in /proc/PID/stat. Linux has told programs that it is
// this one on all architectures since 2.6.
const clockTick = 10 * time.Millisecond

// CPUTime returns the time of processors that the processes of the group used. The
// kernel counts it in a cgroup of v2. A cgroup of v1 may have its counter in another
// hierarchy, so the processes and their ended children are added up. It is 0 for a group
// that is gone.
func (g *Group) CPUTime() (total time.Duration) {
	if g.unified {
		return time.Duration(g.counter("cpu.stat", "usage_usec")) * time.Microsecond
	}
	for _, pid := range g.pids() {
		raw, err := os.ReadFile(Path(pid, "stat"))
		if err == nil { // it has not ended since
			total += processTime(raw)
		}
	}
	return total
}

// processTime reads a file /proc/PID/stat: the times of the process and of its ended
// children, in user mode and in the kernel. They are the fields 14 to 17. The second
// field is the name of the program in parentheses, which may have any bytes.
func processTime(stat []byte) time.Duration {
	const afterName, first, count = 3, 14, 4 // numbers of fields as in proc(5)
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < first-afterName+count {
		return 0
	}
	ticks := int64(0)
	for _, f := range fields[first-afterName:][:count] {
		n, _ := strconv.ParseInt(string(f), 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * clockTick
}
