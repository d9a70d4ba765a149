package release_test

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
)

const (
	// patience is for one thing that happens in a machine, on a busy host.
	patience = 2 * time.Minute
	poll     = 200 * time.Millisecond
	// debian is the system of the machine. Making it takes minutes, so it stays.
	debian = "/var/cache/doze/release-bookworm.tar"
)

// packages are in the machine before anything of ours is: systemd, what dozed needs,
// and what the test looks with.
const packages = "systemd,systemd-sysv,mmdebstrap,erofs-utils,e2fsprogs,iproute2,ca-certificates,procps,nftables"

// masked are services of a Debian that a machine in namespaces has no devices for.
var masked = []string{
	"systemd-udevd.service", "getty.target", "console-getty.service", "getty@.service", "systemd-logind.service", "systemd-timesyncd.service",
}

//go:embed machine.sh
var boot string

// machine is a Debian with systemd, in namespaces of this host.
type machine struct {
	root string
	pid  string // of its systemd, as this host sees it
}

// start makes a machine and boots it. It ends with the test.
func start(t *testing.T) *machine {
	t.Helper()
	if _, err := os.Stat(debian); err != nil {
		must(t, "mmdebstrap", "--variant=minbase", "--include="+packages, "bookworm", debian+".new.tar")
		if err := os.Rename(debian+".new.tar", debian); err != nil {
			t.Fatal(err)
		}
	}
	m := &machine{root: filepath.Join(t.TempDir(), "root")}
	if err := os.Mkdir(m.root, 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, "tar", "-C", m.root, "-xpf", debian)
	for _, unit := range masked {
		if err := os.Symlink("/dev/null", filepath.Join(m.root, "etc/systemd/system", unit)); err != nil {
			t.Fatal(err)
		}
	}
	name := fmt.Sprintf("doze-release-%d", os.Getpid())
	cmd := exec.Command("bash", "-c", boot, "machine.sh", m.root, name, testkit.Images) // it ends below
	log, err := os.Create(filepath.Join(t.TempDir(), "boot.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // its systemd goes with it, and all processes with that
		_ = cmd.Wait()
		wait(t, "the control groups are empty", func() bool {
			_ = exec.Command("sh", "-c", "find /sys/fs/cgroup -depth -type d -path '*/"+name+"*' -exec rmdir {} + 2>/dev/null").Run()
			left, _ := exec.Command("find", "/sys/fs/cgroup", "-type", "d", "-name", name).Output()
			return len(left) == 0
		})
		_ = log.Close()
	})
	wait(t, "systemd runs", func() bool {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		if err != nil || len(strings.Fields(string(raw))) == 0 {
			return false
		}
		m.pid = strings.Fields(string(raw))[0]
		comm, err := os.ReadFile("/proc/" + m.pid + "/comm")
		if err != nil || string(comm) != "systemd\n" {
			return false
		}
		state, _, _ := m.try(t.Context(), "systemctl is-system-running")
		return state == "running" || state == "degraded"
	})
	return m
}

// try runs a line of shell in the machine.
func (m *machine) try(ctx context.Context, line string) (out string, code int, err error) {
	cmd := exec.CommandContext(ctx, "nsenter", "-t", m.pid, "-a", "--", "env", "-i",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp/home", "LC_ALL=C", "sh", "-c", line)
	raw, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil {
		code = cmd.ProcessState.ExitCode()
	}
	return strings.TrimSpace(string(raw)), code, err
}

// run is try for a line that must work.
func (m *machine) run(t *testing.T, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, _, err := m.try(ctx, line)
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", line, err, out, m.journal(t))
	}
	return out
}

// refused is try for a line that must not work, and say why.
func (m *machine) refused(t *testing.T, line, why string) {
	t.Helper()
	if out, code, _ := m.try(t.Context(), line); code == 0 || !strings.Contains(out, why) {
		t.Errorf("%s: exit code %d, want a refusal that says %q:\n%s", line, code, why, out)
	}
}

// until waits for a line that works.
func (m *machine) until(t *testing.T, line string) {
	t.Helper()
	wait(t, line, func() bool { _, code, err := m.try(t.Context(), line); return err == nil && code == 0 })
}

// journal is what dozed said last.
func (m *machine) journal(t *testing.T) string {
	t.Helper()
	out, _, _ := m.try(context.WithoutCancel(t.Context()), "journalctl --no-pager -u dozed -n 40")
	return out
}

func wait(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ready(); time.Sleep(poll) {
		if time.Now().After(end) {
			t.Fatalf("after %v it is not so that: %s", patience, what)
		}
	}
}

// must runs a program of this host.
func must(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
