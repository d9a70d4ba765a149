package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
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
	old, err := filepath.Glob(filepath.Join(p.Data, "doze.db*"))
	for _, name := range old {
		err = errors.Join(err, os.Rename(name, filepath.Join(s.home, filepath.Base(name))))
	}
	if err != nil || len(old) == 0 {
		t.Fatal(old, err)
	}
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
	if r := s.run(t, "", "dozed", "backup", "--data", p.Data, "--to", file); r.code != 1 || !strings.Contains(r.err, "dozed control and dozed node and dozed edge") {
		t.Errorf("a backup of roles: %+v", r)
	}
	if left, err := filepath.Glob(file + "*"); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
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
