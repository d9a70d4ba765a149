package testkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// An account rests when its processes used less than restShare of one processor
	// for restWindow. An idle dozed uses less than half of that.
	restWindow, restShare = 200 * time.Millisecond, 0.03
	// restPatience is for processes that always have something to do.
	restPatience = time.Minute
)

// hierarchy is where a host may have cgroups that count the time of processors.
type hierarchy struct {
	root  string
	magic int64  // of its file system
	file  string // with the time, in each group
	read  func(string) (time.Duration, error)
}

// hierarchies are in the order of preference. On cgroup v2 the kernel counts in all
// groups, with and without a controller there.
var hierarchies = []hierarchy{
	{"/sys/fs/cgroup", unix.CGROUP2_SUPER_MAGIC, "cpu.stat", usage},
	{"/sys/fs/cgroup/unified", unix.CGROUP2_SUPER_MAGIC, "cpu.stat", usage},
	{"/sys/fs/cgroup/cpuacct", unix.CGROUP_SUPER_MAGIC, "cpuacct.usage", nanoseconds},
}

// there reports whether the host has it.
func (h hierarchy) there() bool {
	var st unix.Statfs_t
	return unix.Statfs(h.root, &st) == nil && st.Type == h.magic
}

// An Account counts the time of processors that commands and all of their children
// use, also of those that have ended: it is a cgroup.
type Account struct {
	hierarchy

	top     *os.Root // of the hierarchy, in whichever mount namespace the caller is
	name    string
	besides []string // groups that the children may move to
	join    *os.File // what a process writes to that joins
}

// OpenAccount makes an account. It counts the groups with the names besides, too:
// what its processes put there. The caller must close it.
func OpenAccount(name string, besides ...string) (*Account, error) {
	for _, h := range hierarchies {
		if h.there() {
			return h.open(name, besides)
		}
	}
	return nil, errors.New("this host has no cgroups that count the time of processors")
}

func (h hierarchy) open(name string, besides []string) (*Account, error) {
	top, err := os.OpenRoot(h.root)
	if err != nil {
		return nil, err
	}
	if err := top.Mkdir(name, 0o750); err != nil {
		return nil, errors.Join(err, top.Close())
	}
	join, err := top.OpenFile(filepath.Join(name, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return nil, errors.Join(err, top.Remove(name), top.Close())
	}
	return &Account{hierarchy: h, top: top, name: name, besides: besides, join: join}, nil
}

// Command has a command counted from its first instruction: a shell joins the group
// and becomes it.
func (a *Account) Command(cmd *exec.Cmd) *exec.Cmd {
	const joined = 3 // the first of the extra files
	script := fmt.Sprintf(`echo $$ >&%d && exec %d>&- && exec "$0" "$@"`, joined, joined)
	cmd.Args = append([]string{"/bin/sh", "-c", script, cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.ExtraFiles = "/bin/sh", []*os.File{a.join}
	return cmd
}

// Used returns the time of processors that was used so far. What the kernel does in
// threads of its own is not in it.
func (a *Account) Used() (total time.Duration, err error) {
	for _, name := range append([]string{a.name}, a.besides...) {
		raw, err := a.top.ReadFile(filepath.Join(name, a.file))
		if errors.Is(err, fs.ErrNotExist) && name != a.name {
			continue
		}
		if err != nil {
			return 0, err
		}
		used, err := a.read(string(raw))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		total += used
	}
	return total, nil
}

// usage reads a file cpu.stat.
func usage(stat string) (time.Duration, error) {
	for line := range strings.Lines(stat) {
		if n, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("cpu.stat has no usage_usec: %q", stat)
}

// nanoseconds reads a file cpuacct.usage.
func nanoseconds(file string) (time.Duration, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(file), 10, 64)
	return time.Duration(n), err
}

// Rest waits until the processes have nothing left to do, and returns what they had
// used by then. It asks them nothing, so that waiting costs nothing.
func (a *Account) Rest(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, restPatience, errors.New("the platform does not come to rest"))
	defer cancel()
	for {
		before, err := a.Used()
		if err != nil {
			return 0, err
		}
		began := time.Now()
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(restWindow):
		}
		after, err := a.Used()
		if err != nil {
			return 0, err
		}
		if (after - before).Seconds() < restShare*time.Since(began).Seconds() {
			return before, nil
		}
	}
}

// Close removes the group. Its processes have been killed, but some may still be
// ending.
func (a *Account) Close() error {
	_ = a.join.Close() // nothing was written through it
	for deadline := time.Now().Add(stopTime); ; time.Sleep(awaitPoll) {
		err := a.top.Remove(a.name)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return errors.Join(err, a.top.Close())
		}
	}
}
