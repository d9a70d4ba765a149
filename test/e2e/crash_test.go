package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// counting starts a process that counts into a file, with one write for each number. Each
// pause is a process, so that they are no shorter than the tests need.
func counting(t *testing.T, agent *client.Agent, keepAlive bool) {
	t.Helper()
	forever := 0
	spawn(t, agent, client.Command{Name: "counter", Command: "i=0; while :; do i=$((i+1)); printf %08d $i 1<>/tmp/count; sleep 0.05; done", KeepAlive: keepAlive, Timeout: &forever})
	until(t, "it counts", func() bool { return sh(t, agent, "test -s /tmp/count && echo yes || true") == "yes" })
}

func count(t *testing.T, agent *client.Agent) float64 {
	t.Helper()
	return number(t, sh(t, agent, "cat /tmp/count"))
}

// revive starts dozed again after it ended.
func revive(t *testing.T, p *testkit.Platform) {
	t.Helper()
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestDaemonDies ends dozed at bad moments. Sandboxes do not notice.
func TestDaemonDies(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	for how, end := range map[string]func() error{"kill": p.Kill, "stop": p.Stop} {
		t.Run(how+" while it runs", func(t *testing.T) {
			sb, agent := create(t, c, named("runs-"+how, 2048))
			counting(t, agent, false)
			before := count(t, agent)
			if err := end(); err != nil {
				t.Fatal(err)
			}
			stays(t, p, sb.Metadata.Name, "running", 500*time.Millisecond)
			revive(t, p)
			if after := count(t, agent); after < before+5 {
				t.Errorf("it counted from %v to %v meanwhile", before, after)
			}
			if proc, err := agent.Process(t.Context(), "counter"); err != nil || proc.Status != "running" {
				t.Errorf("the process is %s, %v", proc.Status, err)
			}
			if sb, err := c.Sandbox(t.Context(), sb.Metadata.Name); err != nil || sb.Status != "DEPLOYED" || sb.State != "RUNNING" {
				t.Errorf("it is %s, %s, %v", sb.Status, sb.State, err)
			}
		})
	}
	for _, wait := range []time.Duration{0, 30 * time.Millisecond, 80 * time.Millisecond} {
		t.Run("kill while it creates after "+wait.String(), func(t *testing.T) {
			answered := make(chan error, 1)
			go func() { // ends with dozed
				_, err := c.Create(context.WithoutCancel(t.Context()), named("half", 2048), false)
				answered <- err
			}()
			until(t, "the node has begun", func() bool { _, err := p.UID("half"); return err == nil })
			time.Sleep(wait)
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			t.Logf("the caller was told: %v", <-answered)
			revive(t, p)
			sb, err := c.Create(t.Context(), named("half", 2048), true)
			if err != nil || sb.Status != "DEPLOYED" {
				t.Fatalf("it is %s, %v", sb.Status, err)
			}
			agent, err := c.Agent(sb)
			if err != nil {
				t.Fatal(err)
			}
			if out := sh(t, agent, "hostname"); out != "half" {
				t.Errorf("inside it is %q", out)
			}
			if _, err := c.Delete(t.Context(), "half"); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("kill while it redeploys", func(t *testing.T) {
		sb, agent := create(t, c, named("fresh", 1024))
		old, err := p.UID("fresh")
		if err != nil {
			t.Fatal(err)
		}
		sh(t, agent, "touch /tmp/before")
		answered := make(chan error, 1)
		go func() { // ends with dozed
			_, err := call{method: "PUT", url: p.Address + "/v0/sandboxes/fresh", body: `{"spec":{"runtime":{"memory":2048}}}`}.open(context.WithoutCancel(t.Context()), p)
			answered <- err
		}()
		until(t, "the machine before is being ended", func() bool { now, err := p.UID("fresh"); return err != nil || now != old })
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		t.Logf("the caller was told: %v", <-answered)
		revive(t, p)
		until(t, "it is there again", func() bool {
			sb, err = c.Sandbox(t.Context(), "fresh")
			return err == nil && sb.Status != "DEPLOYING"
		})
		if sb.Status != "DEPLOYED" || sb.Spec.Runtime.Memory != 2048 {
			t.Fatalf("it is %s with %d: %+v", sb.Status, sb.Spec.Runtime.Memory, sb.Events)
		}
		if out := sh(t, agent, "ls /tmp/before 2>/dev/null || hostname"); out != "fresh" {
			t.Errorf("its machine is that of before: %s", out)
		}
		if _, err := c.Delete(t.Context(), "fresh"); err != nil {
			t.Error(err)
		}
	})
	t.Run("kill while it deletes", func(t *testing.T) {
		create(t, c, named("gone", 2048))
		uid, err := p.UID("gone")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Delete(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		revive(t, p)
		until(t, "the delete was finished", func() bool {
			sb, err := c.Sandbox(t.Context(), "gone")
			return err == nil && sb.Status == "TERMINATED" && !strings.Contains(strings.Join(p.Leaks(), "\n"), uid)
		})
	})
	t.Run("many restarts", func(t *testing.T) {
		_, agent := create(t, c, named("many", 2048))
		counting(t, agent, false)
		last := count(t, agent)
		for range 3 {
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			revive(t, p)
		}
		if now := count(t, agent); now <= last {
			t.Errorf("it counted from %v to %v", last, now)
		}
	})
}

// TestLauncherDies kills the launcher. Sandboxes run on, and the next call of
// any kind works.
func TestLauncherDies(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "1h")
	_, awake := create(t, c, named("awake", 2048))
	counting(t, awake, true)
	_, asleep := create(t, c, named("asleep", 2048))
	counting(t, asleep, false)
	awaitTier(t, p, "asleep", "paused")
	before := count(t, awake)
	pid, err := p.Launcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Shoot(t.Context(), pid); err != nil {
		t.Fatal(err)
	}
	if after := count(t, awake); after < before {
		t.Errorf("the one that is awake counted from %v to %v", before, after)
	}
	one := count(t, asleep) // wakes it
	until(t, "the one that slept goes on", func() bool { return count(t, asleep) > one })
	awaitTier(t, p, "asleep", "paused")
	_, fresh := create(t, c, named("fresh", 2048))
	if out := sh(t, fresh, "hostname"); out != "fresh" {
		t.Errorf("a new one is %q", out)
	}
	for _, name := range []string{"awake", "asleep", "fresh"} {
		if sb, err := c.Sandbox(t.Context(), name); err != nil || sb.Status != "DEPLOYED" {
			t.Errorf("%s is %s, %v", name, sb.Status, err)
		}
	}
}

// TestEngineDies kills the processes of sandboxes.
func TestEngineDies(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "1h")
	kill := func(t *testing.T, name string) {
		t.Helper()
		pid, err := p.Engine(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := testkit.Shoot(t.Context(), pid); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("awake", func(t *testing.T) {
		t.Parallel()
		sb, agent := create(t, c, named("lost", 2048))
		counting(t, agent, true)
		kill(t, "lost")
		until(t, "it is failed", func() bool {
			got, err := c.Sandbox(t.Context(), "lost")
			if err != nil {
				t.Fatal(err)
			}
			sb = got
			return sb.Status == "FAILED"
		})
		if last := sb.Events[len(sb.Events)-1]; last.Message == "" || last.Status != "FAILED" {
			t.Errorf("the last event is %+v", last)
		}
		var said refusal
		a := call{url: sb.Metadata.URL + "/health"}.want(t, p, 409)
		if a.into(t, &said); said.Error.Code != "WORKLOAD_FAILED" || said.Error.Retryable {
			t.Error(a.body)
		}
		call{method: "POST", url: p.Address + "/v0/sandboxes", body: `{"metadata":{"name":"lost"}}`}.want(t, p, 409)
		if sb, err := c.Create(t.Context(), named("lost", 2048), true); err != nil || sb.Status != "DEPLOYED" {
			t.Errorf("made again, it is %s, %v", sb.Status, err)
		}
		if out := sh(t, agent, "echo fresh"); out != "fresh" {
			t.Errorf("made again, it says %q", out)
		}
	})
	t.Run("asleep", func(t *testing.T) {
		t.Parallel()
		_, agent := create(t, c, named("kept", 2048))
		counting(t, agent, false)
		awaitTier(t, p, "kept", "paused")
		checkpoint, err := p.Checkpoint("kept")
		if err != nil {
			t.Fatal(err)
		}
		until(t, "it has a checkpoint", func() bool { _, err := os.Stat(filepath.Join(checkpoint, manifestFile)); return err == nil })
		kill(t, "kept")
		awaitTier(t, p, "kept", "disk")
		sleeps(t, c, "kept")
		one := count(t, agent)
		until(t, "it goes on from its checkpoint", func() bool { return count(t, agent) > one })
	})
	t.Run("awake, with an earlier checkpoint", func(t *testing.T) {
		t.Parallel()
		sb, agent := create(t, c, named("back", 1024))
		sh(t, agent, "echo kept >/tmp/state")
		awaitTier(t, p, "back", "paused")
		checkpoint, err := p.Checkpoint("back")
		if err != nil {
			t.Fatal(err)
		}
		until(t, "it has a checkpoint", func() bool { _, err := os.Stat(filepath.Join(checkpoint, manifestFile)); return err == nil })
		counting(t, agent, true)
		sh(t, agent, "echo lost >/tmp/state")
		kill(t, "back")
		sleeps(t, c, "back")
		for i := range 2 { // only the first answer says so; the record goes on saying it
			a := call{url: sb.Metadata.URL + "/filesystem/tmp/state"}.want(t, p, 200)
			age, says := a.header.Get("X-Doze-State-Age"), i == 0
			if n, err := strconv.Atoi(age); says && (err != nil || n < 1 || n > 60) || !says && age != "" {
				t.Errorf("answer %d says that the state is %q seconds old", i, age)
			}
			if !strings.Contains(a.body, "kept") {
				t.Errorf("the file has %s", a.body)
			}
		}
		if got, err := c.Sandbox(t.Context(), "back"); err != nil || got.Recovery == nil || !got.Recovery.At.After(got.Recovery.CheckpointAt.Time) {
			t.Errorf("it went back to %+v, %v", got.Recovery, err)
		}
	})
	t.Run("just before a request", func(t *testing.T) {
		t.Parallel()
		_, agent := create(t, c, named("caught", 1024))
		digest := random(t, agent, "4")
		checkpoint, err := p.Checkpoint("caught")
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			awaitTier(t, p, "caught", "paused")
			until(t, "it has a checkpoint", func() bool { _, err := os.Stat(filepath.Join(checkpoint, manifestFile)); return err == nil })
			pid, err := p.Engine("caught")
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // and nobody has seen it yet
				t.Fatal(err)
			}
			if got := sh(t, agent, "sha256sum </dev/shm/random"); got != digest {
				t.Errorf("its memory is %s and was %s", got, digest)
			}
		}
	})
}

const (
	manifestFile = "manifest.json"
	pagesFile    = "pages.img"
)

// random fills a file in memory of a sandbox and returns its digest.
func random(t *testing.T, agent *client.Agent, mb string) string {
	t.Helper()
	return sh(t, agent, "head -c "+mb+"M /dev/urandom >/dev/shm/random; sha256sum </dev/shm/random")
}

// TestDiskFull has a data directory that is too small for a checkpoint.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	// The engine takes 84 MB of it.
	small := func(dir string) error { return syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=136m") }
	p, c := startIn(t, small, "--pause-after", "200ms", "--save-after", "100ms", "--disk-after", "300ms", "--disk-reserve-mb", "0")
	dir := filepath.Dir(p.Data)
	_, agent := create(t, c, named("big", 2048))
	counting(t, agent, false)
	digest := random(t, agent, "64")
	until(t, "the checkpoint did not fit", func() bool {
		sb, err := c.Sandbox(t.Context(), "big")
		return err == nil && strings.Contains(encode(t, sb.Events), "could not be moved to disk and stays in memory: the disk of th")
	})
	awaitTier(t, p, "big", "paused")
	one := count(t, agent)
	if got := sh(t, agent, "sha256sum </dev/shm/random"); got != digest {
		t.Errorf("its memory is %s and was %s", got, digest)
	}
	until(t, "it goes on", func() bool { return count(t, agent) > one })
	// What was half written is gone, so that others have the room.
	_, other := create(t, c, named("small", 2048))
	if out := sh(t, other, "hostname"); out != "small" {
		t.Errorf("another one is %q", out)
	}
	// With room, it goes down to disk.
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=512m"); err != nil {
		t.Fatal(err)
	}
	one = count(t, agent)
	call{method: "PUT", url: p.Address + "/v0/sandboxes/big", body: `{"spec":{"enabled":false}}`}.want(t, p, 200)
	awaitTier(t, p, "big", "disk")
	call{method: "PUT", url: p.Address + "/v0/sandboxes/big", body: `{"spec":{"enabled":true}}`}.want(t, p, 200)
	if got := sh(t, agent, "sha256sum </dev/shm/random"); got != digest {
		t.Errorf("from disk, its memory is %s and was %s", got, digest)
	}
	until(t, "it goes on from disk", func() bool { return count(t, agent) > one })
}

// TestDamagedCheckpoint alters what is on disk. The sandbox is not run from
// it, and it is not lost either.
func TestDamagedCheckpoint(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "200ms", "--save-after", "100ms", "--disk-after", "300ms")
	sb, agent := create(t, c, named("hurt", 2048))
	counting(t, agent, false)
	digest := random(t, agent, "16")
	awaitTier(t, p, "hurt", "disk")
	checkpoint, err := p.Checkpoint("hurt")
	if err != nil {
		t.Fatal(err)
	}
	corrupt := func(name string) func() error {
		return func() error {
			f, err := os.OpenFile(filepath.Join(checkpoint, name), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				return err
			}
			at, err := f.Seek(info.Size()/2, unix.SEEK_DATA) // nobody reads the holes
			if err != nil {
				return err
			}
			b := []byte{0}
			if _, err := f.ReadAt(b, at); err != nil {
				return err
			}
			b[0] ^= 1
			_, err = f.WriteAt(b, at)
			return err
		}
	}
	move := func(from, to string) func() error {
		return func() error { return os.Rename(filepath.Join(checkpoint, from), filepath.Join(checkpoint, to)) }
	}
	for _, row := range []struct {
		what         string
		hurt, repair func() error
	}{
		{"a bit of the memory", corrupt(pagesFile), corrupt(pagesFile)},
		{"a bit of the manifest", corrupt(manifestFile), corrupt(manifestFile)},
		{"no manifest", move(manifestFile, "away"), move("away", manifestFile)},
		{"no memory", move(pagesFile, "away"), move("away", pagesFile)},
	} {
		if err := row.hurt(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it stays so
			a := call{url: sb.Metadata.URL + "/health"}.want(t, p, 409)
			var said refusal
			a.into(t, &said)
			if m := said.Error.Message; said.Error.Retryable || !strings.Contains(m, "checkpoint") || !strings.Contains(m, "delete it") || strings.Contains(m, p.Data) {
				t.Errorf("%s: %s", row.what, a.body)
			}
		}
		awaitTier(t, p, "hurt", "disk")
		sleeps(t, c, "hurt")
		if err := row.repair(); err != nil {
			t.Fatal(err)
		}
	}
	if got := sh(t, agent, "sha256sum </dev/shm/random"); got != digest {
		t.Errorf("repaired, its memory is %s and was %s", got, digest)
	}
	one := count(t, agent)
	until(t, "it goes on", func() bool { return count(t, agent) > one })
	if sb, err = c.Sandbox(t.Context(), "hurt"); err != nil || !strings.Contains(encode(t, sb.Events), "a wake did not work") {
		t.Errorf("no event tells of it: %+v, %v", sb.Events, err)
	}
	// A damaged one can be deleted.
	awaitTier(t, p, "hurt", "disk")
	if err := corrupt(pagesFile)(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), "hurt"); err != nil {
		t.Error(err)
	}
}

// TestReboot loses all processes and the run state, with sandboxes in every
// tier. What was on disk wakes; what was in memory only has failed, and says
// so.
func TestReboot(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "1h", "--disk-after", "2h")
	agents, digests := map[string]*client.Agent{}, map[string]string{}
	for _, name := range []string{"running", "paused", "saved", "disk", "failed"} {
		_, agent := create(t, c, named(name, 2048))
		agents[name], digests[name] = agent, random(t, agent, "8")
		counting(t, agent, name == "running" || name == "failed")
	}
	pid, err := p.Engine("failed")
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Shoot(t.Context(), pid); err != nil {
		t.Fatal(err)
	}
	call{method: "PUT", url: p.Address + "/v0/sandboxes/disk", body: `{"spec":{"enabled":false}}`}.want(t, p, 200)
	awaitTier(t, p, "disk", "disk")
	for _, name := range []string{"paused", "saved"} {
		awaitTier(t, p, name, "paused")
	}
	// Another configuration writes the checkpoint of the one that is woken.
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	p.Arguments("--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "2h")
	hold, release := context.WithCancel(t.Context())
	defer release()
	revive(t, p)
	// A stream keeps these two as they are: the one awake, the other in memory.
	for _, name := range []string{"paused"} {
		resp, err := call{url: p.Address + "/run/main/sandboxes/" + name + "/process/counter/logs/stream"}.open(hold, p)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	checkpoint, err := p.Checkpoint("saved")
	if err != nil {
		t.Fatal(err)
	}
	until(t, "it has a checkpoint", func() bool { _, err := os.Stat(filepath.Join(checkpoint, manifestFile)); return err == nil })
	if err := p.Reboot(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)

	for name, want := range map[string]struct{ status, state, says string }{
		"running": {"FAILED", "", "restarted"},
		"paused":  {"FAILED", "", "restarted"},
		"saved":   {"DEPLOYED", "STANDBY", ""},
		"disk":    {"DEACTIVATED", "STANDBY", ""},
		"failed":  {"FAILED", "", ""},
	} {
		var sb doze.Sandbox
		until(t, name+" is "+want.status, func() bool {
			got, err := c.Sandbox(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			sb = got
			return sb.Status == want.status
		})
		if sb.State != want.state || !strings.Contains(encode(t, sb.Events), want.says) {
			t.Errorf("%s is %s, %s, %+v", name, sb.Status, sb.State, sb.Events)
		}
	}
	call{method: "PUT", url: p.Address + "/v0/sandboxes/disk", body: `{"spec":{"enabled":true}}`}.want(t, p, 200)
	for _, name := range []string{"saved", "disk"} {
		if got := sh(t, agents[name], "sha256sum </dev/shm/random"); got != digests[name] {
			t.Errorf("%s: its memory is %s and was %s", name, got, digests[name])
		}
		one := count(t, agents[name])
		until(t, name+" goes on", func() bool { return count(t, agents[name]) > one })
	}
}

// TestCheckpointEvery uses a sandbox that would not fall asleep by itself, and ends
// its processes: what it did before its last checkpoint is there.
func TestCheckpointEvery(t *testing.T) {
	t.Parallel()
	const every, gap = 5 * time.Second, 1500 * time.Millisecond
	// How long it stands still is a matter of the machine, and of benchmarks.
	p, c := start(t, "--checkpoint-every", every.String(), "--checkpoint-pause", "5s", "--pause-after", "1h")
	sb, agent := create(t, c, named("used", 1024))
	// 24 seconds, in which an old checkpoint is overdue. A busy machine gets more:
	// each request ends the checkpoint that it meets.
	var slowest time.Duration
	renewed := false
	for i := 0; i < 16 || !renewed && i < 80; i++ {
		began := time.Now()
		sh(t, agent, fmt.Sprintf("echo %d >/tmp/used", i))
		slowest = max(slowest, time.Since(began))
		time.Sleep(gap)
		_, metrics := get(t, p, p.Address+"/metrics")
		renewed = strings.Contains(metrics, "\ndoze_checkpoints_overdue 0\n")
	}
	t.Logf("the slowest of its requests took %v", slowest)
	if !renewed {
		t.Error("its checkpoint was not renewed")
	}
	sh(t, agent, "true") // it is awake
	pid, err := p.Engine("used")
	if err != nil {
		t.Fatal(err)
	}
	if err := testkit.Shoot(t.Context(), pid); err != nil {
		t.Fatal(err)
	}
	sleeps(t, c, "used")
	a := call{url: sb.Metadata.URL + "/filesystem/tmp/used"}.want(t, p, 200)
	if age, err := strconv.Atoi(a.header.Get("X-Doze-State-Age")); err != nil || time.Duration(age)*time.Second > 4*every {
		t.Errorf("its state is %q seconds old", a.header.Get("X-Doze-State-Age"))
	}
	if got, err := c.Sandbox(t.Context(), "used"); err != nil || got.Recovery == nil || got.Recovery.At.Sub(got.Recovery.CheckpointAt.Time) > 2*every+5*time.Second {
		t.Errorf("it went back to %+v, %v", got.Recovery, err)
	}
}
