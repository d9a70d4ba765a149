package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/machine/checkpoint"
)

// Create makes a sandbox with so much memory, and returns it with a client of its agent.
func Create(ctx context.Context, c *client.Client, name string, memory doze.Megabytes) (doze.Sandbox, *client.Agent, error) {
	return Make(ctx, c, name, doze.Runtime{Memory: memory})
}

// Make is Create for any machine.
func Make(ctx context.Context, c *client.Client, name string, r doze.Runtime) (doze.Sandbox, *client.Agent, error) {
	sb, err := c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: r}}, false)
	if err != nil {
		return sb, nil, err
	}
	agent, err := c.Agent(sb)
	return sb, agent, err
}

const (
	// awaitPoll is how soon Await looks again, at first.
	awaitPoll = 2 * time.Millisecond
	// awaitPollMost is how long it pauses at most.
	awaitPollMost = 50 * time.Millisecond
)

// UID returns the identity of a sandbox by its name, as the node recorded it.
func (p *Platform) UID(name string) (string, error) {
	uids, err := p.uids(name)
	if err != nil {
		return "", err
	}
	if len(uids) == 0 {
		return "", fmt.Errorf("the node has no sandbox %s", name)
	}
	return uids[0], nil
}

// uids returns the identities of all machines that have the name of a sandbox: a
// restore makes another one.
func (p *Platform) uids(name string) (uids []string, err error) {
	records, err := filepath.Glob(filepath.Join(p.Data, "sandboxes", "*", "record.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range records {
		raw, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was deleted just now
		}
		if err != nil {
			return nil, err
		}
		var record struct {
			Order struct{ UID, Name string } `json:"order"`
		}
		if err := json.Unmarshal(raw, &record); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if record.Order.Name == name {
			uids = append(uids, record.Order.UID)
		}
	}
	return uids, nil
}

// TierOf is where the memory of a sandbox is: running, paused, swapped or disk.
// It asks the launcher, so that it never wakes the sandbox.
func (p *Platform) TierOf(ctx context.Context, name string) (string, error) {
	uid, err := p.UID(name)
	if err != nil {
		return "", err
	}
	states, err := p.Machines(ctx)
	if err != nil {
		return "", err
	}
	if state, ok := states[uid]; ok {
		return state, nil
	}
	return "disk", nil
}

// AwaitTier waits until a sandbox is in a tier.
func (p *Platform) AwaitTier(ctx context.Context, name, tier string) error {
	err := until(ctx, func() error {
		return inTier(tier)(p.TierOf(ctx, name))
	})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Checkpoint returns the directory of a sandbox's checkpoint.
func (p *Platform) Checkpoint(name string) (string, error) {
	uid, err := p.UID(name)
	return filepath.Join(p.Data, "sandboxes", uid, "machine", "image"), err
}

// checkpointed reports whether a sandbox has a checkpoint that is newer than some
// moment, and on disk for sure. While two machines have the name of the sandbox,
// it has none.
func (p *Platform) checkpointed(name string, since time.Time) bool {
	dir, err := p.machine(name)
	if err != nil {
		return false
	}
	// It gets its name, then that is brought to disk, then it is vouched for.
	at := filepath.Join(dir, "image")
	made, err := os.Stat(filepath.Join(at, checkpoint.FileManifest))
	if err != nil || !made.ModTime().After(since) {
		return false
	}
	vouchers, err := filepath.Glob(checkpoint.VoucherFile(filepath.Join(p.RunDir, "*"), at)) // one of each engine
	return err == nil && slices.ContainsFunc(vouchers, func(name string) bool {
		vouched, err := os.Stat(name)
		return err == nil && !vouched.ModTime().Before(made.ModTime())
	})
}

// Checkpointing reports whether a checkpoint of a sandbox is being written.
func (p *Platform) Checkpointing(name string) bool {
	dir, err := p.machine(name)
	if err != nil {
		return false
	}
	_, err = os.Lstat(filepath.Join(dir, "image.making"))
	return err == nil
}

// machine returns the directory of a sandbox's machine.
func (p *Platform) machine(name string) (string, error) {
	uids, err := p.uids(name)
	if err == nil && len(uids) != 1 {
		err = fmt.Errorf("%d machines are called %s", len(uids), name)
	}
	if err != nil {
		return "", err
	}
	return filepath.Join(p.Data, "sandboxes", uids[0], "machine"), nil
}

// RouterNetNS returns the file of the network namespace that has the host ends
// of all links.
func (p *Platform) RouterNetNS() string { return filepath.Join(p.Data, "net", "router") }

// Launcher returns the process id of the launcher.
func (p *Platform) Launcher() (int, error) {
	for _, pid := range p.teardown().Processes() {
		if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Contains(raw, []byte("\x00-socket\x00")) {
			return pid, nil
		}
	}
	return 0, errors.New("no launcher runs")
}

// Engine returns the process id of the engine of a sandbox.
func (p *Platform) Engine(name string) (int, error) {
	uid, err := p.UID(name)
	if err != nil {
		return 0, err
	}
	engines := p.Engines(uid)
	if len(engines) == 0 {
		return 0, fmt.Errorf("no engine runs for %s", name)
	}
	return engines[0], nil
}

// Engines returns the process ids of all engines of a sandbox, of which there
// is one at most. The guest's processes are their children and look like them.
func (p *Platform) Engines(uid string) (pids []int) {
	var all []int
	for _, pid := range p.teardown().Processes() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.Contains(raw, []byte("\x00boot\x00")) && bytes.Contains(raw, []byte(uid)) {
			all = append(all, pid)
		}
	}
	for _, pid := range all {
		if parent, err := parent(pid); err == nil && !slices.Contains(all, parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parent returns the process id of a process's parent.
func parent(pid int) (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // after the name: state, parent
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/stat is %q", pid, raw)
	}
	return strconv.Atoi(fields[1])
}

// Shoot kills a process and waits until it is gone.
func Shoot(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	for {
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // without it the process is gone
		if len(raw) == 0 || strings.Contains(string(raw), ") Z ") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end: %w", pid, context.Cause(ctx))
		case <-time.After(awaitPoll):
		}
	}
}

// clockTick is the unit of times in /proc: USER_HZ is 100 on every Linux.
const clockTick = time.Second / 100

// Processes returns the process ids of a sandbox's engine and guest.
func (p *Platform) Processes(name string) ([]string, error) {
	uid, err := p.UID(name)
	if err != nil {
		return nil, err
	}
	groups := p.teardown().Groups()
	if len(groups) == 0 {
		return nil, errors.New("there is no cgroup")
	}
	raw, err := os.ReadFile(filepath.Join(groups[0], uid, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // it is on disk
	}
	return strings.Fields(string(raw)), err
}

// CPUTime returns what the processes of a sandbox have used of the host's
// processors.
func (p *Platform) CPUTime(name string) (total time.Duration, err error) {
	pids, err := p.Processes(name)
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		n, err := strconv.Atoi(pid)
		if err != nil {
			return 0, err
		}
		used, err := CPUTime(n)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it ended just now
		}
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// CPUTime returns what a process has used of the host's processors.
func CPUTime(pid int) (total time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	const user, system = 11, 12 // after the name
	fields := strings.Fields(rest)
	if len(fields) <= system {
		return 0, fmt.Errorf("/proc/%d/stat is %q", pid, stat)
	}
	for _, i := range []int{user, system} {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(ticks) * clockTick
	}
	return total, nil
}
