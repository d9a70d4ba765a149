package e2e_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// counter counts in memory only, and writes where it is when it is asked.
const counter = `exec python3 -c "
import signal, time
n = 0
def tell(*_):
    open('/tmp/count', 'w').write(str(n))
signal.signal(signal.SIGUSR1, tell)
open('/tmp/ready', 'w').write('1')
while True:
    n += 1
    time.sleep(0.01)"`

// countOf returns how far a counter is.
func countOf(t *testing.T, agent *client.Agent, pid string) float64 {
	t.Helper()
	return number(t, sh(t, agent, "rm -f /tmp/count; kill -USR1 "+pid+"; until [ -s /tmp/count ]; do sleep 0.02; done; cat /tmp/count"))
}

// ended waits until a sandbox has failed, and returns what its events say.
func ended(t *testing.T, c *client.Client, name string) (messages string) {
	t.Helper()
	until(t, name+" has ended", func() bool {
		sb, err := c.Sandbox(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		messages = ""
		for _, e := range sb.Events {
			messages += e.Message + "\n"
		}
		return sb.Status == doze.Failed.Status()
	})
	return messages
}

// slain reports whether the kernel killed a process of a sandbox that still answers. It may
// be faster than the watch, and takes a guest's process before the engine.
func slain(t *testing.T, agent *client.Agent, pid string) bool {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Second) // it may be busy, or end
	defer stop()
	p, err := agent.Process(ctx, pid)
	return err == nil && p.Signal != 0
}

// TestSmallHost: on a host with little memory one tenant fills its files and its
// memory, and no other one loses a process.
func TestSmallHost(t *testing.T) {
	t.Parallel()
	_, c := start(t, "--sandbox-memory-mb", "700", "--reserve-mb", "64", "--memory-overcommit", "8")
	type tenant struct {
		agent *client.Agent
		pid   string
		at    float64
	}
	var tenants []*tenant
	for _, name := range []string{"one", "two"} {
		_, agent := create(t, c, named(name, 256))
		v := &tenant{agent: agent, pid: spawn(t, agent, client.Command{Command: counter}).PID}
		until(t, "the counter runs", func() bool { return sh(t, agent, "cat /tmp/ready 2>/dev/null || true") == "1" })
		v.at = countOf(t, agent, v.pid)
		tenants = append(tenants, v)
	}
	for what, hog := range map[string]string{
		"files":  "for d in /root /tmp /dev/shm; do dd if=/dev/zero of=$d/fill bs=1M; done; sleep 1000",
		"memory": `exec python3 -c "kept = []` + "\n" + `while True: kept.append(b'x' * (8 << 20))"`,
	} {
		name := "hog-" + what
		_, agent := create(t, c, named(name, 1024))
		forever := 0 // on a slow host it would fall asleep while the kernel makes room for it
		started, err := agent.Start(t.Context(), client.Command{Command: hog, KeepAlive: true, Timeout: &forever})
		if err != nil {
			t.Fatal(err)
		}
		var failed bool
		until(t, name+" or its process has ended", func() bool {
			sb, err := c.Sandbox(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			failed = sb.Status == doze.Failed.Status()
			return failed || slain(t, agent, started.PID)
		})
		if failed {
			if said := ended(t, c, name); !strings.Contains(said, "above its share") {
				t.Errorf("%s ended, and its events say: %s", name, said)
			}
		}
		for _, v := range tenants {
			if at := countOf(t, v.agent, v.pid); at <= v.at {
				t.Errorf("after %s: process %s of another tenant counts %v, and was at %v", name, v.pid, at, v.at)
			} else {
				v.at = at
			}
		}
		if _, err := c.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	// More than there is at all is a mistake.
	_, err := c.Create(t.Context(), named("large", 8192), false)
	if kind(err) != doze.Invalid {
		t.Errorf("a sandbox larger than the host: %v", err)
	}
}

// TestMemoryIsReserved: what would be reserved twice is refused, as something to
// try again, and leaves nothing.
func TestMemoryIsReserved(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--sandbox-memory-mb", "720", "--reserve-mb", "64", "--memory-overcommit", "1", "--pause-after", "1h")
	create(t, c, named("one", 256))
	create(t, c, named("two", 256))
	_, err := c.Create(t.Context(), named("three", 256), false)
	if kind(err) != doze.Unavailable || !strings.Contains(doze.Public(err).Message, "no memory left") {
		t.Errorf("a third sandbox: %v", err)
	}
	if _, err := c.Sandbox(t.Context(), "three"); kind(err) != doze.NotFound {
		t.Errorf("what was refused is there: %v", err)
	}
	if code, body := get(t, p, p.Address+"/metrics"); code != 200 || !strings.Contains(body, "\ndoze_memory_refusals_total 1\n") ||
		!strings.Contains(body, "\ndoze_memory_limit_bytes 7.5497472e+08\n") {
		t.Errorf("metrics: %d\n%s", code, body)
	}
	if _, err := c.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	until(t, "there is room", func() bool {
		_, err = c.Create(t.Context(), named("three", 256), false)
		return kind(err) != doze.Unavailable
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFirstProcess: no process of a sandbox kills the first one by a signal. What
// kills it all the same is said.
func TestFirstProcess(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	_, agent := create(t, c, named("first", 256))
	witness := spawn(t, agent, client.Command{Command: "sleep 1000"})
	for _, s := range []string{"KILL", "STOP", "TERM", "INT", "HUP", "QUIT", "ABRT", "SEGV", "BUS", "ILL", "FPE", "TRAP", "SYS", "TSTP", "TTIN", "TTOU", "ALRM", "USR1", "USR2", "XCPU", "32", "33", "34", "35", "64"} {
		sh(t, agent, "kill -"+s+" 1")
	}
	sh(t, agent, "python3 -c 'import os; os.kill(1, 9)'")
	sh(t, agent, "python3 -c 'import os, signal; signal.pidfd_send_signal(os.pidfd_open(1), 9)'")
	// Each namespace has the rule for its own processes. Those outside can kill its
	// first process like any other. A process without the right to signal gets an
	// error, as everywhere.
	if out := sh(t, agent, `unshare -Urpf sh -c 'kill -9 $$; echo alive'; setpriv --reuid 65534 --clear-groups sh -c 'kill -9 1 || echo refused' 2>/dev/null`); out != "alive\nrefused" {
		t.Errorf("in a namespace, and without the right: %q", out)
	}
	if out := sh(t, agent, `unshare -Urpf sleep 999 & for i in $(seq 200); do pid=$(pgrep -fx 'sleep 999') && break; sleep 0.05; done; kill -9 $pid; wait; echo gone`); out != "gone" {
		t.Errorf("the first process of another namespace: %q", out)
	}
	if out := sh(t, agent, "sleep 0.2; echo alive"); out != "alive" {
		t.Errorf("it says %q", out)
	}
	if proc, err := agent.Process(t.Context(), witness.PID); err != nil || proc.Status != "running" {
		t.Errorf("another process is %s (%v)", proc.Status, err)
	}
	_, _ = agent.Start(t.Context(), client.Command{Command: `python3 -c 'import ctypes, os; trace = ctypes.CDLL(None).ptrace; trace(16, 1, 0, 0); os.waitpid(1, 0x40000000); trace(8, 1, 0, 0)'`})
	if said := ended(t, c, "first"); !strings.Contains(said, "its first process was killed from inside (signal 9)") || !strings.Contains(said, "restore one of its snapshots") {
		t.Errorf("its events say: %s", said)
	}
}
