package e2e_test

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// greeter is the program of an image: it says who it is, once for each start, and what it
// was asked to do. Its shell has sleep(1) and nothing else.
const greeter = `trap 'echo asked by INT; exit 0' INT; trap 'echo asked by TERM; exit 0' TERM
while read k a b; do case $k in Uid:) echo "start $GREETING $1 $PWD $a";; esac; done </proc/self/status
while :; do sleep 5; done`

// starts is what the program greeter said when it started.
const starts = "start it's a b /srv/made/later 1000"

// program is the process of the image of a sandbox.
func program(t *testing.T, agent *client.Agent) client.Process {
	t.Helper()
	p, err := agent.Process(t.Context(), doze.EntrypointProcess)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestEntrypoint: the program of an image is the sandbox's own process. It starts with each
// fresh machine, and sleeps, wakes and is copied like all others. The platform says how it
// is, and ends it as the image wants.
func TestEntrypoint(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"), "--pause-after", "3s", "--disk-after", "2s")
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	layer := shellLayer(t, map[string]string{
		"bin/sleep": string(sleep), "etc/passwd": "root:x:0:0::/root:\napp:x:1000:1001::/home/app:/bin/sh\n",
	})
	config := v1.Config{
		Env: []string{"PATH=/bin", "GREETING=it's", "LITERAL=$GREETING"}, User: "app", WorkingDir: "/srv/made/later",
		Entrypoint: []string{"/bin/sh", "-c", greeter, "greeter"}, Cmd: []string{"a b"}, StopSignal: "SIGINT",
		ExposedPorts: map[string]struct{}{"8000/tcp": {}, "53/udp": {}}, Labels: map[string]string{"org.example": "mine"},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "{ read why </tmp/sick; } 2>/dev/null || exit 0; echo $why; exit 1"}, Interval: time.Second, Retries: 1},
	}
	ref := strings.TrimPrefix(server.URL, "http://") + "/team/app:1"
	push(t, ref, layer, config)
	if _, err := c.CreateImage(t.Context(), "app", ref); err != nil {
		t.Fatal(err)
	}
	shown := doze.ImageConfig{
		Env: config.Env, User: "app", WorkDir: config.WorkingDir, Entrypoint: config.Entrypoint, Cmd: config.Cmd, Ports: []string{"53/udp", "8000/tcp"},
		Labels: config.Labels, StopSignal: "SIGINT", Health: &doze.ImageHealth{Test: config.Healthcheck.Test, Interval: 1, Retries: 1},
	}
	var image doze.Image
	call{url: p.Address + "/v0/images/sandbox/app"}.want(t, p, 200).into(t, &image)
	if diff := cmp.Diff(&shown, image.Spec.Tags[0].Config); diff != "" {
		t.Errorf("the image says: %s", diff)
	}

	in := named("box", 512)
	in.Spec.Runtime.Image, in.Spec.Runtime.Grace = "app", 10
	sb, agent := create(t, c, in)
	if len(sb.Spec.Runtime.Ports)+len(sb.Metadata.Labels) != 0 {
		t.Errorf("what its image says became %+v, %+v", sb.Spec.Runtime.Ports, sb.Metadata.Labels)
	}
	var first client.Process
	until(t, "it runs", func() bool { first = program(t, agent); return first.Stdout != "" })
	if first.Stdout != starts+"\n" || first.Status != "running" || first.KeepAlive {
		t.Errorf("it is %+v", first)
	}
	if got := sh(t, agent, "echo $LITERAL"); got != "$GREETING" {
		t.Errorf("a variable of the image is %q", got)
	}
	state := func() doze.Entrypoint {
		sb, err := c.Sandbox(t.Context(), "box")
		if err != nil || sb.Entrypoint == nil {
			t.Fatalf("it says %+v, %v", sb.Entrypoint, err)
		}
		return *sb.Entrypoint
	}
	healthy := doze.Entrypoint{Status: "running", Health: "healthy", Ports: shown.Ports}
	until(t, "it is healthy", func() bool { program(t, agent); return cmp.Equal(state(), healthy) })

	// It is the same after every sleep, and nobody is awake because of it.
	for _, tier := range []string{"paused", "disk"} {
		awaitTier(t, p, "box", tier)
		if got := program(t, agent); got.PID != first.PID || got.StartedAt != first.StartedAt || got.Stdout != first.Stdout {
			t.Errorf("after a sleep on %s it is %+v", tier, got)
		}
	}
	awaitTier(t, p, "box", "paused")
	if got := state(); !cmp.Equal(got, healthy) {
		t.Errorf("asleep it says %+v", got)
	}

	put(t, agent, "/tmp/sick", "no database\n")
	sick := healthy
	sick.Health, sick.HealthOutput = "unhealthy", "no database\n"
	until(t, "it is unhealthy", func() bool { program(t, agent); return cmp.Equal(state(), sick) })
	notices := func() (n int) {
		sb, err := c.Sandbox(t.Context(), "box")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range sb.Events {
			if strings.Contains(e.Message, `the health check of its image fails: "no database"`) {
				n++
			}
		}
		return n
	}
	until(t, "its owner hears of it", func() bool { return notices() == 1 })
	if _, err := agent.Remove(t.Context(), "/tmp/sick", false); err != nil {
		t.Fatal(err)
	}

	// Callers stop it, and start it again.
	if _, err := agent.Stop(t.Context(), doze.EntrypointProcess); err != nil {
		t.Fatal(err)
	}
	until(t, "it ends", func() bool { return program(t, agent).CompletedAt != "" })
	if got := program(t, agent); got.Stdout != starts+"\nasked by INT\n" {
		t.Errorf("it said %q", got.Stdout)
	}
	until(t, "it starts again", func() bool {
		_, err := agent.Start(t.Context(), client.Command{Name: doze.EntrypointProcess})
		return err == nil
	})
	until(t, "it runs again", func() bool { return program(t, agent).Stdout == starts+"\n" })

	// It ran before the archive, and does after it.
	pack(t, c)
	unpack(t, c)
	until(t, "it runs in a fresh machine", func() bool { return program(t, agent).Stdout == starts+"\n" })
	all, err := agent.Processes(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("unarchived it has %+v, %v", all, err)
	}

	// A delete asks it as the image wants, and its last words outlive it.
	asked := func(signal string) (n int) {
		for _, line := range output(t, c, "box") {
			if line == "entrypoint/stdout: asked by "+signal {
				n++
			}
		}
		return n
	}
	before := asked("INT")
	if _, err := c.Delete(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	until(t, "it has said its last words", func() bool { return asked("INT") == before+1 })
	if n := asked("TERM"); n != 0 {
		t.Errorf("it was asked %d times by another signal", n)
	}

	in = named("none", 512)
	in.Spec.Runtime.Image, in.Spec.Runtime.ExtraArgs = "app", map[string]string{doze.ExtraEntrypoint: "disabled"}
	sb, agent = create(t, c, in)
	if all, err := agent.Processes(t.Context()); err != nil || len(all) != 0 || sb.Entrypoint == nil || sb.Entrypoint.Status != doze.EntrypointDisabled {
		t.Errorf("without a program it has %+v and says %+v, %v", all, sb.Entrypoint, err)
	}
}

// TestEntrypointsThatEnd: a shell without input is completed, and nobody hears of it. A
// program that is not there costs itself alone. A fork has the program of its source.
func TestEntrypointsThatEnd(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"), "--pause-after", "60s")
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	layer := shellLayer(t, nil)
	made := func(name string, config v1.Config) *client.Agent {
		t.Helper()
		in := named(name, 512)
		in.Spec.Runtime.Image = strings.TrimPrefix(server.URL, "http://") + "/" + name + ":1"
		push(t, in.Spec.Runtime.Image, layer, config)
		_, agent := create(t, c, in)
		return agent
	}
	events := func(name string) (all []string) {
		sb, err := c.Sandbox(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range sb.Events {
			all = append(all, e.Message)
		}
		return all
	}
	shell := made("src", v1.Config{Cmd: []string{"/bin/sh"}})
	until(t, "a shell ends", func() bool { return program(t, shell).Status == "completed" })
	if _, err := c.Fork(t.Context(), "src", into("copy")); err != nil {
		t.Fatal(err)
	}
	_, copied := open(t, c, "copy")
	if a, b := program(t, shell), program(t, copied); a.PID != b.PID || a.StartedAt != b.StartedAt {
		t.Errorf("it is %+v, and in a fork %+v", a, b)
	}

	made("broken", v1.Config{Entrypoint: []string{"/no/such/program"}})
	until(t, "its owner hears of it", func() bool {
		return strings.Contains(strings.Join(events("broken"), "\n"), "the program of its image could not be started")
	})
	if sb, err := c.Sandbox(t.Context(), "broken"); err != nil || sb.Status != "DEPLOYED" || sb.Entrypoint.Status != "failed" || !strings.Contains(sb.Entrypoint.Message, "/no/such/program") {
		t.Errorf("it is %+v, %v", sb, err)
	}
	for _, name := range []string{"src", "copy"} {
		if all := strings.Join(events(name), "\n"); strings.Contains(all, "program") {
			t.Errorf("the owner of %s hears %s", name, all)
		}
	}

	// What a script does that begins with the agent of another platform.
	scripted := made("scripted", v1.Config{Entrypoint: []string{"/bin/sh", "-c", "/usr/local/bin/sandbox-api & echo serving; wait"}})
	until(t, "a script ends", func() bool { return program(t, scripted).Status == "completed" })
	if got := program(t, scripted); got.Stdout != "serving\n" {
		t.Errorf("it said %q", got.Stdout)
	}

	agent := made("client", v1.Config{Entrypoint: []string{"/usr/local/bin/sandbox-api"}})
	if all, err := agent.Processes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("the agent of another platform became %+v, %v", all, err)
	}
	if got := (call{url: p.Address + "/v0/sandboxes/client"}).want(t, p, 200); strings.Contains(got.body, "entrypoint") {
		t.Errorf("it says %s", got.body)
	}
}
