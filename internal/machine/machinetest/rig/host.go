package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
)

// hosts numbers them, for cgroups and addresses.
var hosts atomic.Int64

// Host is a place for real machines: a run directory, a parent of cgroups, and a
// network namespace in which the host's ends of links are. With Open, Kill,
// Processes and Empty of a driver, it is a machinetest.Host.
type Host struct {
	Dir    string // all of it; on a disk
	Run    string // the run directory, whose path is in the command line of each process of a machine
	Cgroup string // parent of the cgroups of all machines, each of which has the id of its own

	rig   *Rig
	netns string // path
	links atomic.Int64

	mu     sync.Mutex
	spaces []string // guarded by mu; paths of network namespaces
}

// Host returns a host of its own, until the end of t.
func (r *Rig) Host(t *testing.T) *Host {
	t.Helper()
	r.Build(t)
	dir, err := os.MkdirTemp("", "doze") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{
		Dir: dir, Run: filepath.Join(dir, "run"), rig: r,
		Cgroup: fmt.Sprintf("doze-test-%d-%d", os.Getpid(), hosts.Add(1)),
	}
	t.Cleanup(func() { h.destroy(t) })
	if err := os.Mkdir(h.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	h.netns = h.space(t, "host")
	return h
}

// Config returns the configuration of a new machine with the suite's guest as its
// first process.
func (h *Host) Config(t *testing.T, id string) machine.Config {
	t.Helper()
	return machine.Config{
		ID: id, Dir: filepath.Join(h.Dir, "disk-"+id, "images"), Root: h.rig.root(), Agent: h.rig.agentRoot(),
		Hostname: "host-" + id, Env: []string{"COLOUR=blue"}, Args: []string{"/guest"},
		Memory: 256 << 20, CPUs: 1, Link: h.link(t, id),
	}
}

// Crowd makes the disk of a machine too small for a checkpoint until relieve is
// called.
func (*Host) Crowd(t *testing.T, c machine.Config) (relieve func()) {
	t.Helper()
	disk := filepath.Dir(c.Dir)
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return func() {
		if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=512m"); err != nil {
			t.Error(err)
		}
	}
}

// Swaps reports whether the host has swap.
func (h *Host) Swaps() bool { return h.rig.swaps }

// Forge makes the checkpoint of a machine one of another engine, and sound
// otherwise.
func (*Host) Forge(t *testing.T, c machine.Config) {
	t.Helper()
	m, err := checkpoint.ReadManifest(checkpoint.Dir(c))
	if err != nil {
		t.Fatal(err)
	}
	m.Engine += "-other"
	if err := m.Write(checkpoint.Dir(c)); err != nil {
		t.Fatal(err)
	}
}

// Groups returns the cgroups of a machine, or of the host for no id.
func (h *Host) Groups(id string) (dirs []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
		found, _ := filepath.Glob(filepath.Join(pattern, h.Cgroup, id)) // the pattern is well formed
		for _, name := range found {
			if info, err := os.Stat(name); err == nil && info.IsDir() {
				dirs = append(dirs, name)
			}
		}
	}
	return dirs
}

// Grouped returns the processes in the cgroups of a machine, or of all for "*".
func (h *Host) Grouped(id string) (pids []int) {
	seen := map[int]bool{}
	for _, dir := range h.Groups(id) {
		raw, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // it may have ended
		for field := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(field); err == nil && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Running returns the processes whose command line has the run directory.
func (h *Host) Running() []int {
	return PIDs(func(cmdline string) bool { return strings.Contains(cmdline, h.Run) })
}

// PIDs returns the processes whose command line, with spaces, is wanted.
func PIDs(want func(cmdline string) bool) (found []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well formed
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil || len(raw) == 0 {
			continue
		}
		if want(strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name))) // the pattern has digits
			found = append(found, pid)
		}
	}
	return found
}

// Reboot ends everything and empties what a reboot empties.
func (h *Host) Reboot(t *testing.T) {
	t.Helper()
	h.slay(t)
	if err := os.RemoveAll(h.Run); err != nil {
		t.Fatal(err)
	}
	for _, dir := range h.Groups("*") {
		_ = os.Remove(dir)
	}
}

// slay kills whatever belongs to this host.
func (h *Host) slay(t *testing.T) {
	t.Helper()
	Wait(t, "all processes are gone", func() bool {
		left := append(h.Running(), h.Grouped("*")...)
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
}

// Vacate fails t if something is left of machines, a moment later: a kill that
// nobody waited for takes one. Processes that are spared are the driver's own. leaks
// says which files and directories below the run directory are a machine's.
func (h *Host) Vacate(t *testing.T, spared func(pid int) bool, leaks func(name string, d fs.DirEntry) bool) {
	t.Helper()
	var left []string
	Wait(t, "everything is gone", func() bool {
		left = h.left(spared, leaks)
		return len(left) == 0
	}, func() string { return fmt.Sprint(left) })
}

func (h *Host) left(spared func(pid int) bool, leaks func(name string, d fs.DirEntry) bool) (left []string) {
	for _, pid := range h.Running() {
		if !spared(pid) {
			left = append(left, "process "+strconv.Itoa(pid))
		}
	}
	left = append(left, h.Groups("*")...)
	_ = filepath.WalkDir(h.Run, func(name string, d fs.DirEntry, err error) error {
		if err == nil && leaks(name, d) {
			left = append(left, name)
		}
		return nil // what is gone meanwhile is not left
	})
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, h.Run) {
			left = append(left, "mount "+line)
		}
	}
	return left
}

func (h *Host) destroy(t *testing.T) {
	t.Helper()
	if t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(h.Run, "*", "*.log")) // the pattern is well formed
		for _, name := range logs {
			raw, _ := os.ReadFile(name)
			t.Logf("%s:\n%s", name, raw)
		}
	}
	h.slay(t)
	for _, pattern := range []string{"*", ""} {
		for _, dir := range h.Groups(pattern) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, path := range h.spaces {
		if err := unix.Unmount(path, 0); err != nil {
			t.Errorf("a network namespace is in use: %v", err)
		}
	}
	if err := os.RemoveAll(h.Dir); err != nil {
		t.Error(err)
	}
}
