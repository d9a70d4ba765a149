// Package teardown finds and removes what a platform has on its host besides
// records: processes, mounts, cgroups and run state. These outlive the process
// that made them, so that sandboxes do.
package teardown

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/handover"
)

const (
	// patience is for the end of processes that were killed: a large memory
	// takes its time.
	patience = 30 * time.Second
	poll     = 5 * time.Millisecond
	// endPart is how many processes are killed before a pause. Linux 6.18 stands still
	// for good when it frees 1,024 seccomp filters at once, and each has one.
	endPart, endPause = 100, 20 * time.Millisecond
)

// engineDir is how the run directory of one version of the engine is called.
var engineDir = regexp.MustCompile(`^[0-9a-f]{8}$`)

// groupForm is a name that cannot lead out of the directory of cgroups.
var groupForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// ValidGroup reports whether the parent of cgroups can have a name.
func ValidGroup(name string) bool { return groupForm.MatchString(name) }

// Platform is what one platform has, by where it put it. All paths are absolute.
type Platform struct {
	Run    string // directory of run state
	Cgroup string // name of the parent of its cgroups
	Data   string // directory of what must survive; mounts below it are the platform's too

	// Programs are patterns of [path.Match] for the programs of its machines and of
	// what starts them. One without a slash is for the last part of a path.
	Programs []string
}

// Clear ends all sandboxes and launchers and removes mounts, cgroups and run
// state. What is in memory alone is lost; nothing on disk is. Preconditions:
// nobody starts sandboxes there.
func (w Platform) Clear() error {
	w.unlimit()
	for deadline := time.Now().Add(patience); ; time.Sleep(poll) {
		pids := w.Processes()
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes do not end: %v", pids)
		}
		slices.Sort(pids)
		slices.Reverse(pids) // a guest's processes, and then their engine, which ends what is left of them
		for part := range slices.Chunk(pids, endPart) {
			for _, pid := range part {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended meanwhile
			}
			if len(part) == endPart {
				time.Sleep(endPause)
			}
		}
		w.thaw()
	}
	return errors.Join(w.unmount(), w.removeGroups(), w.removeRun())
}

// thaw lets processes end that were killed while they stood still: the node had lost its
// lease.
func (w Platform) thaw() {
	for _, parent := range w.Groups() {
		for file, word := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
			f, err := os.OpenFile(filepath.Join(parent, file), os.O_WRONLY, 0)
			if err != nil {
				continue // the other version of cgroups has it
			}
			_, _ = f.WriteString(word) // what does not end is told
			_ = f.Close()
		}
	}
}

// Processes returns launchers, processes of the engine, and the process that keeps
// the address of a dozed that is gone. They have the run directory in their
// arguments, and other processes may too.
func (w Platform) Processes() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well formed
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil || !w.owns(raw) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// owns looks at a command line as /proc has it.
func (w Platform) owns(cmdline []byte) bool {
	program, arguments, _ := bytes.Cut(cmdline, []byte{0})
	name := filepath.Base(string(program))
	if name == "dozed" {
		return handover.Serves(arguments, w.Run)
	}
	return bytes.Contains(arguments, []byte(w.Run+"/")) && slices.ContainsFunc(w.Programs, func(pattern string) bool {
		base, _ := path.Match(pattern, name) // the patterns are well formed
		whole, _ := path.Match(pattern, string(program))
		return base || whole
	})
}

// Mounts returns the mount points below the directories, innermost first.
func (w Platform) Mounts() (points []string) {
	raw, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		for _, dir := range []string{w.Data, w.Run} {
			if strings.HasPrefix(f[4], dir+"/") {
				points = append([]string{f[4]}, points...)
				break
			}
		}
	}
	return points
}

func (w Platform) unmount() error {
	var errs []error
	for _, m := range w.Mounts() {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}

// Groups returns the parents of the cgroups, one for each hierarchy.
func (w Platform) Groups() []string {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + w.Cgroup) // the patterns are well formed
	v2, _ := filepath.Glob("/sys/fs/cgroup/" + w.Cgroup)
	return append(v1, v2...)
}

// unlimit lets what is about to be killed use the processors: to end takes time
// on them, too, and a fork bomb has thousands of tasks.
func (w Platform) unlimit() {
	for _, parent := range w.Groups() {
		for file, none := range map[string]string{"cpu.cfs_quota_us": "-1", "cpu.max": "max"} {
			found, _ := filepath.Glob(filepath.Join(parent, "*", file)) // the pattern is well formed
			for _, name := range found {
				_ = os.WriteFile(name, []byte(none), 0) // then it takes longer
			}
		}
	}
}

func (w Platform) removeGroups() error {
	var errs []error
	for _, parent := range w.Groups() {
		children, _ := filepath.Glob(parent + "/*/cgroup.procs") // the pattern is well formed
		for _, c := range children {
			errs = append(errs, rmdir(filepath.Dir(c)))
		}
		errs = append(errs, rmdir(parent))
	}
	return errors.Join(errs...)
}

// rmdir removes a cgroup whose last process may still be ending.
func rmdir(dir string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(poll) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist): // one hierarchy may have two names
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
}

// ownFiles are what a dozed has in its run directory besides engines.
var ownFiles = []string{"lock", "lock.control", "lock.node", "lock.edge", "door.sock", "previews.sock", "backup.sock", "owners"}

// removeRun removes what we know in the run directory, and the directory if
// nothing else is in it: somebody may have chosen one with other things.
func (w Platform) removeRun() error {
	entries, err := os.ReadDir(w.Run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.IsDir() && engineDir.MatchString(e.Name()) || slices.Contains(ownFiles, e.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(w.Run, e.Name())))
		}
	}
	if err := unix.Rmdir(w.Run); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, fmt.Errorf("remove %s: %w", w.Run, err))
	}
	return errors.Join(errs...)
}
