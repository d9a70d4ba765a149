package launcher

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// A process that turns into another program has no command line for a moment. The
// engine's do so while they are created. turnTime is far above that moment.
const turnPause, turnTime = time.Millisecond, time.Second

// endOrphans ends the engine's processes that belong to no adopted machine. A
// launcher that dies while gVisor creates a machine for it leaves some that no
// run state names yet. None can come later: a process that it forked holds the
// lock of the run directory, which we have, until it is the engine's.
// Preconditions: all machines were adopted.
func (l *Launcher) endOrphans(ctx context.Context) error {
	owned := map[int]bool{}
	for _, s := range l.machines {
		owned[s.container.SandboxPid()], owned[s.container.GoferPid.Load()] = true, true
	}
	engines, turning := enginesIn(l.conf.RootDir)
	for until := time.Now().Add(turnTime); turning && time.Now().Before(until); {
		time.Sleep(turnPause) // there is no event for the program of another process
		engines, turning = enginesIn(l.conf.RootDir)
	}
	for _, pid := range engines {
		if owned[pid] {
			continue
		}
		slog.WarnContext(ctx, "ending a process of the engine that no machine has", "pid", pid)
		if err := hostproc.Kill(ctx, pid, gvisor.LimitKill); err != nil {
			return err
		}
	}
	return nil
}

// enginesIn returns the processes of the engine that have their state in root. The
// guests' processes are left out: they have the command line of their parent, an
// engine, and end with it. It reports whether a process of our program has no command
// line: it may be one of them.
func enginesIn(root string) (pids []int, turning bool) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well formed
	all := map[int]bool{}
	own, _ := os.Readlink("/proc/self/exe") // without it, no process is ours
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err == nil && len(raw) == 0 {
			exe, err := os.Readlink(filepath.Join(filepath.Dir(name), "exe"))
			turning = turning || err == nil && exe == own
		}
		if err != nil || !bytes.HasPrefix(raw, []byte("runsc-")) || !bytes.Contains(raw, []byte("\x00--root="+root+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			all[pid] = true
		}
	}
	for pid := range all {
		if parent, err := hostproc.Parent(pid); err == nil && !all[parent] {
			pids = append(pids, pid)
		}
	}
	return pids, turning
}

// alive reports whether pid is the engine's process of one of our machines:
// after a reboot the number may be anybody's.
func alive(pid int) bool {
	cmdline, err := os.ReadFile(hostproc.Path(pid, "cmdline"))
	return err == nil && bytes.HasPrefix(cmdline, []byte("runsc-sandbox\x00"))
}
