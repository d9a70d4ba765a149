package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// buildArgs start a platform with small builders.
var buildArgs = []string{"--build-memory-mb", "1024"}

// buildPlace makes a workspace for builds, which ends with the test. So does its builder.
func buildPlace(t *testing.T, p *testkit.Platform, name string) *client.Client {
	t.Helper()
	admin, err := p.Client()
	if err == nil {
		_, err = admin.CreateWorkspace(t.Context(), name)
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Address: p.Address, Key: p.Key, Workspace: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the platform looks for what is left
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		for sb, err := range c.Sandboxes(ctx, client.Filter{}) {
			if err == nil {
				_, err = c.Delete(ctx, sb.Metadata.Name)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
		until(t, "the workspace ends", func() bool { return c.DeleteWorkspace(ctx, name) == nil })
	})
	return c
}

// TestBuilds builds in one workspace, whose builder has the base image from the first build on.
func TestBuilds(t *testing.T) {
	t.Parallel()
	p, _ := start(t, buildArgs...)
	c := buildPlace(t, p, "builds")
	t.Run("command", func(t *testing.T) { buildCommand(t, p, "builds") }) // the first: it sees the base being unpacked
	// The image builder of the unmodified npm package.
	t.Run("public client", func(t *testing.T) { script(t, p, "builder.mjs", "BL_API_KEY="+p.Key, "BL_WORKSPACE=builds") })
	t.Run("end of dozed", func(t *testing.T) { buildSurvives(t, p, c) })
}

// buildCommand builds with doze build: a cache, a changed line, a failing step, secrets, an
// interrupt.
func buildCommand(t *testing.T, p *testkit.Platform, workspace string) {
	t.Helper()
	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	s.ok(t, "doze", "workspace", "use", workspace)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("Dockerfile", "FROM blaxel/slim:latest\nARG WHO\nCOPY . /app/\nRUN echo hello $WHO >/hello\n"+
		"RUN --mount=type=secret,id=token test \"$(cat /run/secrets/token)\" = hunter2\nRUN echo last >/last\n")
	write("file", "one")
	write("left-out", "two")
	write(".dockerignore", "left-*\nDockerfile\n.dockerignore\n")
	write("token", "hunter2")
	build := func() ran {
		t.Helper()
		began := time.Now()
		r := s.run(t, "", "doze", "build", dir, "-t", "app", "--build-arg", "WHO=you", "--secret", "id=token,src="+filepath.Join(dir, "token"))
		t.Logf("it took %s:\n%s%s", time.Since(began), r.out, r.err)
		if strings.Contains(r.err+r.out, "hunter2") {
			t.Error("the secret is in the output")
		}
		return r
	}
	if r := build(); r.code != 0 || !strings.Contains(r.out, "sandbox/app:latest") || !strings.Contains(r.err, "FROM blaxel/slim:latest DONE") {
		t.Fatalf("exit code %d", r.code)
	}
	if out := s.ok(t, "doze", "image", "get", "app:latest"); !strings.Contains(out, "app   latest  ") || strings.Contains(out, "built/") {
		t.Errorf("the image is %s", out)
	}
	// All of it is in the cache, then all up to a changed line.
	if r := build(); r.code != 0 || strings.Count(r.err, " CACHED") < 4 || !strings.Contains(r.err, "FROM blaxel/slim:latest CACHED") {
		t.Errorf("the second build has %d steps of the cache", strings.Count(r.err, " CACHED"))
	}
	raw, err := os.ReadFile(filepath.Join(dir, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	write("Dockerfile", strings.Replace(string(raw), "echo last", "echo changed", 1))
	if r := build(); r.code != 0 || strings.Count(r.err, " CACHED") < 3 || !strings.Contains(r.err, "RUN echo changed >/last DONE") {
		t.Errorf("exit code %d", r.code)
	}
	sb := s.ok(t, "doze", "sandbox", "create", "web", "--image", "app", "--memory", "512", "-o", "name")
	if out := s.ok(t, "doze", "exec", strings.TrimSpace(sb), "cat /hello /last /app/file; ls /app"); out != "hello you\nchanged\nonefile\ntoken\n" {
		t.Errorf("in the sandbox is %q", out)
	}

	write("Dockerfile", "FROM blaxel/slim:latest\n\nRUN echo why && exit 7\n")
	if r := build(); r.code != 1 || !strings.Contains(r.err, "exit code 7 (Dockerfile line 3: RUN echo why && exit 7)\n") || !strings.Contains(r.err, "why\n") {
		t.Errorf("exit code %d", r.code)
	}
	if out := s.ok(t, "doze", "image", "build-logs", "app"); !strings.Contains(out, "why\n") {
		t.Errorf("the log is %s", out)
	}

	// What did not run, since another step failed, was not in the cache.
	write("Dockerfile", "FROM blaxel/slim:latest\nRUN sleep 1000\nRUN echo never\nCOPY none /\n")
	if r := build(); r.code != 1 || strings.Contains(r.err, "RUN echo never CACHED") || !strings.Contains(r.err, "RUN sleep 1000 CANCELED") {
		t.Errorf("exit code %d", r.code)
	}
	write("Dockerfile", "FROM blaxel/xyz\n")
	if r := build(); r.code != 1 || !strings.Contains(r.err, "the platform has no image") || !strings.Contains(r.err, "blaxel/base-image:latest") {
		t.Errorf("exit code %d", r.code)
	}

	// An interrupt cancels.
	write("Dockerfile", "FROM blaxel/slim:latest\nRUN sleep 1000\n")
	cmd := s.command(t, "doze", "build", dir, "-t", "slow")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := func() doze.Build {
		t.Helper()
		var all []doze.Build
		if err := json.Unmarshal([]byte(s.ok(t, "doze", "build", "ls", "-o", "json")), &all); err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		return all[0]
	}
	until(t, "the step runs", func() bool {
		b := last()
		log := s.run(t, "", "doze", "image", "build-logs", "slow").out
		return b.Name == "slow" && b.Status == doze.BuildBuilding && strings.Contains(log, "RUN sleep 1000")
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("an interrupt: %v", err)
	}
	if b := last(); b.Status != doze.BuildCancelled {
		t.Errorf("after the interrupt it is %s", b.Status)
	}
}

// buildSurvives: a build goes on in the next dozed, after a kill in the middle.
func buildSurvives(t *testing.T, p *testkit.Platform, c *client.Client) {
	t.Helper()
	b, err := c.CreateBuild(t.Context(), doze.BuildRequest{Name: "slept"})
	if err != nil {
		t.Fatal(err)
	}
	files := buildFiles{"Dockerfile": "FROM blaxel/slim:latest\nRUN sleep 15 && echo done >/done\n"}
	if err := c.UploadBuild(t.Context(), b, files.zip(t)); err != nil {
		t.Fatal(err)
	}
	for e, err := range c.BuildLog(t.Context(), b.ID, true) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(e.Name, "sleep 15") && e.State == doze.StepStarted {
			break
		}
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the build ends", func() bool {
		got, err := c.Build(t.Context(), b.ID)
		if err != nil {
			return false
		}
		if got.Ended() && got.Status != doze.BuildBuilt {
			t.Fatalf("%+v", got.Failure)
		}
		return got.Ended()
	})
	sb, err := c.Create(t.Context(), doze.Sandbox{Metadata: doze.Metadata{Name: "after"}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Image: "slept", Memory: 512}}}, false)
	if err != nil || sb.Status != "DEPLOYED" {
		t.Errorf("%+v, %v", sb.Status, err)
	}
}
