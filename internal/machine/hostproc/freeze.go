package hostproc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezeLook is how often we ask whether all tasks have stopped.
const freezeLook = 2 * time.Millisecond

// ErrNoFreezer is for a host whose kernel cannot stop groups.
var ErrNoFreezer = errors.New("the kernel of this host cannot freeze cgroups")

// Freeze stops all tasks of all machines whose groups are below a name, or lets them go
// on. Without an error, and unless ctx ended, none of them runs any more. A group that is
// not there has no tasks.
func Freeze(ctx context.Context, name string, stop bool) error {
	g, err := groupsOf(name)
	if err != nil {
		return err
	}
	if !g.unified && !g.freezes {
		return ErrNoFreezer
	}
	dir, file, word, isFile, is := g.freezing(stop)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for tick := time.NewTicker(freezeLook); ; {
		// With v1, a task that was just made may have to be told again.
		if err := write(dir, file, word); err != nil {
			tick.Stop()
			return err
		}
		raw, err := os.ReadFile(filepath.Join(dir, isFile))
		if err != nil || strings.Contains(string(raw), is) {
			tick.Stop()
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return fmt.Errorf("some tasks did not stop: %w", context.Cause(ctx))
		}
	}
}

// Frozen reports whether Freeze has stopped all machines whose groups are below a name, or is about to.
// What is not there does not stand still.
func Frozen(name string) (bool, error) {
	g, err := groupsOf(name)
	if err != nil || !g.unified && !g.freezes {
		return false, err
	}
	file := filepath.Join(g.root, freezer, g.name, "freezer.self_freezing")
	if g.unified {
		file = filepath.Join(g.root, g.name, "cgroup.freeze")
	}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return strings.TrimSpace(string(raw)) == "1", err
}

// KillAll sends SIGKILL to all processes of machines whose groups are below a name. Those
// that are frozen run no further instruction: they end when they would go on.
func KillAll(name string, ids []string) error {
	g, err := groupsOf(name)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		for _, pid := range g.Open(id).pids() {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("kill process %d: %w", pid, err))
			}
		}
	}
	return errors.Join(errs...)
}

// freezing says what to write to stop all tasks, and where to read that they stand still.
func (g Groups) freezing(stop bool) (dir, file, word, isFile, is string) {
	if g.unified {
		dir = filepath.Join(g.root, g.name)
		if stop {
			return dir, "cgroup.freeze", "1", "cgroup.events", "frozen 1"
		}
		return dir, "cgroup.freeze", "0", "cgroup.events", "frozen 0"
	}
	dir = filepath.Join(g.root, freezer, g.name)
	if stop {
		return dir, "freezer.state", "FROZEN", "freezer.state", "FROZEN"
	}
	return dir, "freezer.state", "THAWED", "freezer.state", "THAWED"
}
