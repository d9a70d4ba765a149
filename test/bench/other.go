package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/testkit"
)

const (
	otherRounds = 20
	// cgroupPatience is for processes that have ended and that nobody has waited for
	// yet: until then their cgroup cannot be removed.
	cgroupPatience = 30 * time.Second
)

// others are what a user would take instead of a sandbox. Each makes a container of
// the same root file system, without a network, and runs `true` in it: in the
// container's own words, create, start and exec.
var others = []struct {
	name    string
	measure func(ctx context.Context, s *series, root string) error
}{
	{"podman with crun, create + exec", byPodman},
	{"gVisor's runsc, create + exec", byRunsc},
}

// absentError says what the host lacks for a case.
type absentError string

func (n absentError) Error() string { return string(n) }

// byRunsc takes the times of gVisor's own command line.
func byRunsc(ctx context.Context, s *series, root string) (err error) {
	r, err := newRunsc(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if r.account, err = testkit.OpenAccount(filepath.Base(r.dir)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.account.Close()) }()
	bundle := filepath.Join(r.dir, "bundle")
	if err := writeBundle(bundle, root, "/usr/bin/sleep", "infinity"); err != nil {
		return err
	}
	for range times(otherRounds) {
		const id = "other"
		err := s.cost(r.account, func() error {
			for _, args := range [][]string{{"create", "-bundle", bundle, id}, {"start", id}, {"exec", id, "/usr/bin/true"}} {
				if err := r.run(ctx, args...); err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(err, r.run(context.WithoutCancel(ctx), "delete", "-force", id)); err != nil {
			return err
		}
	}
	return nil
}

// byPodman takes the times of podman with crun.
func byPodman(ctx context.Context, s *series, root string) error {
	for _, program := range []string{"podman", "crun"} {
		if _, err := exec.LookPath(program); err != nil {
			return absentError("install podman and crun")
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "doze-pod-") // podman refuses long paths
	if err != nil {
		return err
	}
	p := &podman{dir: dir, root: filepath.Join(dir, "image"), cgroup: filepath.Base(dir)}
	// podman makes one of its own beside those that it is told to.
	mine := []string{p.cgroup}
	if len(cgroups(podmanCgroup)) == 0 {
		mine = append(mine, podmanCgroup)
	}
	if p.account, err = testkit.OpenAccount(p.cgroup+"-account", p.cgroup, podmanCgroup); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	err = inNamespace(func() error {
		if err := p.prepare(ctx, root); err != nil {
			return err
		}
		return p.measure(ctx, s)
	})
	return errors.Join(err, removeCgroups(mine), p.account.Close(), os.RemoveAll(dir))
}

const podmanCgroup = "libpod_parent"

// podman is podman with a directory of its own.
type podman struct {
	dir     string
	account *testkit.Account
	root    string // where the root file system is mounted
	cgroup  string // parent of the cgroups of its containers
}

// prepare mounts the root file system, and hides what crun refuses to work with:
// cgroup v2 beside v1. It must run in a mount namespace of its own.
func (p *podman) prepare(ctx context.Context, root string) error {
	if err := os.Mkdir(p.root, 0o700); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "mount", "-t", "erofs", "-o", "loop,ro", root, p.root).CombinedOutput(); err != nil { //nolint:gosec // G204: a directory of our own
		return absentError(fmt.Sprintf("mount %s: %v: %s", root, err, out))
	}
	var st unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return nil
	}
	if err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// measure makes containers. A host on which the first one fails cannot do it.
func (p *podman) measure(ctx context.Context, s *series) error {
	const name = "other"
	run := []string{
		"run", "--detach", "--name", name, "--network", "none", "--cgroup-parent", "/" + p.cgroup,
		// By default podman asks for limits that root may not have in a small VM.
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
		"--rootfs", p.root + ":O", "sleep", "infinity",
	}
	for i := range times(otherRounds) {
		err := s.cost(p.account, func() error {
			if err := p.run(ctx, run...); err != nil {
				return err
			}
			return p.run(ctx, "exec", name, "true")
		})
		remove := p.run(context.WithoutCancel(ctx), "rm", "--force", "--ignore", "--time", "0", name)
		if i == 0 && err != nil && ctx.Err() == nil {
			return errors.Join(absentError(err.Error()), remove)
		}
		if err := errors.Join(err, remove); err != nil {
			return err
		}
	}
	return nil
}

// run runs one command.
func (p *podman) run(ctx context.Context, args ...string) error {
	flags := []string{
		"--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--tmpdir", filepath.Join(p.dir, "tmp"),
		"--runtime", "crun", "--events-backend", "none", "--cgroup-manager", "cgroupfs", "--storage-driver", "overlay", "--log-level", "error",
	}
	cmd := exec.CommandContext(ctx, "podman", append(flags, args...)...) //nolint:gosec // G204: what to run is ours
	// A file: nobody waits for conmon, which keeps it open.
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.account.Command(cmd).Run(); err != nil {
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("podman %s: %w: %.500s", args[0], err, said)
	}
	return nil
}

// inNamespace calls fn on a thread with a mount namespace of its own, which the
// processes that fn starts share. The thread ends with fn, and the mounts with the
// last process.
func inNamespace(fn func() error) error {
	ended := make(chan error, 1)
	go func() { // ends with fn; its thread is never unlocked, so that nothing else runs there
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = fn()
		}
		ended <- err
	}()
	return <-ended
}

// cgroups returns the directories of a cgroup in all hierarchies.
func cgroups(name string) []string {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + name) // the patterns are well formed
	v2, _ := filepath.Glob("/sys/fs/cgroup/" + name)
	return append(v1, v2...)
}

// removeCgroups removes cgroups with all below them, whose processes have ended.
func removeCgroups(names []string) error {
	var errs []error
	for _, name := range names {
		for _, top := range cgroups(name) {
			var dirs []string
			err := filepath.WalkDir(top, func(dir string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, dir)
				}
				return err
			})
			errs = append(errs, err)
			for _, dir := range slices.Backward(dirs) {
				errs = append(errs, removeCgroup(dir))
			}
		}
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	for deadline := time.Now().Add(cgroupPatience); ; time.Sleep(lying) {
		err := unix.Rmdir(dir)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			if err != nil {
				err = fmt.Errorf("remove %s: %w", dir, err)
			}
			return err
		}
	}
}
