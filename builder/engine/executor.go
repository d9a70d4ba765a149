package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/containerd/containerd/v2/core/mount"
	containerdoci "github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/continuity/fs"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/buildkit/executor"
	"github.com/moby/buildkit/executor/oci"
	resources "github.com/moby/buildkit/executor/resources/types"
	gateway "github.com/moby/buildkit/frontend/gateway/pb"
	"github.com/moby/buildkit/identity"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/buildkit/util/network"
	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/time/rate"

	"github.com/dozehq/doze/builder/progress"
	"github.com/dozehq/doze/builder/step"
)

const (
	// outputRate is how fast a step may write, in bytes in a second. A faster one waits: what
	// BuildKit has not passed on yet is in memory.
	outputRate = 4 << 20
	// outputBurst is how much it may write at once.
	outputBurst = 1 << 20
	// fullPart is the part of a full disk that no file was large enough for.
	fullPart = 200
	// resolvConf has the name servers of the machine.
	resolvConf = "/etc/resolv.conf"
)

// steps runs the steps of Dockerfiles by package step.
type steps struct {
	dir     string // of the directories of steps
	program []string
	ballast ballast
}

var _ executor.Executor = (*steps)(nil)

// Exec is for containers of frontends that debug. There is none.
func (*steps) Exec(context.Context, string, executor.ProcessInfo) error {
	return errors.New("the builder starts no second process in a step")
}

// Run runs a step.
func (x *steps) Run(ctx context.Context, id string, root executor.Mount, mounts []executor.Mount, p executor.ProcessInfo, started chan<- struct{}) (_ resources.Recorder, err error) {
	if id == "" {
		id = identity.NewID()
	}
	dir := filepath.Join(x.dir, id)
	rootfs := filepath.Join(dir, "r")
	if err := os.MkdirAll(rootfs, 0o711); err != nil { //nolint:gosec // users other than root pass through it
		return nil, err
	}
	defer x.ballast.drop() // what the step wrote is deleted next
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	unmount, err := mountRoot(ctx, root, rootfs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unmount()) }()
	defer executor.MountStubsCleaner(context.WithoutCancel(ctx), rootfs, mounts, p.Meta.RemoveMountStubsRecursive)()
	spec, release, err := x.spec(ctx, id, dir, rootfs, mounts, p.Meta)
	if err != nil {
		return nil, err
	}
	defer release()
	spec.Root.Readonly = spec.Root.Readonly || root.Readonly
	err = x.run(ctx, spec, p, started)
	exit, ok := errors.AsType[*step.ExitError](err)
	switch {
	case !ok:
		return nil, err
	case slices.Contains(p.Meta.ValidExitCodes, exit.Code):
		return nil, nil
	}
	err = exit
	if full(dir) {
		err = fmt.Errorf("%w: %w", exit, syscall.ENOSPC)
	}
	return nil, &gateway.ExitError{ExitCode: uint32(exit.Code), Err: err} //nolint:gosec // 0 to 255
}

// full reports whether a file system has less than a part in fullPart left. Commands often
// hide why they cannot write.
func full(dir string) bool {
	size, free, err := disk(dir)
	return err == nil && free < size/fullPart
}

// mountRoot mounts the root file system of a step.
func mountRoot(ctx context.Context, root executor.Mount, at string) (unmount func() error, err error) {
	ref, err := root.Src.Mount(ctx, false)
	if err != nil {
		return nil, err
	}
	mounts, release, err := ref.Mount()
	if err != nil {
		return nil, err
	}
	if release == nil {
		release = func() error { return nil }
	}
	if err := mount.All(mounts, at); err != nil {
		return nil, errors.Join(fmt.Errorf("mount the root: %w", err), release())
	}
	return func() error { return errors.Join(mount.UnmountAll(at, 0), release()) }, nil
}

// spec is a step in the words of the OCI's runtime specification. BuildKit writes it, as it
// does for runc.
func (x *steps) spec(ctx context.Context, id, dir, rootfs string, mounts []executor.Mount, meta executor.Meta) (*specs.Spec, func(), error) {
	uid, gid, groups, err := oci.GetUser(rootfs, meta.User)
	if err != nil {
		return nil, nil, err
	}
	own, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = own.Close() }()
	// The file ends with the directory.
	hosts, _, err := oci.GetHostsFile(ctx, own, meta.ExtraHosts, nil, meta.Hostname)
	if err != nil {
		return nil, nil, err
	}
	options := []containerdoci.SpecOpts{oci.WithUIDGID(uid, gid, groups)}
	if meta.ReadonlyRootFS {
		options = append(options, containerdoci.WithRootFSReadonly())
	}
	alone := meta.NetMode == pb.NetMode_NONE
	spec, release, err := oci.GenerateSpec(ctx, meta, mounts, id, x.resolvConf(dir), filepath.Join(dir, hosts), netns{alone: alone}, "", oci.ProcessSandbox, nil, "", false, "", nil, options...)
	if err != nil {
		return nil, nil, err
	}
	spec.Root.Path = rootfs
	cwd, err := fs.RootPath(rootfs, meta.Cwd)
	if err == nil {
		err = user.MkdirAllAndChown(cwd, 0o755, int(uid), int(gid), user.WithOnlyNew)
	}
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("make the working directory %s: %w", meta.Cwd, err)
	}
	return spec, release, nil
}

// resolvConf returns the file with the name servers for a step.
func (x *steps) resolvConf(dir string) string {
	if _, err := os.Stat(resolvConf); err == nil {
		return resolvConf
	}
	none := filepath.Join(dir, "resolv.conf")
	_ = os.WriteFile(none, nil, 0o644) //nolint:gosec // without it, the mount of it fails and says so
	return none
}

// run runs a step within its bounds.
func (x *steps) run(ctx context.Context, spec *specs.Spec, p executor.ProcessInfo, started chan<- struct{}) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	m := &meter{ctx: ctx, end: end, limiter: rate.NewLimiter(outputRate, outputBurst)}
	o := step.Options{
		Spec: spec, Stdout: m.of(p.Stdout), Stderr: m.of(p.Stderr), Program: x.program,
		Alone: p.Meta.NetMode == pb.NetMode_NONE,
		Started: func() {
			if started != nil {
				close(started)
			}
		},
	}
	if p.Stdin != nil {
		o.Stdin = p.Stdin
	}
	return step.Run(ctx, o)
}

// netns says which network a step has. It writes no path: package step makes the namespace, or
// the step has that of the machine.
type netns struct {
	alone bool
}

var _ network.Namespace = netns{}

// Set implements [network.Namespace].
func (n netns) Set(s *specs.Spec) error {
	rest := make([]specs.LinuxNamespace, 0, len(s.Linux.Namespaces))
	for _, ns := range s.Linux.Namespaces {
		if ns.Type != specs.NetworkNamespace {
			rest = append(rest, ns)
		}
	}
	if n.alone {
		rest = append(rest, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	s.Linux.Namespaces = rest
	return nil
}

// Close implements [network.Namespace].
func (netns) Close() error { return nil }

// Sample implements [network.Namespace].
func (netns) Sample() (*resources.NetworkSample, error) { return nil, nil }

// meter bounds the output of a step.
type meter struct {
	ctx     context.Context //nolint:containedctx // of the step, for as long as it writes
	end     context.CancelCauseFunc
	limiter *rate.Limiter
	bytes   atomic.Int64
}

// of returns a writer within the bounds.
func (m *meter) of(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	return metered{m, w}
}

// metered is one stream.
type metered struct {
	m *meter
	w io.Writer
}

func (w metered) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), outputBurst)]
		if w.m.bytes.Add(int64(len(part))) > buildapi.OutputMax {
			w.m.end(progress.ErrOutput)
			return n, progress.ErrOutput
		}
		if err := w.m.limiter.WaitN(w.m.ctx, len(part)); err != nil {
			return n, err
		}
		wrote, err := w.w.Write(part)
		n += wrote
		if err != nil {
			return n, err
		}
		p = p[len(part):]
	}
	return n, nil
}
