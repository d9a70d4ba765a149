package process

import (
	"os"
	"strings"

	"github.com/dozehq/doze/internal/agent/output"
)

// groupDirectory is there in a sandbox that is for container engines.
const groupDirectory = "/sys/fs/cgroup/devices"

// hintReach is how much of a failed process's last words is looked at, in bytes.
const hintReach = 4 << 10

// containersHint says what a sandbox needs that is not for container engines.
const containersHint = "[This sandbox was not made for containers. Make one with spec.runtime.extraArgs.containers: enabled]\n"

// hints says for texts of programs that fail what their user can do about it. None of them
// names what the sandbox lacks.
var hints = []struct{ text, says string }{
	{"Devices cgroup isn't mounted", containersHint},     // dockerd
	{"cgroup mountpoint does not exist", containersHint}, // runc
	{"could not join cgroup", containersHint},            // crun
}

// hintAt returns what to say about the last words of a process that failed, or nothing.
// Where the control groups are, the sandbox lacks nothing.
func hintAt(last, groups string) string {
	for _, h := range hints {
		if strings.Contains(last, h.text) {
			if _, err := os.Stat(groups); err == nil {
				return ""
			}
			return h.says
		}
	}
	return ""
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
