package host

import (
	"bytes"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// loadScale is the unit of the load averages of sysinfo(2).
const loadScale = 1 << 16

// load is what placement needs to know of this host. It goes out with each renewal, so it
// reads no image. What cannot be measured is 0.
func (h *Host) load() fleet.Load {
	now := h.node.Load()
	l := fleet.Load{
		Driver: h.o.Driver, Memory: now.Limit, Reserved: now.Reserved, Sandboxes: now.Sandboxes, Awake: now.Awake,
		Processors: float64(runtime.NumCPU()),
	}
	if l.Memory == 0 {
		l.Memory = doze.Megabytes(h.memory >> 20)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		l.Busy = float64(info.Loads[0]) / loadScale
	}
	if s, err := h.disk.State(); err == nil {
		l.Disk = doze.Megabytes(max(0, s.Free-s.Reserve-s.Pending) >> 20)
	}
	l.Images = h.images.Refs()
	l.Images = l.Images[:min(len(l.Images), fleet.ImagesMax)]
	if len(now.Workspaces) <= fleet.WorkspacesMax {
		l.Workspaces = now.Workspaces
	}
	return l
}

// crowded reports whether all processors are in use just now: more threads run or wait for
// a processor than there are processors. One of them is the caller.
func crowded() bool {
	raw, err := os.ReadFile("/proc/loadavg")
	return err == nil && runnable(raw) > runtime.NumCPU()
}

// runnable returns the number of threads that run or wait for a processor, from
// proc_loadavg(5): "0.20 0.18 0.12 1/80 11206". It is 0 for another text.
func runnable(raw []byte) int {
	fields := bytes.Fields(raw)
	if len(fields) < 4 {
		return 0
	}
	n, _, _ := bytes.Cut(fields[3], []byte("/"))
	running, err := strconv.Atoi(string(n))
	if err != nil {
		return 0
	}
	return running
}
