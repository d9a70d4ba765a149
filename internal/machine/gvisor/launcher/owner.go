package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine/hostproc"
)

// The engine's process of each machine has a user and a group of the host that
// nobody else has, and no capability. An escape from a guest then finds a
// process that owns nothing, not even the processes of other machines.

const (
	// owners are the users of the host that machines lease. systemd assigns
	// this range to nobody, and no known system creates users in it.
	ownerFirst, ownerCount = 0x70000000, 0x0e000000
	// ownerTries bounds the search for a free user. The range holds thousands
	// of times more than a host has machines.
	ownerTries = 1000
	// dirOwners is beside the run directories of all launchers of a node. It
	// has a symbolic link for each user that is leased, to a file in the
	// machine's bundle whose name is fileOwner and the user.
	dirOwners = "owners"
	fileOwner = "owner-"
)

// owners is the directory of leases.
func (l *Launcher) owners() string {
	return filepath.Join(filepath.Dir(filepath.Clean(l.options.Run)), dirOwners)
}

// releaseOwner ends the leases of a machine whose processes are gone.
func (l *Launcher) releaseOwner(id string) error {
	files, err := filepath.Glob(filepath.Join(l.bundle(id), fileOwner+"*"))
	for _, file := range files {
		name := filepath.Join(l.owners(), strings.TrimPrefix(filepath.Base(file), fileOwner))
		if gone := os.Remove(name); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// leaseOwner returns a user for the machine of a bundle, which exists. The lease ends
// with the bundle.
func (l *Launcher) leaseOwner(id string) (uid int, err error) {
	dir := l.owners()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, fmt.Errorf("lease a user: %w", err)
	}
	lock, err := os.Open(dir)
	if err != nil {
		return 0, fmt.Errorf("lease a user: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // the launchers of other engines lease here too
		return 0, fmt.Errorf("lease a user: %w", err)
	}
	bundle, err := filepath.Abs(l.bundle(id))
	if err != nil {
		return 0, fmt.Errorf("lease a user: %w", err)
	}
	for range ownerTries {
		// The choice is random so that two nodes of one host choose differently.
		uid := ownerFirst + rand.IntN(ownerCount) //nolint:gosec // G404: it is no secret
		name := strconv.Itoa(uid)
		err := leaseLink(filepath.Join(bundle, fileOwner+name), filepath.Join(dir, name))
		if !errors.Is(err, fs.ErrExist) {
			return uid, err
		}
	}
	return 0, errors.New("lease a user: no user of the host is free")
}

// leaseLink makes name point to a new file, unless it points to another one that
// exists.
func leaseLink(file, name string) error {
	err := os.Symlink(file, name)
	if errors.Is(err, fs.ErrExist) {
		if _, gone := os.Stat(name); !errors.Is(gone, fs.ErrNotExist) {
			return err
		}
		err = errors.Join(os.Remove(name), os.Symlink(file, name))
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, nil, 0o600)
}

// sweepOwners removes the leases of machines that are gone.
func (l *Launcher) sweepOwners() error {
	dir := l.owners()
	lock, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	names, err := lock.Readdirnames(-1)
	for _, name := range names {
		name = filepath.Join(dir, name)
		if _, gone := os.Stat(name); errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}

// asOwner runs do on a thread whose real user and group are uid. The thread
// keeps all its power, which comes from its effective user. gVisor, in its
// rootless mode, maps the engine's process to the real user of the thread that
// creates it.
func asOwner(uid int, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		const same = ^uintptr(0)
		// Of this thread alone: the functions of package syscall change all threads.
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, uintptr(uid), same, same); errno != 0 {
				done <- fmt.Errorf("become user %d: %w", uid, errno)
				return
			}
		}
		done <- hostproc.Guard(do)
	}()
	return <-done
}

// mapUsers writes the mappings of users and groups into a spec. Every checkpoint of a
// machine has them, and the engine compares.
func mapUsers(spec *specs.Linux) (err error) {
	spec.Namespaces = append(spec.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	if spec.UIDMappings, err = users(); err != nil {
		return err
	}
	spec.GIDMappings, err = userGroups()
	return err
}

// users and userGroups are those that there are. They never change: they are of the
// namespace that the launcher was started in.
var (
	users      = sync.OnceValues(func() ([]specs.LinuxIDMapping, error) { return everybody("uid_map") })
	userGroups = sync.OnceValues(func() ([]specs.LinuxIDMapping, error) { return everybody("gid_map") })
)

// everybody maps all users, or groups, to themselves. The process that opens
// files of volumes has a user namespace of its own with this mapping, so that it
// has power over those files and none over the host.
func everybody(file string) (all []specs.LinuxIDMapping, err error) {
	raw, err := os.ReadFile(filepath.Join("/proc/self", file))
	if err != nil {
		return nil, fmt.Errorf("read the users that there are: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		var first, outside, count uint32
		if _, err := fmt.Sscan(line, &first, &outside, &count); err != nil {
			return nil, fmt.Errorf("read the users that there are: %q: %w", line, err)
		}
		all = append(all, specs.LinuxIDMapping{ContainerID: first, HostID: first, Size: count})
	}
	return all, nil
}
