// Package builder_test runs the tests of the module builder where its program runs: under
// the engine of sandboxes. What a Dockerfile becomes there is what runc makes of it here.
package builder_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
)

const (
	// repository is the main module, and module the module builder, from here.
	repository = "../.."
	module     = "../../builder"
	// patience is for a run of its tests.
	patience = 10 * time.Minute
	// diskSize is that of the file system in memory, in which the tests build.
	diskSize = "size=2g"
)

// elsewhere are tests that the engine adds nothing to. Hostile steps meet a real machine in
// test/e2e. Builds that end while garbage is collected are about locks of the program.
const elsewhere = "^(TestHostileSteps|TestCollectBesideBuilds)$"

// power are the capabilities of a builder machine.
var power = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD", "CAP_NET_ADMIN",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// TestUnderEngine: the tests of the program pass under gVisor, and the images of its matrix are
// those of runc on this host.
func TestUnderEngine(t *testing.T) {
	switch {
	case testing.Short():
		t.Skip("it takes a minute")
	case os.Geteuid() != 0:
		t.Skip("it needs root")
	}
	for _, needed := range []string{"runc", "busybox"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("it needs %s: make deps-test", needed)
		}
	}
	dir := t.TempDir()
	root := world(t, filepath.Join(dir, "root"))
	engine := filepath.Join(dir, "runsc")
	// The engine of sandboxes, with our changes of gVisor.
	if err := patch.Apply(t.Context(), repository, filepath.Join(repository, "bin", "engine")); err != nil {
		t.Fatal(err)
	}
	run(t, repository, "go", "build", "-modfile", "bin/engine/go.mod", "-o", engine, "gvisor.dev/gvisor/runsc")
	run(t, module, "go", "test", "-c", "-o", filepath.Join(root, "program"), ".")
	run(t, module, "go", "test", "-c", "-o", filepath.Join(root, "step"), "./step")
	run(t, dir, filepath.Join(root, "program"), "-test.run=^TestMatrix$", "-record="+filepath.Join(root, "runc.json"))
	for _, args := range [][]string{{"/program", "-compare-with=/runc.json", "-test.skip=" + elsewhere}, {"/step"}} {
		inEngine(t, engine, dir, append(args, "-test.v", "-test.failfast"))
	}
}

// run runs a command, which must work.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, tail(out))
	}
}

// tail is the end of a long output.
func tail(out []byte) []byte { return out[max(0, len(out)-8<<10):] }

// world makes a root file system with busybox.
func world(t *testing.T, dir string) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin", "b", "dev", "etc", "proc", "root", "sys", "tmp", "usr"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	err = errors.Join(
		err, os.Symlink("../bin", filepath.Join(dir, "usr/bin")), os.WriteFile(filepath.Join(dir, "bin/busybox"), raw, 0o755),
		os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "etc/resolv.conf"), []byte("nameserver 192.0.2.1\n"), 0o644),
	)
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir, busybox, "--install", "-s", filepath.Join(dir, "bin"))
	return dir
}

// inEngine runs a program of a root file system under the engine, which must work.
func inEngine(t *testing.T, engine, dir string, args []string) {
	t.Helper()
	type mount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	type namespace struct {
		Type string `json:"type"`
	}
	raw, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.0", "hostname": "builder", "root": map[string]any{"path": "root"},
		"process": map[string]any{
			"args": args, "cwd": "/", "env": []string{"PATH=/bin", "TMPDIR=/b", "HOME=/root"}, "user": map[string]int{"uid": 0, "gid": 0},
			"capabilities": map[string][]string{"bounding": power, "effective": power, "inheritable": power, "permitted": power},
		},
		"mounts": []mount{
			{"/proc", "proc", "proc", nil},
			{"/dev", "tmpfs", "tmpfs", nil},
			{"/sys", "sysfs", "sysfs", nil},
			{"/tmp", "tmpfs", "tmpfs", nil},
			{"/b", "tmpfs", "tmpfs", []string{diskSize}},
		},
		"linux": map[string]any{"namespaces": []namespace{{"pid"}, {"ipc"}, {"uts"}, {"mount"}, {"network"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	name := "doze-test" + strings.ReplaceAll(args[0], "/", "-")
	options := []string{"--root=" + filepath.Join(dir, "state"), "--platform=systrap", "--ignore-cgroups", "--overlay2=root:memory", "--network=none", "--net-raw", "--host-settings=ignore"}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer func() { // whatever became of it
		_ = exec.CommandContext(context.WithoutCancel(ctx), engine, append(options, "delete", "--force", name)...).Run()
		_ = syscall.Unmount(filepath.Join(dir, "state/null-netns"), syscall.MNT_DETACH) // the engine leaves it
	}()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, engine, append(options, "run", "--bundle", dir, name)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	err = cmd.Run()
	if err != nil {
		t.Errorf("%s: %v\n%s", args[0], err, tail(out.Bytes()))
	}
	if strings.Contains(out.String(), "--- SKIP") || !strings.Contains(out.String(), "--- PASS") {
		t.Errorf("%s skipped tests:\n%s", args[0], tail(out.Bytes()))
	}
}
