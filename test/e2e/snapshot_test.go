package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// forkNames are sandboxes that are made of one snapshot at once.
var forkNames = []string{"one", "two", "three", "four", "five"}

func into(name string) doze.ForkRequest {
	return doze.ForkRequest{TargetName: name, TargetType: doze.KindSandbox, Envs: []doze.Env{{Name: "WHO", Value: new(name)}}}
}

// open returns a sandbox and a handle to what is inside.
func open(t *testing.T, c *client.Client, name string) (doze.Sandbox, *client.Agent) {
	t.Helper()
	sb, err := c.Sandbox(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := c.Agent(sb)
	if err != nil {
		t.Fatal(err)
	}
	return sb, agent
}

// snap takes a snapshot of the sandbox src.
func snap(t *testing.T, c *client.Client, name string) doze.Snapshot {
	t.Helper()
	n, err := c.CreateSnapshot(t.Context(), "src", name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// asks returns how often a holder was asked for its count, this time included.
func asks(t *testing.T, p *testkit.Platform, url string) int {
	t.Helper()
	status, body := get(t, p, url+"/count")
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", url, status, body)
	}
	return int(number(t, body))
}

// TestForks takes a snapshot of a sandbox that runs, deletes the sandbox, and
// makes five of the snapshot, which go on by themselves.
func TestForks(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	want := named("src", 512)
	want.Spec.Runtime.Envs = []doze.Env{{Name: "PLAIN", Value: new("plain")}, {Name: "WHO", Value: new("src")}, {Name: "HIDDEN", Value: new("hunter2"), Secret: true}}
	src, agent := create(t, c, want)
	url := hold(t, p, src, agent, 16, 3600)
	put(t, agent, "/root/state", "before")
	if got := sh(t, agent, "echo $HIDDEN"); got != "hunter2" {
		t.Fatalf("the source has %q", got)
	}
	memory, pid := sum(t, p, url+"/bytes"), sh(t, agent, "cat /proc/$(pgrep -f holder.py | head -1)/status | grep ^Pid:")
	asked := asks(t, p, url)
	n := snap(t, c, "n")
	if n.Status != doze.SnapshotReady || n.Bytes < 16<<20 {
		t.Errorf("the snapshot is %+v", n)
	}
	if now := asks(t, p, url); now != asked+1 {
		t.Errorf("the source goes on at %d, not %d", now, asked+1)
	}
	put(t, agent, "/root/state", "after")
	if _, err := c.Delete(t.Context(), "src"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Snapshot(t.Context(), n.ID); err != nil || !n.Source.Deleted {
		t.Errorf("after the end of its source it is %+v, %v", n, err)
	}

	var all sync.WaitGroup
	for _, name := range forkNames {
		all.Go(func() {
			if _, err := c.ForkSnapshot(t.Context(), n.ID, into(name)); err != nil {
				t.Errorf("fork %s: %v", name, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	addresses, random := map[string]bool{}, map[string]bool{}
	for _, name := range forkNames {
		sb, agent := open(t, c, name)
		url := sb.Metadata.URL + "/port/9000"
		if got := asks(t, p, url); got != asked+1 {
			t.Errorf("%s goes on at %d, not %d", name, got, asked+1)
		}
		if got := sum(t, p, url+"/bytes"); got != memory {
			t.Errorf("%s has other memory: %s, %s", name, got, memory)
		}
		if got := sh(t, agent, "cat /proc/$(pgrep -f holder.py | head -1)/status | grep ^Pid:"); got != pid {
			t.Errorf("%s has the process %s, not %s", name, got, pid)
		}
		_, drawn := get(t, p, url+"/random")
		random[drawn] = true
		for command, answer := range map[string]string{
			"hostname": name, "echo $WHO": name, "echo $BL_NAME": name, "echo $PLAIN": "plain", "cat /root/state": "before",
			"env | grep -c hunter2 || true": "0", "getent hosts " + name + " | wc -l": "1",
		} {
			if got := sh(t, agent, command); got != answer {
				t.Errorf("%s: %s is %q, not %q", name, command, got, answer)
			}
		}
		addresses[sh(t, agent, "ip -4 -o addr show scope global | awk '{print $4}'")] = true
		put(t, agent, "/root/state", name)
	}
	if len(addresses) != len(forkNames) || len(random) != len(forkNames) {
		t.Errorf("they share addresses or random bytes: %v, %v", addresses, random)
	}
	for _, name := range forkNames {
		if _, agent := open(t, c, name); sh(t, agent, "cat /root/state") != name {
			t.Errorf("%s has the file of another", name)
		}
	}
	if err := c.DeleteSnapshot(t.Context(), n.ID); err != nil {
		t.Fatal(err)
	}
	// Without the snapshot they live on, through all tiers and a restart.
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	sb, _ := open(t, c, "one")
	if got := asks(t, p, sb.Metadata.URL+"/port/9000"); got != asked+4 { // it also gave its bytes and a random number
		t.Errorf("after a restart it goes on at %d, not %d", got, asked+4)
	}
}

// TestSnapshotsOfSleepers: no snapshot wakes a sandbox, and each is as good.
func TestSnapshotsOfSleepers(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "24h", "--disk-after", "48h")
	sleeper(t, p, c, "paused")
	p2, c2 := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "200ms")
	sleeper(t, p2, c2, "disk")
}

func sleeper(t *testing.T, p *testkit.Platform, c *client.Client, tier string) {
	t.Helper()
	src, agent := create(t, c, named("src", 512))
	asked := asks(t, p, hold(t, p, src, agent, 8, 3600))
	awaitTier(t, p, "src", tier)
	sleeps(t, c, "src")
	snap(t, c, "n")
	stays(t, p, "src", tier, 500*time.Millisecond)
	if _, err := c.Fork(t.Context(), "src", doze.ForkRequest{TargetName: "fork", TargetType: doze.KindSandbox, SnapshotID: "n"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fork", "src"} {
		sb, _ := open(t, c, name)
		if got := asks(t, p, sb.Metadata.URL+"/port/9000"); got != asked+1 {
			t.Errorf("%s of one that was %s goes on at %d, not %d", name, tier, got, asked+1)
		}
	}
	awaitTier(t, p, "fork", tier)
	sb, _ := open(t, c, "fork")
	if got := asks(t, p, sb.Metadata.URL+"/port/9000"); got != asked+2 {
		t.Errorf("a fork that slept goes on at %d, not %d", got, asked+2)
	}
}

// TestRestore puts a sandbox back, with its memory, its files and its address.
func TestRestore(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	src, agent := create(t, c, named("src", 512))
	url := hold(t, p, src, agent, 8, 3600)
	put(t, agent, "/root/state", "before")
	asked := asks(t, p, url)
	snap(t, c, "n")
	for range 3 {
		asks(t, p, url)
	}
	put(t, agent, "/root/state", "after")
	sh(t, agent, "rm -rf /etc/apt")
	if _, err := c.Restore(t.Context(), "src", "n"); err != nil {
		t.Fatal(err)
	}
	if got := asks(t, p, url); got != asked+1 {
		t.Errorf("it goes on at %d, not %d", got, asked+1)
	}
	if got := sh(t, agent, "cat /root/state; echo; ls -d /etc/apt; hostname"); got != "before\n/etc/apt\nsrc" {
		t.Errorf("it has %q", got)
	}

	// A snapshot that cannot be used changes nothing.
	n := snap(t, c, "damaged")
	damage(t, p, n)
	if _, err := c.Restore(t.Context(), "src", "damaged"); kind(err) != doze.Conflict {
		t.Errorf("a damaged snapshot: %v", err)
	}
	if got := asks(t, p, url); got != asked+2 {
		t.Errorf("then it goes on at %d, not %d", got, asked+2)
	}
	if sb, err := c.Sandbox(t.Context(), "src"); err != nil || sb.Status != "DEPLOYED" {
		t.Errorf("it is %s, %v", sb.Status, err)
	}
}

// TestForkCut kills dozed in the middle of a fork. The snapshot that the fork
// took for itself goes with it; one that somebody asked for stays.
func TestForkCut(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	_, agent := create(t, c, named("src", 1024))
	random(t, agent, "32")
	snapshot := snap(t, c, "kept")
	const said = "removing the snapshot of a fork that was cut short"
	all := func() []doze.Snapshot {
		list, err := c.SnapshotsOf(t.Context(), "src")
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	for try := range 10 {
		before := len(all())
		ended := make(chan error, 1)
		go func() {
			_, err := c.Fork(t.Context(), "src", into(fmt.Sprint("fork-", try)))
			ended <- err
		}()
		until(t, "the fork takes a snapshot", func() bool { return len(all()) > before })
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		answered := <-ended == nil
		revive(t, p)
		if answered {
			continue // dozed was faster, and the snapshot stays
		}
		if list := all(); len(list) != before || list[len(list)-1].ID != snapshot.ID {
			t.Errorf("there are %+v, and were %d", list, before)
		}
		if !strings.Contains(p.Printed(), said) {
			t.Errorf("nobody says %q: %s", said, p.Tail())
		}
		return
	}
	t.Error("every fork was faster than the kill")
}

// damage changes a byte in each large file of a snapshot.
func damage(t *testing.T, p *testkit.Platform, n doze.Snapshot) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.Data, "snapshots", n.ID, "copy", "*.img"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the files of a snapshot are %q, %v", files, err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) == 0 {
			continue
		}
		raw[len(raw)/2] ^= 1
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDaemonDiesOverSnapshots ends dozed at moments of which nothing may be
// left.
func TestDaemonDiesOverSnapshots(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	src, agent := create(t, c, named("src", 512))
	url := hold(t, p, src, agent, 64, 3600)
	asked := asks(t, p, url)
	n := snap(t, c, "n")
	for what, do := range map[string]func(context.Context) error{
		"a snapshot": func(ctx context.Context) error { _, err := c.CreateSnapshot(ctx, "src", "late"); return err },
		"a fork":     func(ctx context.Context) error { _, err := c.ForkSnapshot(ctx, n.ID, into("fork")); return err },
		"a restore":  func(ctx context.Context) error { _, err := c.Restore(ctx, "src", "n"); return err },
	} {
		for _, wait := range []time.Duration{20 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond} {
			t.Run(fmt.Sprintf("kill %v into %s", wait, what), func(t *testing.T) {
				ended := make(chan error, 1)
				go func() { ended <- do(context.WithoutCancel(t.Context())) }() // ends with dozed
				time.Sleep(wait)
				if err := p.Kill(); err != nil {
					t.Fatal(err)
				}
				t.Logf("the caller was told: %v", <-ended)
				revive(t, p)
				whole(t, p, c, url, asked)
			})
		}
	}
}

// whole fails unless the sandbox src runs, and every snapshot and fork that
// there is can be used.
func whole(t *testing.T, p *testkit.Platform, c *client.Client, url string, asked int) {
	t.Helper()
	if got := asks(t, p, url); got <= asked {
		t.Errorf("src is at %d, and was at %d before its snapshot", got, asked)
	}
	for n, err := range c.Snapshots(t.Context()) {
		switch {
		case err != nil:
			t.Fatal(err)
		case n.Status == doze.SnapshotPending:
			t.Errorf("nobody finishes %+v", n)
		case n.Status == doze.SnapshotReady:
			if _, err := c.ForkSnapshot(t.Context(), n.ID, into("probe")); err != nil {
				t.Errorf("%s cannot be used: %v", n.Name, err)
			}
			sb, _ := open(t, c, "probe")
			asks(t, p, sb.Metadata.URL+"/port/9000")
			if _, err := c.Delete(t.Context(), "probe"); err != nil {
				t.Error(err)
			}
		}
		if n.Name != "n" {
			if err := c.DeleteSnapshot(t.Context(), n.ID); err != nil {
				t.Error(err)
			}
		}
	}
	if sb, err := c.Sandbox(t.Context(), "fork"); err == nil && sb.Status == "DEPLOYED" {
		asks(t, p, sb.Metadata.URL+"/port/9000")
		if _, err := c.Delete(t.Context(), "fork"); err != nil {
			t.Error(err)
		}
	}
	until(t, "there is one sandbox and one snapshot", func() bool {
		leaks := slices.DeleteFunc(p.Leaks(), func(leak string) bool { return !strings.HasPrefix(leak, "file s") })
		return len(leaks) == 2
	})
}
