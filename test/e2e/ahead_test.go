package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// view is what a sandbox sees of itself, without what differs between any two.
const view = `hostname; cat /etc/hostname; grep "$(hostname)" /etc/hosts | wc -l; cat /etc/resolv.conf
env | grep -v '^BL_NAME=\|^HOSTNAME=' | sort; pwd; id; umask; ulimit -a; cat /proc/mounts
grep 'Cap\|NoNewPrivs\|Seccomp' /proc/self/status /proc/1/status
tr '\0' '\n' < /proc/1/environ | sort; tr '\0' ' ' < /proc/1/cmdline; nproc; grep MemTotal /proc/meminfo
ls -lA --time-style=+ / /etc /tmp /dev/shm /root; df --output=target,size; ls /proc/1/fd | wc -l
hostname other && echo "a process can name the host"; true`

// TestAhead creates sandboxes by a boot, and one that takes a machine which was
// started ahead. Nobody inside can tell which is which.
func TestAhead(t *testing.T) {
	t.Parallel()
	p, c := launch(t, nil, testkit.Options{})
	ahead := func(what string, n int) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			entries, err := os.ReadDir(filepath.Join(p.Data, "ahead", what))
			if err == nil && len(entries) == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d %s, want %d: %v", len(entries), what, n, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	restart := func(args ...string) {
		t.Helper()
		p.Arguments(args...)
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	born := func(name string) *client.Agent {
		t.Helper()
		sb := named(name, 512)
		sb.Spec.Runtime.Envs = []doze.Env{{Name: "COLOUR", Value: new("blue")}}
		_, agent := create(t, c, sb)
		return agent
	}
	const boot = "cat /proc/sys/kernel/random/boot_id"
	seen, random, boots := map[string]string{}, map[string]bool{}, map[string]bool{}
	look := func(name string, agent *client.Agent) {
		t.Helper()
		text := sh(t, agent, view)
		if !strings.HasPrefix(text, name+"\n"+name+"\n1\n") || !strings.Contains(text, "\nCOLOUR=blue\n") {
			t.Errorf("%s sees %s", name, text)
		}
		seen[name] = strings.ReplaceAll(text, name, "NAME")
		random[sh(t, agent, "head -c 16 /dev/urandom | od -An -tx1")] = true
		boots[sh(t, agent, boot)] = true
	}

	look("booted", born("booted")) // names of one length, for the sizes of files
	ahead("machines", 0)
	restart("--warm-pool", "1")
	look("filler", born("filler")) // lets the node start one more
	ahead("machines", 1)
	agent := born("spared")
	look("spared", agent)
	for name, text := range seen {
		if diff := cmp.Diff(seen["booted"], text); diff != "" {
			t.Errorf("%s sees something else than one that was booted (-booted +%s):\n%s", name, name, diff)
		}
	}
	if len(random) != len(seen) {
		t.Errorf("%d sandboxes drew %d random numbers", len(seen), len(random))
	}
	if len(boots) != len(seen) {
		t.Errorf("%d sandboxes have %d boots: %v", len(seen), len(boots), boots)
	}
	booted := sh(t, agent, boot)
	sh(t, agent, "! echo other > /proc/sys/kernel/random/boot_id && ! umount /proc/sys/kernel/random/boot_id") // root or not

	// It lives as others do.
	sh(t, agent, "echo kept > /root/file")
	restart("--pause-after", "2s", "--save-after", "0s", "--disk-after", "3s")
	ahead("machines", 1) // that of the sandbox: the others were nobody's
	await(t, p, "disk")
	if got := sh(t, agent, "hostname; cat /root/file; "+boot); got != "spared\nkept\n"+booted {
		t.Errorf("after a sleep on disk: %q, booted as %s", got, booted)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, agent, "hostname; cat /root/file"); got != "spared\nkept" {
		t.Errorf("after a kill of dozed: %q", got)
	}
}
