package agent

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/etc"
	"github.com/dozehq/doze/internal/agent/memory"
	"github.com/dozehq/doze/internal/agent/owner"
)

const (
	// The workload, not the agent, is to be killed when memory runs out.
	agentOOMScore = -500
	// heapShare of the memory, at least heapMin, is where the collector begins
	// to work harder: a sandbox has no swap for a burst of garbage.
	heapShare = 20 // percent
	heapMin   = 64 << 20
	// heapGrowth is how much garbage there may be for each byte in use before
	// it is collected. Half of what is usual is 1 MiB of every sandbox, for a
	// millisecond every few hundred calls.
	heapGrowth = 50 // percent
)

// Prepare makes a minimal image usable: it creates the directories and files
// below root that every program expects, and sets what the agent wants of its
// own process. All of it is best effort: the root may be read-only.
func Prepare(root string, env []string) {
	syscall.Umask(int(owner.Umask))
	_ = child.SetOOMScore("self", agentOOMScore) // without the file, the kernel has no such killer
	debug.SetGCPercent(heapGrowth)
	if environ.List(env).Get("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(heapMin, memory.Total()/100*heapShare))
	}
	etc.Prepare(root, environ.List(env))
	if device := environ.List(env).Get(environ.HiddenDevice); device != "" {
		_ = os.Remove(filepath.Join(root, device))
	}
	if dir := environ.List(env).Get(environ.ImageDir); dir != "" {
		_ = os.MkdirAll(filepath.Join(root, dir), owner.DirMode) // as container engines do; commands report what is in its place
	}
}
