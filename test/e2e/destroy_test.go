package e2e_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/testkit"
)

// TestDestroy ends what dozed leaves running on purpose. What it was told
// nothing of, the run directory and the cgroup, it finds.
func TestDestroy(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	s := shell{t.TempDir()}
	api := p.Address + "/v0/sandboxes"
	s.ok(t, "doze", "login", "--data", p.Data)
	if out := s.ok(t, "doze", "sandbox", "ls", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("the server of the data directory has %s", out)
	}

	_, agent := create(t, c, named("asleep", 512))
	sh(t, agent, "echo kept > /root/note")
	call{method: http.MethodPut, url: api + "/asleep", body: `{"spec":{"enabled":false}}`}.want(t, p, 200)
	awaitTier(t, p, "asleep", "disk")
	create(t, c, named("awake", 512))

	if r := s.run(t, "", "dozed", "destroy", "--data", p.Data, "--yes"); r.code != 1 || !strings.Contains(r.err, "stop it first") {
		t.Errorf("while dozed runs: %+v", r)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if r := s.run(t, "no\n", "dozed", "destroy", "--data", p.Data); r.code != 1 || !strings.Contains(r.err, "nothing was done") {
		t.Errorf("an answer that is no yes: %+v", r)
	}
	if _, err := p.Engine("awake"); err != nil {
		t.Errorf("and yet: %v", err)
	}
	s.ok(t, "dozed", "destroy", "--data", p.Data, "--yes")
	nothing(t, p)
	s.ok(t, "dozed", "destroy", "--data", p.Data, "--yes") // there is nothing to do, and no harm

	revive(t, p)
	call{method: http.MethodPut, url: api + "/asleep", body: `{"spec":{"enabled":true}}`}.want(t, p, 200)
	if note := sh(t, agent, "cat /root/note"); strings.TrimSpace(note) != "kept" {
		t.Errorf("the one on disk has %q", note)
	}
	if sb, err := c.Sandbox(t.Context(), "awake"); err != nil || sb.Status != "FAILED" {
		t.Errorf("the one in memory is %s, %v", sb.Status, err)
	}

	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if r := s.run(t, "yes\n", "dozed", "destroy", "--data", p.Data, "--all"); r.code != 0 {
		t.Errorf("all of it: %+v", r)
	}
	nothing(t, p)
	gone(t, p.Data)
	revive(t, p) // from the beginning
}

// nothing fails if a platform has anything on the host but files.
func nothing(t *testing.T, p *testkit.Platform) {
	t.Helper()
	if pid, err := p.Launcher(); err == nil {
		t.Errorf("the launcher %d runs", pid)
	}
	for _, leak := range p.Leaks() {
		if !strings.HasPrefix(leak, "file ") {
			t.Error("left over: " + leak)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), filepath.Dir(p.Data)+"/") {
		t.Errorf("mounts are left, %v", err)
	}
	gone(t, p.RunDir)
}

func gone(t *testing.T, name string) {
	t.Helper()
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", name, err)
	}
}

func TestAnAddressInUse(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	data := filepath.Join(t.TempDir(), "data")
	r := shell{t.TempDir()}.run(t, "", "dozed", "all", "--data", data, "--listen", strings.TrimPrefix(p.Address, "http://"))
	if r.code != 1 || !strings.Contains(r.err, "--listen") || strings.Count(r.err, "\n") > 1 {
		t.Errorf("%+v", r)
	}
	gone(t, data)
}
