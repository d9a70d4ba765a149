package process

import (
	"os"
	"slices"
	"strings"

	"github.com/dozehq/doze/internal/agent/output"
)

// groupDirectory is there in a sandbox that is for container engines.
const groupDirectory = "/sys/fs/cgroup/devices"

// hintReach is how much of a failed process's last words is looked at, in bytes.
const hintReach = 4 << 10

// containersHint says what a sandbox needs that is not for container engines.
const containersHint = "[This sandbox was not made for containers. Make one with spec.runtime.extraArgs.containers: enabled]\n"

// withoutGroups are what container engines say that find no control groups. None of them
// names what the sandbox lacks.
var withoutGroups = []string{
	"Devices cgroup isn't mounted",     // dockerd
	"cgroup mountpoint does not exist", // runc
	"could not join cgroup",            // crun
}

// hintAt returns what to say about the last words of a process that failed, or nothing.
// Where the control groups are, the sandbox lacks nothing.
func hintAt(last, groups string) string {
	if !slices.ContainsFunc(withoutGroups, func(text string) bool { return strings.Contains(last, text) }) {
		return ""
	}
	if _, err := os.Stat(groups); err == nil {
		return ""
	}
	return containersHint
}

// hint tells readers of the output of a process that failed what to do, if that is known.
func (p *Process) hint() {
	p.mu.Lock()
	status := p.status
	p.mu.Unlock()
	if status != failed {
		return
	}
	p.out.Write(output.Stderr, []byte(hintAt(p.out.Text(output.Stderr, hintReach), groupDirectory)))
}
