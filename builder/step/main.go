package step

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	// fdOrder and fdVerdict are the files that a step inherits.
	fdOrder   = 3
	fdVerdict = 4
	// umask is that of a login.
	umask = 0o022
	// passwdMax bounds how much of /etc/passwd is read, in bytes.
	passwdMax = 1 << 20
	// exitNotFound and exitNotRun are those of shells.
	exitNotFound = 127
	exitNotRun   = 126
)

// Main is the first process of a step. It returns only if the command does not start, with
// the exit code for the program. The caller has started nothing yet.
func Main() int {
	// The namespaces are those of the process, but capabilities and users are those of a thread.
	runtime.LockOSThread()
	syscall.CloseOnExec(fdOrder)
	syscall.CloseOnExec(fdVerdict)
	err := obey(os.NewFile(fdOrder, "order"))
	v := verdict{Error: err.Error()}
	if exit, ok := errors.AsType[*ExitError](err); ok {
		v.Code = exit.Code
	}
	_ = json.NewEncoder(os.NewFile(fdVerdict, "verdict")).Encode(v)
	return 1
}

// obey becomes the command that a file has the order for, or returns why not.
func obey(order io.Reader) error {
	var spec specs.Spec
	if err := json.NewDecoder(order).Decode(&spec); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if err := endWithBuilder(); err != nil {
		return err
	}
	if err := enter(&spec); err != nil {
		return err
	}
	home, err := homeOf(spec.Process.User.UID)
	if err != nil {
		return err
	}
	if err := limit(spec.Process.Rlimits); err != nil {
		return err
	}
	if err := become(spec.Process); err != nil {
		return err
	}
	if err := endWithBuilder(); err != nil { // a change of the user forgets it
		return err
	}
	return run(spec.Process, home)
}

// endWithBuilder has the kernel end this process with the thread that started it.
func endWithBuilder() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the builder: %w", err)
	}
	if orphaned() {
		return errors.New("the builder has ended")
	}
	return nil
}

// orphaned reports whether the builder ended before PR_SET_PDEATHSIG: the other end of the
// order is closed then.
func orphaned() bool {
	poll := []unix.PollFd{{Fd: fdOrder, Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0
}

// enter makes the root file system of the step that of this process.
func enter(spec *specs.Spec) error {
	unix.Umask(0)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace }) {
		raiseLoopback()
	}
	if spec.Hostname != "" {
		if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	// A bind mount of itself makes it one that pivot_root takes.
	if err := unix.Mount(spec.Root.Path, spec.Root.Path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind the root: %w", err)
	}
	root, err := os.OpenFile(spec.Root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	ownDevices := false
	for _, m := range spec.Mounts {
		if err := attach(int(root.Fd()), m); err != nil {
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
		ownDevices = ownDevices || path.Clean(m.Destination) == "/dev" && m.Type == "tmpfs"
	}
	if ownDevices {
		if err := makeDevices(int(root.Fd())); err != nil {
			return err
		}
	}
	if err := pivot(root); err != nil {
		return err
	}
	return shield(spec)
}

// pivot makes a directory the root, and drops the one of before: nothing of the machine is
// reachable from then on.
func pivot(root *os.File) error {
	old, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = old.Close() }()
	if err := unix.Fchdir(int(root.Fd())); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	// The root of before is stacked upon the new one.
	if err := unix.Fchdir(int(old.Fd())); err != nil {
		return fmt.Errorf("enter the root of before: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("drop the root of before: %w", err)
	}
	return unix.Chdir("/")
}

// shield hides and write-protects what the order names. It runs in the new root.
func shield(spec *specs.Spec) error {
	for _, p := range spec.Linux.ReadonlyPaths {
		err := unix.Mount(p, p, "", unix.MS_BIND|unix.MS_REC, "")
		if absent(err) {
			continue
		}
		if err == nil {
			err = unix.Mount("", p, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}
		if err != nil {
			return fmt.Errorf("write-protect %s: %w", p, err)
		}
	}
	for _, p := range spec.Linux.MaskedPaths {
		err := unix.Mount("/dev/null", p, "", unix.MS_BIND, "")
		if errors.Is(err, unix.ENOTDIR) {
			err = unix.Mount("tmpfs", p, "tmpfs", unix.MS_RDONLY, "")
		}
		if err != nil && !absent(err) {
			return fmt.Errorf("hide %s: %w", p, err)
		}
	}
	if spec.Root.Readonly {
		if err := unix.Mount("", "/", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("write-protect the root: %w", err)
		}
	}
	return nil
}

// absent reports whether a path does not exist: kernels differ in what they show in /proc.
func absent(err error) bool { return errors.Is(err, unix.ENOENT) }

// raiseLoopback makes 127.0.0.1 work in a network namespace of its own. Where the kernel
// has raised it already, there is nothing to do, and its answer does not matter.
func raiseLoopback() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo) != nil {
		return
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	_ = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// resources are the names of limits.
var resources = map[string]int{
	"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_DATA": unix.RLIMIT_DATA,
	"RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
	"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
	"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_RSS": unix.RLIMIT_RSS, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
	"RLIMIT_RTTIME": unix.RLIMIT_RTTIME, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING, "RLIMIT_STACK": unix.RLIMIT_STACK,
}

// limit sets the limits of resources.
func limit(limits []specs.POSIXRlimit) error {
	for _, l := range limits {
		resource, ok := resources[l.Type]
		if !ok {
			return fmt.Errorf("set %s: there is no such limit", l.Type)
		}
		// Go raises the number of files of its own process, and puts it back at exec.
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard}); err != nil {
			return fmt.Errorf("set %s: %w", l.Type, err)
		}
	}
	return nil
}

// homeOf returns the home directory of a user by /etc/passwd, as container engines do.
func homeOf(uid uint32) (string, error) {
	f, err := os.OpenFile("/etc/passwd", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "/", nil // an image needs no such file
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "/", err
	}
	lines := bufio.NewScanner(io.LimitReader(f, passwdMax))
	for lines.Scan() {
		// name:password:uid:gid:comment:home:shell
		fields := strings.Split(lines.Text(), ":")
		if len(fields) >= 6 && fields[2] == strconv.FormatUint(uint64(uid), 10) && fields[5] != "" {
			return fields[5], nil
		}
	}
	return "/", nil
}

// run replaces this process by the command.
func run(p *specs.Process, home string) error {
	env := p.Env
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "HOME=") && v != "HOME=" }) {
		env = append(slices.DeleteFunc(slices.Clone(env), func(v string) bool { return v == "HOME=" }), "HOME="+home)
	}
	if err := unix.Chdir(p.Cwd); err != nil {
		return &ExitError{exitNotRun, fmt.Sprintf("enter the working directory %s: %v", p.Cwd, err)}
	}
	if len(p.Args) == 0 {
		return &ExitError{exitNotFound, "there is no command"}
	}
	name, err := find(p.Args[0], env)
	if err != nil {
		return err
	}
	unix.Umask(umask)
	err = syscall.Exec(name, p.Args, env) //nolint:gosec // it is what the Dockerfile says
	code := exitNotRun
	if errors.Is(err, unix.ENOENT) {
		code = exitNotFound
	}
	return &ExitError{code, fmt.Sprintf("exec %s: %v", p.Args[0], err)}
}

// find returns the path of a command as shells find it.
func find(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, v := range slices.Backward(env) {
		list, ok := strings.CutPrefix(v, "PATH=")
		if !ok {
			continue
		}
		for dir := range strings.SplitSeq(list, ":") {
			at := path.Join("/", dir, name)
			if !strings.HasPrefix(dir, "/") {
				at = "./" + path.Join(dir, name)
			}
			if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() && unix.Access(at, unix.X_OK) == nil {
				return at, nil
			}
		}
		break
	}
	return "", &ExitError{exitNotFound, fmt.Sprintf("exec %q: executable file not found in $PATH", name)}
}
