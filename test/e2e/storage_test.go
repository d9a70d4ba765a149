package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// onXFS mounts a file system whose files can share blocks on a directory.
func onXFS(t *testing.T) func(dir string) error {
	t.Helper()
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("SKIPPED: there is no mkfs.xfs on this host")
	}
	return func(dir string) error {
		file := filepath.Join(t.TempDir(), "xfs")
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 64<<30)); err != nil {
			return err
		}
		for _, args := range [][]string{{"mkfs.xfs", "-q", "-m", "reflink=1", file}, {"mount", "-o", "loop", file, dir}} {
			if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", args, err, out)
			}
		}
		return nil
	}
}

// TestStorage has a sandbox whose files are on disk, and are more than its memory. They
// are there after everything that may happen to it.
func TestStorage(t *testing.T) {
	t.Parallel()
	t.Run("copied", func(t *testing.T) {
		t.Parallel()
		storageStays(t, nil, true)
	})
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		storageStays(t, onXFS(t), false)
	})
}

// storageStays is TestStorage on one file system. Where blocks can be shared, only what copies
// a disk is another: sleeps, wakes, the way back after a crash, snapshots and forks. The rest
// of what may happen is the same code, and done on one of the two: all says so.
func storageStays(t *testing.T, mount func(dir string) error, all bool) {
	t.Helper()
	p, c := startIn(t, mount, "--pause-after", "1s", "--save-after", "100ms", "--disk-after", "1s", "--checkpoint-every", "1h")
	want := named("box", 256)
	want.Spec.Runtime.Storage = 400
	sb, agent := create(t, c, want)
	if sb.Spec.Runtime.Storage != 400 {
		t.Errorf("it has a storage of %d", sb.Spec.Runtime.Storage)
	}
	const parts = "for i in 1 70 140 210 279; do dd %s bs=1M count=1 2>/dev/null; done"
	sums := func(agent *client.Agent) string {
		t.Helper()
		return sh(t, agent, "cd /data && stat -c %s big && "+fmt.Sprintf(parts, "if=big skip=$i")+" | md5sum; find etc -type f | sort | xargs md5sum | md5sum; ls")
	}
	sh(t, agent, "mkdir /data && cd /data && dd if=/dev/urandom of=big bs=1M count=280 && cp -r /etc etc && sync")
	if out := sh(t, agent, "dd if=/dev/zero of=/data/full bs=1M count=200 2>&1 | grep -o 'No space left on device'; rm /data/full; df -m / | tail -1 | awk '{print $2}'"); out != "No space left on device\n400" {
		t.Errorf("a file that does not fit: %q", out)
	}
	before := sums(agent)
	awaitTier(t, p, "box", "disk")
	var u doze.SandboxUsage
	until(t, "its usage is known", func() bool {
		var err error
		u, err = c.Usage(t.Context(), "box")
		return err == nil && u.Tier == "disk"
	})
	if d := u.Disk; d.StorageBytes < 280<<20 || d.StorageBytes > 400<<20 || d.StorageLimitBytes != 400<<20 || d.CheckpointBytes > 256<<20 {
		t.Errorf("it takes %+v", d)
	}
	if _, body := get(t, p, p.Address+"/metrics"); !strings.Contains(body, `doze_storage_bytes{tier="disk"} 2`) {
		t.Error("the metrics do not say what its files take")
	}
	intact := func(agent *client.Agent, when string) {
		t.Helper()
		if after := sums(agent); after != before {
			t.Errorf("%s:\n%.400s\nbefore:\n%.400s", when, after, before)
		}
	}
	intact(agent, "after a sleep")

	// The node ends, awake and asleep.
	for _, tier := range []string{"running", "disk"} {
		if !all {
			break
		}
		if tier == "disk" {
			awaitTier(t, p, "box", tier)
		} else {
			sh(t, agent, "true")
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		revive(t, p)
		intact(agent, "after the end of dozed while it was "+tier)
	}
	// The engine ends. What the sandbox did since its checkpoint is lost.
	awaitTier(t, p, "box", "disk")
	sh(t, agent, "echo lost >/data/lost; rm /data/big")
	pid, err := p.Engine("box")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "it went back", func() bool {
		sb, err := c.Sandbox(t.Context(), "box")
		return err == nil && sb.Recovery != nil
	})
	intact(agent, "after the end of its engine")

	n, err := c.CreateSnapshot(t.Context(), "box", "n")
	if err != nil || n.Spec.Storage != 400 {
		t.Fatalf("its snapshot is %+v, %v", n, err)
	}
	sh(t, agent, "echo changed >/data/big")
	if _, err := c.ForkSnapshot(t.Context(), n.ID, doze.ForkRequest{TargetName: "fork", TargetType: doze.KindSandbox}); err != nil {
		t.Fatal(err)
	}
	fork, inside := open(t, c, "fork")
	if fork.Spec.Runtime.Storage != 400 {
		t.Errorf("a fork has a storage of %d", fork.Spec.Runtime.Storage)
	}
	intact(inside, "in a fork")
	sh(t, inside, "rm -r /data")
	if _, err := c.Delete(t.Context(), "fork"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Restore(t.Context(), "box", n.ID); err != nil {
		t.Fatal(err)
	}
	_, agent = open(t, c, "box")
	intact(agent, "after a restore")
	if !all {
		return
	}

	awaitTier(t, p, "box", "disk")
	pack(t, c)
	unpack(t, c)
	_, agent = open(t, c, "box")
	intact(agent, "after an archive")

	for body, field := range map[string]string{
		`{"metadata":{"name":"small"},"spec":{"runtime":{"storage":1}}}`:    "spec.runtime.storage",
		`{"metadata":{"name":"large"},"spec":{"runtime":{"storage":-100}}}`: "spec.runtime.storage",
	} {
		if a := (call{method: "POST", url: p.Address + "/v0/sandboxes", body: body}).want(t, p, http.StatusBadRequest); !strings.Contains(a.body, field) {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	if a := (call{method: "PUT", url: p.Address + "/v0/sandboxes/box", body: `{"spec":{"runtime":{"storage":900}}}`}).want(t, p, http.StatusBadRequest); !strings.Contains(a.body, "cannot be changed") {
		t.Error(a.body)
	}
}
