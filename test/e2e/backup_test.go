package e2e_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

// light is a sandbox of the smallest image of the platform: a backup has the images of its
// sandboxes, and saves and restores all of their bytes.
func light(sb doze.Sandbox) doze.Sandbox {
	sb.Spec.Runtime.Image = "blaxel/slim:latest"
	return sb
}

// inhabitants are sandboxes in every state that a backup can meet, and what they had when
// it began.
type inhabitants struct {
	agents map[string]*client.Agent
	counts map[string]float64
}

// populate makes them. Each has a process that counts in its memory.
func populate(t *testing.T, p *testkit.Platform, c *client.Client) inhabitants {
	t.Helper()
	all := inhabitants{agents: map[string]*client.Agent{}, counts: map[string]float64{}}
	volume(t, c, "data", "")
	volume(t, c, "loose", "")
	for name, sb := range map[string]doze.Sandbox{
		"awake": named("awake", 512), "asleep": named("asleep", 512), "paused": named("paused", 512),
		"writing": having("writing", doze.VolumeAttachment{Name: "data", MountPath: "/data"}),
	} {
		_, agent := create(t, c, light(sb))
		counting(t, agent, false)
		all.agents[name] = agent
	}
	forever := 0
	spawn(t, all.agents["writing"], client.Command{Name: "writer", Command: "exec 3>>/data/log; i=0; while :; do i=$((i+1)); echo $i >&3; sleep 0.05; done", Timeout: &forever})
	_, agent := create(t, c, light(named("packed", 512)))
	sh(t, agent, "echo kept >/root/note")
	if _, err := c.CreateSnapshot(t.Context(), "asleep", "before"); err != nil {
		t.Fatal(err)
	}
	until(t, "the snapshot is ready", func() bool {
		all, err := c.SnapshotsOf(t.Context(), "asleep")
		return err == nil && len(all) == 1 && all[0].Status == doze.SnapshotReady
	})
	if _, err := c.Archive(t.Context(), "packed"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is archived", func() bool {
		sb, err := c.Sandbox(t.Context(), "packed")
		return err == nil && sb.Status == "ARCHIVED"
	})
	all.agents["packed"] = agent
	for name, deep := range map[string]bool{"asleep": true, "paused": false} {
		all.counts[name] = count(t, all.agents[name])
		if _, err := c.Sleep(t.Context(), name, deep); err != nil {
			t.Fatal(err)
		}
	}
	awaitTier(t, p, "asleep", "disk")
	for _, name := range []string{"awake", "writing"} {
		all.counts[name] = count(t, all.agents[name])
	}
	return all
}

// goOn proves that all of them go on where the backup found them.
func (all inhabitants) goOn(t *testing.T, c *client.Client) {
	t.Helper()
	for name, before := range all.counts {
		sb, err := c.Sandbox(t.Context(), name)
		if err != nil || sb.Status != "DEPLOYED" {
			t.Errorf("%s is %s, %v", name, sb.Status, err)
			continue
		}
		now := count(t, all.agents[name])
		if now < before {
			t.Errorf("%s counted to %v, and had %v", name, now, before)
		}
		until(t, name+" counts", func() bool { return count(t, all.agents[name]) > now })
	}
	// What the writer has in memory and what is in the volume are of one moment.
	lines := sh(t, all.agents["writing"], `n=$(wc -l </data/log); seq 1 $n | head -n $((n-1)) >/tmp/want; head -n $((n-1)) /data/log | cmp - /tmp/want && echo $n`)
	if number(t, lines) < 10 {
		t.Errorf("the volume has %s lines", lines)
	}
	if _, err := c.Unarchive(t.Context(), "packed"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is back from its archive", func() bool {
		sb, err := c.Sandbox(t.Context(), "packed")
		return err == nil && sb.Status == "DEPLOYED"
	})
	if note := sh(t, all.agents["packed"], "cat /root/note"); note != "kept" {
		t.Errorf("the archive has %q", note)
	}
	snapshots, err := c.SnapshotsOf(t.Context(), "asleep")
	if err != nil || len(snapshots) != 1 {
		t.Fatalf("snapshots %v, %v", snapshots, err)
	}
	if _, err := c.ForkSnapshot(t.Context(), snapshots[0].ID, doze.ForkRequest{TargetName: "forked", TargetType: doze.KindSandbox}); err != nil {
		t.Errorf("a fork of the snapshot: %v", err)
	}
	if _, err := c.Volume(t.Context(), "loose"); err != nil {
		t.Errorf("the volume of nobody: %v", err)
	}
	part(t, c, "writing")
	_, again := create(t, c, light(having("again", doze.VolumeAttachment{Name: "loose", MountPath: "/loose"})))
	sh(t, again, "echo x >/loose/x")
}

// busy asks a sandbox all the time, and says at the end how long an answer took at most.
func busy(t *testing.T, agent *client.Agent) (end func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var worst time.Duration
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil {
			start := time.Now()
			_, err := agent.Start(ctx, client.Command{Command: "true", Wait: true})
			if err != nil && ctx.Err() == nil {
				t.Errorf("during the backup: %v", err)
				return
			}
			if ctx.Err() == nil {
				worst = max(worst, time.Since(start))
			}
		}
	})
	return func() time.Duration { cancel(); asking.Wait(); return worst }
}

// alone skips a test where roles are processes of their own, which have no backup.
func alone(t *testing.T) {
	t.Helper()
	if os.Getenv(testkit.RolesEnv) != "" { //nolint:forbidigo // the environment of the tests says how
		t.Skip("SKIPPED: only dozed all has backups")
	}
}

// TestBackup saves a platform that is in use, destroys it, and restores it elsewhere: into
// another directory, with other images, and with the records in either database.
func TestBackup(t *testing.T) {
	t.Parallel()
	alone(t)
	for name, test := range map[string]struct{ from, to, secret bool }{
		"from a file to a server": {to: true, secret: true},
		"from a server to a file": {from: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			saves(t, test.from, test.to, test.secret)
		})
	}
}

func saves(t *testing.T, from, to, secret bool) {
	t.Helper()
	where := func(server bool) []string {
		if !server {
			return nil
		}
		return []string{"--database", postgres.Database(t)}
	}
	source, target := where(from), where(to)
	p, c := start(t, append([]string{"--pause-after", "60s"}, source...)...)
	all := populate(t, p, c)
	s := shell{t.TempDir()}
	file := filepath.Join(s.home, "doze.backup")
	var sealed []string
	if secret {
		words := filepath.Join(s.home, "passphrase")
		if err := os.WriteFile(words, []byte("correct horse battery staple\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		sealed = []string{"--passphrase-file", words}
	}
	end := busy(t, all.agents["awake"])
	r := s.run(t, "", slices.Concat([]string{"dozed", "backup", "--data", p.Data, "--to", file}, source, sealed)...)
	worst := end()
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	t.Logf("an answer took %s at most; %s", worst, r.err)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	for _, name := range []string{"backup", "restore"} {
		if _, err := os.Stat(filepath.Join(p.Data, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	if now := count(t, all.agents["awake"]); now < all.counts["awake"] {
		t.Errorf("the original counted to %v only", now)
	}

	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if r := s.run(t, "", slices.Concat([]string{"dozed", "backup", "--data", p.Data, "--to", file + "2"}, source)...); r.code != 1 || !strings.Contains(r.err, "start it") {
		t.Errorf("while nobody serves: %+v", r)
	}
	if r := s.run(t, "", "dozed", "restore", "--data", p.Data, "--from", file); r.code != 1 || !strings.Contains(r.err, "not empty") {
		t.Errorf("over the original: %+v", r)
	}
	s.ok(t, "dozed", "destroy", "--data", p.Data, "--all", "--yes", "--images-dir", filepath.Join(s.home, "none"))
	nothing(t, p)

	data := filepath.Join(filepath.Dir(p.Data), "restored")
	images := []string{"--images-dir", filepath.Join(data, "images")}
	r = s.run(t, "", slices.Concat([]string{"dozed", "restore", "--data", data, "--from", file}, target, sealed, images)...)
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	p.Data, p.RunDir = data, filepath.Join(filepath.Dir(data), "run2")
	p.Arguments(slices.Concat([]string{"--pause-after", "60s", "--images", ""}, target, images)...)
	revive(t, p)
	all.goOn(t, c)
}

// interrupt starts a backup, and sends it what Ctrl-C does once it has begun to write.
func interrupt(t *testing.T, data, file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(testkit.Root(), "bin", "dozed"), "backup", "--data", data, "--to", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "it writes", func() bool { _, err := os.Stat(file + ".partial"); return err == nil })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not interrupted")
	}
}

// TestBackupIsWholeOrNothing: what is cut off, altered or of another passphrase is refused
// and leaves nothing, and an interrupted backup leaves no file.
func TestBackupIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	alone(t)
	p, c := start(t)
	create(t, c, light(named("one", 512)))
	s := shell{t.TempDir()}
	file := filepath.Join(s.home, "doze.backup")
	s.ok(t, "dozed", "backup", "--data", p.Data, "--to", file, "--quiet")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(s.home, "data")
	for name, bad := range map[string][]byte{
		"cut off":   raw[:len(raw)-100],
		"cut early": raw[:len(raw)/3],
		"altered":   slices.Concat(raw[:len(raw)/2], []byte{^raw[len(raw)/2]}, raw[len(raw)/2+1:]),
		"empty":     {},
		"no backup": []byte("hello"),
	} {
		if err := os.WriteFile(file+".bad", bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := s.run(t, "", "dozed", "restore", "--data", data, "--from", file+".bad"); r.code != 1 {
			t.Errorf("%s: %+v", name, r)
		}
		if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%s: something is left: %v", name, err)
		}
	}
	interrupt(t, p.Data, file+"3")
	if left, err := filepath.Glob(file + "3*"); err != nil || len(left) > 0 {
		t.Errorf("an interrupted backup left %v, %v", left, err)
	}
	s.ok(t, "dozed", "backup", "--data", p.Data, "--to", file+"3", "--quiet")
}
