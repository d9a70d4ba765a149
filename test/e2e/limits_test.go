package e2e_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	p, c := start(t)

	for _, memory := range []doze.Megabytes{256, 4096} {
		t.Run(fmt.Sprintf("%d MB", memory), func(t *testing.T) {
			t.Parallel()
			_, agent := create(t, c, named("size-"+strconv.Itoa(int(memory)), memory))
			if kb := number(t, sh(t, agent, "awk '/^MemTotal/{print $2}' /proc/meminfo")); kb != float64(memory)*1024 {
				t.Errorf("the sandbox sees %v kB of memory", kb)
			}
			// A share below two processors is a share of two: the engine needs them.
			if n := number(t, sh(t, agent, "nproc")); n != max(2, memory.CPUs()) && int(n) != runtime.NumCPU() {
				t.Errorf("the sandbox sees %v processors", n)
			}
		})
	}

	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		_, agent := create(t, c, named("hog", 256))
		witness := spawn(t, agent, client.Command{Command: "sleep 1000"})
		const hog = `exec python3 -c "
kept = []
while True: kept.append(b'x' * (8 << 20))"`
		began := time.Now()
		proc, err := agent.Start(t.Context(), client.Command{Command: hog, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("the hog was ended after %v", time.Since(began).Round(time.Millisecond))
		if proc.Status != "failed" {
			t.Errorf("the hog is %s, exit code %d", proc.Status, proc.ExitCode)
		}
		if out := sh(t, agent, "echo alive"); out != "alive" {
			t.Errorf("the sandbox says %q", out)
		}
		if proc, err := agent.Process(t.Context(), witness.PID); err != nil || proc.Status != "running" {
			t.Errorf("another process is %s (%v)", proc.Status, err)
		}
		until(t, "an event about the memory limit", func() bool {
			sb, err := c.Sandbox(t.Context(), "hog")
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range sb.Events {
				if strings.Contains(e.Message, "memory limit") {
					return sb.Status == "DEPLOYED"
				}
			}
			return false
		})
	})

	t.Run("processor", func(t *testing.T) {
		t.Parallel()
		const memory = 512 // a quarter of a processor
		share := doze.Megabytes(memory).CPUs()
		_, agent := create(t, c, named("busy", memory))
		for range 2 {
			spawn(t, agent, client.Command{Command: "while :; do :; done"})
		}
		const window = 2 * time.Second
		before, err := p.CPUTime("busy")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		time.Sleep(window)
		after, err := p.CPUTime("busy")
		if err != nil {
			t.Fatal(err)
		}
		got := (after - before).Seconds() / time.Since(began).Seconds()
		t.Logf("it used %.2f of a processor, its share is %.2f", got, share)
		// Other tests want the processors too, so only more than its share is wrong.
		if got > share*1.3 || got < share/4 {
			t.Errorf("it used %.2f of a processor, its share is %.2f", got, share)
		}
	})
}

// TestFullFileSystems fills what a sandbox can write: the file system is full,
// and the sandbox is not gone.
func TestFullFileSystems(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	_, agent := create(t, c, named("full", 512))
	for _, dir := range []string{"/root", "/tmp", "/dev/shm"} {
		out := sh(t, agent, "dd if=/dev/zero of="+dir+"/fill bs=1M count=2000 2>&1; rm -f "+dir+"/fill; echo lives")
		if !strings.Contains(out, "No space left on device") || !strings.Contains(out, "lives") {
			t.Errorf("%s: %s", dir, out)
		}
	}
	// All of them at once leave room for processes, and for what makes room.
	if _, err := agent.Start(t.Context(), client.Command{
		Command: "for d in /root /tmp /dev/shm; do dd if=/dev/zero of=$d/fill bs=1M count=2000; done", Wait: true,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Remove(t.Context(), "/root/fill", false); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, agent, "echo fine"); got != "fine" {
		t.Errorf("afterwards: %q", got)
	}
}
