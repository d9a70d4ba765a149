package testkit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A platform rests when it used less than restShare of one processor for
	// restWindow. An idle dozed uses less than half of that.
	restWindow, restShare = 200 * time.Millisecond, 0.03
	// restPatience is for a platform that always has something to do.
	restPatience = time.Minute
)

// accounts are where hosts have the hierarchy of cgroup v2. The kernel counts the
// time of processors in all of its groups, with and without a controller there.
var accounts = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// unified returns the hierarchy of cgroup v2.
func unified() (string, error) {
	for _, dir := range accounts {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("this host has no cgroup v2")
}

// account makes the cgroup in which dozed starts, and returns its directory. What
// dozed starts is born there: the launcher, its sandboxes until the launcher puts
// them in a group of their own, and every short-lived child.
func (p *Platform) account() (string, error) {
	root, err := unified()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, p.cgroup()+"-account")
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// Used returns the time of processors that the platform has used: dozed, the
// launcher, sandboxes, and all of their children, also those that ended. Only
// what the kernel does in threads of its own is not in it. The platform must
// have [Options.Account].
func (p *Platform) Used() (total time.Duration, err error) {
	if p.accounting == "" {
		return 0, errors.New("the platform was started without an account")
	}
	// On a host that has cgroup v2 alone, sandboxes are in groups below this parent.
	for _, dir := range []string{p.accounting, filepath.Join(filepath.Dir(p.accounting), p.cgroup())} {
		raw, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
		if errors.Is(err, fs.ErrNotExist) && dir != p.accounting {
			continue
		}
		if err != nil {
			return 0, err
		}
		used, err := usage(string(raw))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", dir, err)
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

// Rest waits until the platform has nothing left to do, and returns what it had
// used by then. It asks the platform nothing, so that waiting costs nothing.
func (p *Platform) Rest(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, restPatience, errors.New("the platform does not come to rest"))
	defer cancel()
	for {
		before, err := p.Used()
		if err != nil {
			return 0, err
		}
		began := time.Now()
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(restWindow):
		}
		after, err := p.Used()
		if err != nil {
			return 0, err
		}
		if (after - before).Seconds() < restShare*time.Since(began).Seconds() {
			return before, nil
		}
	}
}

// closeAccount removes the cgroup of dozed. Its processes have been killed, but
// some may still be ending.
func (p *Platform) closeAccount() error {
	if p.accounting == "" {
		return nil
	}
	for deadline := time.Now().Add(stopTime); ; time.Sleep(awaitPoll) {
		err := unix.Rmdir(p.accounting)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove %s: %w", p.accounting, err)
		}
	}
}
