package e2e_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSSH connects with the clients of OpenSSH: commands, files, forwarded ports and
// git, as the user of the image, and after a sleep on disk.
func TestSSH(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s")
	_, agent := create(t, c, named("ssh", 1024))
	s := shell{t.TempDir()}
	if r := s.run(t, p.Key, "doze", "login", "--address", p.Address); r.code != 0 {
		t.Fatal(r)
	}
	if out := s.ok(t, "doze", "ssh", "ssh", "echo out; id -un; pwd; tr a-z A-Z </etc/hostname"); out != "out\nroot\n/root\nSSH\n" {
		t.Errorf("%q", out)
	}
	if r := s.run(t, "piped", "doze", "ssh", "ssh", "cat; exit 9"); r.code != 9 || r.out != "piped" {
		t.Errorf("%+v", r)
	}
	if r := s.run(t, "", "doze", "ssh", "nobody", "true"); r.code != 3 || !strings.Contains(r.err, "nobody") {
		t.Errorf("a sandbox that is not there: %+v", r)
	}
	// The other clients find it by their configuration.
	config := filepath.Join(s.home, "ssh_config")
	if err := os.WriteFile(config, []byte(s.ok(t, "doze", "ssh", "--config")), 0o600); err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("doze\x00\xff"), 1<<20)
	file := filepath.Join(s.home, "large")
	if err := os.WriteFile(file, large, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, p, "disk")
	s.other(t, "scp", "-F", config, file, "ssh.doze:copy")
	await(t, p, "disk")
	s.other(t, "scp", "-F", config, "ssh.doze:copy", file+".back")
	if back, err := os.ReadFile(file + ".back"); err != nil || !bytes.Equal(back, large) {
		t.Errorf("%d bytes came back: %v", len(back), err)
	}
	if out := s.other(t, "ssh", "-F", config, "-tt", "ssh.doze", "stty size >/dev/null && echo terminal"); out != "terminal\r\n" {
		t.Errorf("%q", out)
	}
	sh(t, agent, "git init -q --bare /srv/repo.git")
	s.other(t, "git", "init", "-q", s.home+"/work")
	s.other(t, "git", "-C", s.home+"/work", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "first")
	s.other(t, "git", "-C", s.home+"/work", "-c", "core.sshCommand=ssh -F "+config, "push", "-q", "ssh.doze:/srv/repo.git", "HEAD:main")
	if out := sh(t, agent, "git -C /srv/repo.git log --format=%s main"); out != "first" {
		t.Errorf("the repository has %q", out)
	}
	// A connection holds the sandbox awake, and ends with its credential.
	cmd := s.command(t, "doze", "ssh", "ssh", "sleep 600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the command runs", func() bool { return strings.Contains(sh(t, agent, "ps ax -o args"), "sleep 600") })
	time.Sleep(3 * time.Second) // the tiers above would have passed
	if got, err := c.Sandbox(t.Context(), "ssh"); err != nil || got.State != "RUNNING" {
		t.Errorf("with an open connection the sandbox is %v, %v", got.State, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	await(t, p, "disk")
	if out := sh(t, agent, "ps ax -o args"); strings.Contains(out, "sleep 600") {
		t.Errorf("without its client the command goes on:\n%s", out)
	}
}

// other runs a program of this host, which must succeed, and returns its output.
func (s shell) other(t *testing.T, args ...string) string {
	t.Helper()
	cmd := s.command(t, args...)
	var err error
	if cmd.Path, err = exec.LookPath(args[0]); err != nil {
		t.Fatal(err)
	}
	cmd.Err = nil
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}
