package step

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// resolveTries is how often a path is looked up while somebody renames directories.
const resolveTries = 32

// flags are the options of mounts that are flags.
var flags = map[string]uintptr{
	"bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID,
	"nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME,
	"relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME, "sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
}

// defaults are options that change nothing here: all mounts of a step are private, and
// what is not forbidden is allowed.
var defaults = []string{
	"defaults", "rw", "suid", "dev", "exec", "atime", "diratime", "async",
	"private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable",
}

// ignored are file systems that a step can do without: the machine limits it as a whole, and
// not by control groups of its own.
var ignored = []string{"cgroup", "cgroup2"}

// parse splits the options of a mount into its flags and its data.
func parse(options []string) (flag uintptr, data string) {
	var rest []string
	for _, o := range options {
		switch f, ok := flags[o]; {
		case ok:
			flag |= f
		case !slices.Contains(defaults, o):
			rest = append(rest, o)
		}
	}
	return flag, strings.Join(rest, ",")
}

// attach mounts something in a root. Its destination is looked up in that root: symbolic
// links lead nowhere else, even if another step changes them meanwhile.
func attach(root int, m specs.Mount) error {
	if slices.Contains(ignored, m.Type) {
		return nil
	}
	flag, data := parse(m.Options)
	if flag&unix.MS_BIND != 0 || m.Type == "bind" {
		return bind(root, m, flag)
	}
	at, err := place(root, m.Destination, true)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	err = unix.Mount(m.Source, pathOf(at), m.Type, flag, data)
	if m.Type == "mqueue" && (errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM)) {
		return nil // not every kernel has it, and few programs use it
	}
	return err
}

// bind mounts a directory or a file of the machine.
func bind(root int, m specs.Mount, flag uintptr) error {
	source, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", m.Source, err)
	}
	defer func() { _ = unix.Close(source) }()
	var want unix.Stat_t
	if err := unix.Fstat(source, &want); err != nil {
		return err
	}
	at, err := place(root, m.Destination, want.Mode&unix.S_IFMT == unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }()
	if err := unix.Mount(pathOf(source), pathOf(at), "", unix.MS_BIND|flag&unix.MS_REC, ""); err != nil {
		return err
	}
	rest := flag &^ (unix.MS_BIND | unix.MS_REC)
	if rest == 0 {
		return nil
	}
	// The flags are those of the mount, which is upon the directory that was opened before.
	top, err := resolve(root, m.Destination)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(top) }()
	var got unix.Stat_t
	if err := unix.Fstat(top, &got); err != nil {
		return err
	}
	if got.Dev != want.Dev || got.Ino != want.Ino {
		return errors.New("another step moved it meanwhile")
	}
	return unix.Mount("", pathOf(top), "", unix.MS_BIND|unix.MS_REMOUNT|rest, "")
}

// pathOf is a path to an open file.
func pathOf(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// resolve opens a path in a root, as its name only. The kernel stays in the root.
func resolve(root int, name string) (fd int, err error) {
	for range resolveTries {
		fd, err = unix.Openat2(root, name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) { // somebody renames
			return fd, err
		}
	}
	return fd, err
}

// place opens a path in a root, as its name only, and makes what is missing of it: directories,
// or a file at the end.
func place(root int, name string, dir bool) (int, error) {
	at, err := resolve(root, "/")
	if err != nil {
		return 0, err
	}
	clean := path.Clean("/" + name)
	if clean == "/" {
		return at, nil
	}
	parts := strings.Split(clean[1:], "/")
	for i, part := range parts {
		next, err := step(root, at, "/"+strings.Join(parts[:i+1], "/"), part, dir || i < len(parts)-1)
		_ = unix.Close(at)
		if err != nil {
			return 0, err
		}
		at = next
	}
	return at, nil
}

// step opens what a directory has under a name, and makes it if there is nothing.
func step(root, at int, whole, name string, dir bool) (int, error) {
	fd, err := resolve(root, whole)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if dir {
		err = unix.Mkdirat(at, name, 0o755)
	} else {
		var made int
		if made, err = unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, 0o644); err == nil {
			_ = unix.Close(made)
		}
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return 0, fmt.Errorf("%s is a symbolic link that leads nowhere", whole)
	case err != nil:
		return 0, fmt.Errorf("make %s: %w", whole, err)
	}
	return resolve(root, whole)
}

// nodes are the devices that every step has.
var nodes = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

// links are the names in /dev that lead elsewhere.
var links = [][2]string{
	{"fd", "/proc/self/fd"},
	{"stdin", "/proc/self/fd/0"},
	{"stdout", "/proc/self/fd/1"},
	{"stderr", "/proc/self/fd/2"},
	{"core", "/proc/kcore"},
	{"ptmx", "pts/ptmx"},
}

// makeDevices fills a fresh /dev.
func makeDevices(root int) error {
	dev, err := resolve(root, "/dev")
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dev) }()
	for _, n := range nodes {
		err := unix.Mknodat(dev, n.name, unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor))) //nolint:gosec // small numbers
		if errors.Is(err, unix.EPERM) {                                                         // no right to make devices: that of the machine does
			err = attach(root, specs.Mount{Destination: "/dev/" + n.name, Source: "/dev/" + n.name, Type: "bind", Options: []string{"bind"}})
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make /dev/%s: %w", n.name, err)
		}
	}
	for _, l := range links {
		if err := unix.Symlinkat(l[1], dev, l[0]); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make /dev/%s: %w", l[0], err)
		}
	}
	return nil
}
