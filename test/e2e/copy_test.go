package e2e_test

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

// copyEvery is how old the copy of a sandbox in use may be in these tests.
const copyEvery = 2 * time.Second

// copies starts a platform with a sandbox that is in use all the time, and in a bucket. It has
// never slept: there is no checkpoint.
func copies(t *testing.T, args ...string) (*testkit.Platform, *client.Client, *client.Agent) {
	t.Helper()
	srv := bucket.Serve(t)
	args = append(args, "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"), "--pause-after", "10m", "--remote", srv.URL, "--remote-credentials", srv.Credentials, "--remote-after", "1s", "--remote-every", copyEvery.String())
	p, c := launch(t, nil, testkit.Options{Roles: true, Args: args})
	in := named("used", 256)
	in.Spec.Runtime.Image = little(t, c)
	_, agent := create(t, c, in)
	counting(t, agent, true)
	return p, c, agent
}

// little imports an image with a shell and what counts, and returns its name. The bucket gets it
// with the first copy, which would take most of a minute for a whole distribution.
func little(t *testing.T, c *client.Client) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v: make deps-test installs it", err)
	}
	const name = "little"
	ref := strings.TrimPrefix(server.URL, "http://") + "/" + name + ":1"
	push(t, ref, shellLayer(t, map[string]string{"bin/sleep": string(busybox), "bin/mv": string(busybox), "bin/cat": string(busybox), "tmp/.keep": ""}), v1.Config{Env: []string{"PATH=/bin"}})
	if _, err := c.CreateImage(t.Context(), name, ref); err != nil {
		t.Fatal(err)
	}
	return name
}

// copied waits until the bucket has another copy.
func copied(t *testing.T, p *testkit.Platform) {
	t.Helper()
	before := strings.Count(p.Printed(), "a sandbox is in the bucket")
	until(t, "the bucket has a copy", func() bool { return strings.Count(p.Printed(), "a sandbox is in the bucket") > before })
}

// lose ends the processes of the sandbox without asking it.
func lose(t *testing.T, p *testkit.Platform) {
	t.Helper()
	uid, err := p.UID("used")
	if err != nil {
		t.Fatal(err)
	}
	pids := p.Engines(uid)
	if len(pids) == 0 {
		t.Fatal("it has no processes")
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
}

// TestCopyIsLeft: a sandbox that loses its processes, and has no checkpoint on its node, goes on from
// its copy in the bucket, and says how old that is.
func TestCopyIsLeft(t *testing.T) {
	t.Parallel()
	p, c, agent := copies(t)
	for how, harm := range map[string]func(){
		"its processes end": func() { lose(t, p) },
		"the host restarts": func() {
			if err := p.Reboot(); err != nil {
				t.Fatal(err)
			}
			revive(t, p)
		},
	} {
		t.Run(how, func(t *testing.T) {
			copied(t, p)
			before := count(t, agent)
			copied(t, p)
			at := time.Now()
			harm()
			after := count(t, agent)
			if after < before {
				t.Errorf("it counted to %v, and goes on from %v", before, after)
			}
			until(t, "its record says so", func() bool {
				sb, err := c.Sandbox(t.Context(), "used")
				return err == nil && sb.Recovery != nil && sb.Recovery.At.After(at.Add(-time.Second)) && at.Sub(sb.Recovery.CheckpointAt.Time) < time.Minute
			})
			sb, err := c.Sandbox(t.Context(), "used")
			if err != nil || sb.Status != "DEPLOYED" {
				t.Fatalf("it is %s, %v", sb.Status, err)
			}
			told := false
			for _, e := range sb.Events {
				told = told || strings.Contains(e.Message, "it goes on from its copy of")
			}
			if !told {
				t.Errorf("no event says so: %+v", sb.Events)
			}
			if got := count(t, agent); got < after {
				t.Errorf("it went from %v back to %v", after, got)
			}
		})
	}
	t.Run("what came is a checkpoint like others", func(t *testing.T) {
		until(t, "it says so", func() bool { return strings.Contains(p.Printed(), "the memory of a sandbox is here") })
		before := count(t, agent)
		until(t, "it goes on", func() bool { return count(t, agent) > before })
	})
}

// TestCopyMayNot: with --on-crash fail, a sandbox that loses its processes is FAILED, although the
// bucket has a copy.
func TestCopyMayNot(t *testing.T) {
	t.Parallel()
	p, c, _ := copies(t, "--on-crash", "fail")
	copied(t, p)
	lose(t, p)
	until(t, "it is failed", func() bool {
		sb, err := c.Sandbox(t.Context(), "used")
		return err == nil && sb.Status == "FAILED"
	})
}
