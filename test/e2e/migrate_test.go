package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
	"github.com/dozehq/doze/internal/testkit/freeport"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

// TestMigrate moves the records of a platform to a server and back, and uses it after each
// move. What was created in between goes back too.
func TestMigrate(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	_, agent := create(t, c, named("one", 512))
	sh(t, agent, "echo 42 >/root/answer")
	s, address := shell{t.TempDir()}, postgres.Database(t)
	if r := s.run(t, "", "dozed", "migrate", "--data", p.Data, "--to", address); r.code != 1 || !strings.Contains(r.err, "stop it first") {
		t.Errorf("while dozed runs: %+v", r)
	}
	stop(t, p)
	for name, refused := range map[string][]string{
		"name the new place":   {},
		"neither sqlite nor":   {"--to", "mysql://x"},
		"are there already":    {"--to", "sqlite"},
		"sees the password":    {"--to", "postgres://u:p@h/d"},
		"is no data directory": {"--to", address, "--data", s.home},
	} {
		if r := s.run(t, "", append([]string{"dozed", "migrate", "--data", p.Data}, refused...)...); r.code != 1 || !strings.Contains(r.err, name) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if out := s.ok(t, "dozed", "migrate", "--data", p.Data, "--to", address); !strings.Contains(out, "doze.db is as it was") || !strings.Contains(out, "audit") {
		t.Errorf("it says %s", out)
	}
	if r := s.run(t, "", "dozed", "migrate", "--data", p.Data, "--to", address); r.code != 1 || !strings.Contains(r.err, "are there already") {
		t.Errorf("a second time: %+v", r)
	}

	p.Arguments("--database", address)
	answers(t, p, agent)
	create(t, c, named("two", 512))
	stop(t, p)
	back := []string{"dozed", "migrate", "--data", p.Data, "--database", address, "--to", "sqlite"}
	if r := s.run(t, "", back...); r.code != 1 || !strings.Contains(r.err, "move it away") {
		t.Errorf("over the records of before: %+v", r)
	}
	aside(t, p, s.home)
	s.ok(t, back...)

	p.Arguments()
	answers(t, p, agent)
	if _, err := c.Sandbox(t.Context(), "two"); err != nil {
		t.Errorf("what was created on the server: %v", err)
	}
}

// TestMigrateToRoles: after its records moved, a platform of one process is the first machine
// of a fleet. Its sandboxes go on there, with their files and processes.
func TestMigrateToRoles(t *testing.T) {
	t.Parallel()
	address := postgres.Database(t) // the platform is cleaned up first
	p, c := start(t)
	_, agent := create(t, c, named("one", 512))
	sh(t, agent, "echo 42 >/root/answer; nohup sleep 1000000 >/dev/null 2>&1 & echo $! >/root/pid")
	s := shell{t.TempDir()}
	stop(t, p)
	s.ok(t, "dozed", "migrate", "--data", p.Data, "--to", address, "--quiet")
	if err := p.Split(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Arguments("--database", address)
	answers(t, p, agent)
	sh(t, agent, "kill -0 $(cat /root/pid)")
	create(t, c, named("two", 512))
	id, err := os.ReadFile(filepath.Join(p.Data, "node.id"))
	if err != nil {
		t.Fatal(err)
	}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	if out := s.ok(t, "doze", "node", "ls"); !strings.Contains(out, strings.TrimSpace(string(id))) {
		t.Errorf("the nodes are %s", out)
	}
	file := filepath.Join(s.home, "backup")
	if r := s.run(t, "", "dozed", "backup", "--data", p.Data, "--to", file); r.code != 1 || !strings.Contains(r.err, "name it with --database") {
		t.Errorf("a backup of control without its database: %+v", r)
	}
	if left, err := filepath.Glob(file + "*"); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	s.ok(t, "dozed", "backup", "--data", p.Data, "--database", address, "--to", file)
	to := filepath.Join(s.home, "restored")
	s.ok(t, "dozed", "restore", "--data", to, "--database", postgres.Database(t), "--from", file)
	for _, name := range []string{"seal.key", "egress.key", "fleet/ca.key", "fleet/control.crt"} {
		was, err := os.ReadFile(filepath.Join(p.Data, name))
		is, unread := os.ReadFile(filepath.Join(to, name))
		if err != nil || unread != nil || !bytes.Equal(was, is) {
			t.Errorf("%s of the restored control: %v, %v", name, err, unread)
		}
	}
}

func stop(t *testing.T, p *testkit.Platform) {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
}

func answers(t *testing.T, p *testkit.Platform, agent *client.Agent) {
	t.Helper()
	revive(t, p)
	if answer := sh(t, agent, "cat /root/answer"); answer != "42" {
		t.Errorf("its file has %q", answer)
	}
}

// interrupt runs a command that is killed again and again, later each time, and then to its end.
func (s shell) interrupt(t *testing.T, args ...string) string {
	t.Helper()
	for after := 20 * time.Millisecond; after < 2*time.Second; after *= 3 {
		cmd := s.command(t, args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%q: %v", args, err)
			}
			return ""
		case <-time.After(after):
			_ = cmd.Process.Kill() // or it has just ended
			if <-ended; cmd.ProcessState.Success() {
				return ""
			}
		}
	}
	return s.ok(t, args...)
}

// aside moves the database file of a platform away.
func aside(t *testing.T, p *testkit.Platform, to string) {
	t.Helper()
	old, err := filepath.Glob(filepath.Join(p.Data, "doze.db*"))
	for _, name := range old {
		err = errors.Join(err, os.Rename(name, filepath.Join(to, filepath.Base(name))))
	}
	if err != nil || len(old) == 0 {
		t.Fatal(old, err)
	}
}

// checkpoints starts the server of a bucket, and returns the flags for it, and its directory.
func checkpoints(t *testing.T) (flags []string, url, dir string) {
	t.Helper()
	program := filepath.Join(testkit.Root(), "bin", "versitygw")
	if _, err := os.Stat(program); err != nil {
		t.Skip("SKIPPED: make bin/versitygw builds the server: ", err)
	}
	dir = t.TempDir()
	keys := filepath.Join(t.TempDir(), "keys")
	address, err := freeport.Address(t.Context())
	if err := errors.Join(err, os.Mkdir(filepath.Join(dir, "checkpoints"), 0o700),
		os.WriteFile(keys, []byte("[default]\naws_access_key_id = a\naws_secret_access_key = "+bucket.Secret+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context())) // the platform is cleaned up first
	cmd := exec.CommandContext(ctx, program, "--quiet", "--port", address, "--access", "a", "--secret", bucket.Secret, "posix", dir)
	if err := cmd.Start(); err != nil {
		end()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end()
		_ = cmd.Wait() // it was told
	})
	until(t, "the bucket answers", func() bool {
		c, err := net.Dial("tcp", address)
		return err == nil && c.Close() == nil
	})
	url = "http://" + address + "/checkpoints"
	return []string{"--remote", url, "--remote-credentials", keys}, url, dir
}

// TestMigrateToFleet: a platform of one process becomes a fleet with a bucket, which gets
// everything, and the way back loses nothing. Whoever kills the command runs it again.
func TestMigrateToFleet(t *testing.T) {
	t.Parallel()
	remote, url, dir := checkpoints(t)
	address := postgres.Database(t)
	p, c := start(t, "--pause-after", "1s", "--save-after", "1s", "--disk-after", "2s")
	s := shell{t.TempDir()}
	volume(t, c, "data", "")
	volume(t, c, "free", "")
	_, agent := create(t, c, having("one", doze.VolumeAttachment{Name: "data", MountPath: "/data"}))
	sh(t, agent, "echo 42 >/root/answer; echo 43 >/data/answer; sync")
	counting(t, agent, false)
	create(t, c, named("src", 512))
	shot := snap(t, c, "shot")
	before := count(t, agent)
	stop(t, p)

	to := []string{"dozed", "migrate", "--data", p.Data, "--to", address}
	for why, flags := range map[string][]string{
		"--remote-credentials":        {"--bucket", url},
		"there is no bucket":          append([]string{"--bucket", url + "x"}, remote[2:]...),
		"needs a section [default]":   {"--bucket", url, "--remote-credentials", "/dev/null"},
		"copies of another platform,": append([]string{"--bucket", url}, remote[2:]...),
	} {
		other := filepath.Join(dir, "checkpoints", "of-another")
		if err := os.MkdirAll(filepath.Join(other, "e"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(other, "e", "1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := s.run(t, "", append(to, flags...)...); r.code != 1 || !strings.Contains(r.err, why) {
			t.Errorf("%s: %+v", why, r)
		}
		if err := os.RemoveAll(other); err != nil {
			t.Fatal(err)
		}
	}
	if out := s.interrupt(t, append(append(to, "--bucket", url), remote[2:]...)...); out != "" && !strings.Contains(out, "2 sandboxes, 2 volumes, 1 snapshots") {
		t.Errorf("it says %s", out)
	}

	if err := p.Split(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Arguments(append([]string{"--database", address, "--remote-after", "1s", "--pause-after", "1s", "--save-after", "1s", "--disk-after", "2s"}, remote...)...)
	answers(t, p, agent)
	if after := count(t, agent); after < before {
		t.Errorf("it counted to %v, and then to %v", before, after)
	}
	wanted := map[string]int{"snapshot-" + shot.ID: 1, "volume-*": 2}
	for _, name := range []string{"one", "src"} {
		uid, err := p.UID(name)
		if err != nil {
			t.Fatal(err)
		}
		wanted[uid] = 1
	}
	for id, n := range wanted {
		until(t, "the bucket has "+id, func() bool {
			found, err := filepath.Glob(filepath.Join(dir, "checkpoints", id, "m"))
			return err == nil && len(found) == n
		})
	}
	_, late := create(t, c, named("late", 512))
	sh(t, late, "echo 44 >/root/answer")
	before = count(t, agent)
	stop(t, p)

	aside(t, p, s.home)
	s.interrupt(t, "dozed", "migrate", "--data", p.Data, "--database", address, "--to", "sqlite")
	p.Join()
	p.Arguments("--pause-after", "1s", "--save-after", "1s", "--disk-after", "2s")
	answers(t, p, agent)
	if after := count(t, agent); after < before {
		t.Errorf("after the way back, it counted to %v, and then to %v", before, after)
	}
	if got := sh(t, agent, "cat /data/answer"); got != "43" {
		t.Errorf("the volume has %q", got)
	}
	if got := sh(t, late, "cat /root/answer"); got != "44" {
		t.Errorf("what was created in the fleet has %q", got)
	}
	if _, err := c.Fork(t.Context(), "src", doze.ForkRequest{TargetName: "copy", TargetType: doze.KindSandbox, SnapshotID: shot.ID}); err != nil {
		t.Errorf("a fork of the snapshot: %v", err)
	}
	create(t, c, having("two", doze.VolumeAttachment{Name: "free", MountPath: "/free"}))
}
