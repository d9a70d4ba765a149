package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	commandRounds = 10
)

// commandSizes are measured with gVisor's command line, in MB.
var commandSizes = []int{0, 64, 512}

func restoreCase(mb int) string { return fmt.Sprintf("runsc restore %d MB", mb) }

// restoreByCommand does with gVisor's own program what a wake from disk does: it
// restores the same image with a process that holds so much memory. It has no
// network and asks the guest nothing; what is timed is the command alone.
func restoreByCommand(ctx context.Context, p *testkit.Platform) (_ []*series, err error) {
	r, err := newRunsc(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	root, err := rootOf(ctx, p)
	if err != nil {
		return nil, err
	}
	var all []*series
	for _, mb := range commandSizes {
		s := &series{name: restoreCase(mb)}
		if err := r.measure(ctx, s, root, mb); err != nil {
			return nil, fmt.Errorf("%d MB: %w", mb, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// newRunsc builds gVisor's command line, of the version that the engine is made of.
func newRunsc(ctx context.Context) (*runsc, error) {
	dir, err := os.MkdirTemp("/var/tmp", "doze-runsc-")
	if err != nil {
		return nil, err
	}
	r := &runsc{dir: dir, program: filepath.Join(dir, "runsc")}
	build := exec.CommandContext(ctx, "go", "build", "-o", r.program, "gvisor.dev/gvisor/runsc") //nolint:gosec // G204: a directory of our own
	build.Dir, build.Env = testkit.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build runsc: %w: %s", err, out), r.close())
	}
	return r, nil
}

func (r *runsc) close() error { return os.RemoveAll(r.dir) }

// rootOf returns the root file system of a sandbox of the default image.
func rootOf(ctx context.Context, p *testkit.Platform) (string, error) {
	c, err := p.Client()
	if err != nil {
		return "", err
	}
	const name = "root"
	if _, err := c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: name}}, false); err != nil {
		return "", err
	}
	records, err := filepath.Glob(filepath.Join(p.Data, "sandboxes", "*", "record.json"))
	if err != nil || len(records) == 0 {
		return "", errors.Join(err, errors.New("the sandbox has no record"))
	}
	root, err := recordedRoot(records[0])
	_, gone := c.Delete(ctx, name)
	return root, errors.Join(err, gone)
}

// runsc is gVisor's command line with a directory of its own.
type runsc struct {
	dir, program string
	account      *testkit.Account // of what it starts; may be nil
}

// run runs one command.
func (r *runsc) run(ctx context.Context, args ...string) error {
	flags := []string{"--root", filepath.Join(r.dir, "state"), "--platform=systrap", "--network=none", "--ignore-cgroups", "--host-settings=ignore"}
	cmd := exec.CommandContext(ctx, r.program, append(flags, args...)...) //nolint:gosec // G204: what we built
	// The guest's streams are those of the command that starts it; files, so
	// that nobody waits for the guest to close them.
	log, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if r.account != nil {
		cmd = r.account.Command(cmd)
	}
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("runsc %s: %w: %.500s", args[0], err, said)
	}
	return nil
}

// measure checkpoints a machine that holds mb megabytes, and restores it again
// and again.
func (r *runsc) measure(ctx context.Context, s *series, root string, mb int) (err error) {
	bundle, image := filepath.Join(r.dir, fmt.Sprintf("bundle-%d", mb)), filepath.Join(r.dir, fmt.Sprintf("image-%d", mb))
	script := fmt.Sprintf(`import os,time; b=os.urandom(%d<<20); open("/held","w").close(); time.sleep(1e9)`, mb)
	if err := writeBundle(bundle, root, "/usr/bin/python3", "-c", script); err != nil {
		return err
	}
	if err := os.Mkdir(image, 0o700); err != nil {
		return err
	}
	const id = "yardstick"
	remove := func() error { return r.run(context.WithoutCancel(ctx), "delete", "-force", id) }
	if err := r.run(ctx, "create", "-bundle", bundle, id); err != nil {
		return err
	}
	err = r.run(ctx, "start", id)
	for deadline := time.Now().Add(settle); err == nil; {
		if r.run(ctx, "exec", id, "/usr/bin/test", "-e", "/held") == nil {
			break
		}
		if time.Now().After(deadline) {
			err = errors.New("the guest does not come so far")
		}
	}
	if err == nil {
		err = r.run(ctx, "checkpoint", "-image-path", image, "-compression", "none", id)
	}
	if err := errors.Join(err, remove()); err != nil {
		return err
	}
	for range times(commandRounds) {
		began := time.Now()
		if err := r.run(ctx, "restore", "-bundle", bundle, "-image-path", image, "-background", "-detach", id); err != nil {
			return err
		}
		s.add(time.Since(began))
		if err := remove(); err != nil {
			return err
		}
	}
	return nil
}

// writeBundle writes what the command line starts a machine from, with its first
// process.
func writeBundle(bundle, root string, args ...string) error {
	if err := os.MkdirAll(filepath.Join(bundle, "root"), 0o700); err != nil {
		return err
	}
	spec := map[string]any{
		"ociVersion": "1.0.2",
		"root":       map[string]any{"path": filepath.Join(bundle, "root")},
		"process":    map[string]any{"args": args, "cwd": "/", "env": []string{"PATH=/usr/bin:/bin"}},
		"mounts":     []map[string]any{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"annotations": map[string]string{
			"dev.gvisor.spec.rootfs.source": root, "dev.gvisor.spec.rootfs.type": "erofs", "dev.gvisor.spec.rootfs.overlay": "memory",
		},
		"linux": map[string]any{"namespaces": []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}}},
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600)
}
