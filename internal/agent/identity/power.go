package identity

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/etc"
	"github.com/dozehq/doze/internal/agent/mistake"
)

// power is a capability that only the first process of a sandbox ever has. It is for
// setting the host name and the id of the boot. It is given up before the first command
// can run, except in a machine that builds images or runs containers.
type power struct {
	stays bool // it is not given up

	mu   sync.Mutex
	held bool // guarded by mu; it was not spent yet
}

// spend names the host, unless name is empty or the host's name already, and
// gives the power up, unless it stays. Later calls do nothing.
func (p *power) spend(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.held {
		return nil
	}
	if name != "" && name != etc.Hostname() {
		if err := unix.Sethostname([]byte(name)); err != nil {
			return doze.Wrap(err, doze.Invalid, "the sandbox cannot be called %q: %v", mistake.Clip(name), err)
		}
	}
	if err := renewBoot(); err != nil {
		slog.Warn("the boot has the id of the machine that this one began as", "err", err)
	}
	if !p.stays {
		if err := relinquish(unix.CAP_SYS_ADMIN); err != nil {
			return fmt.Errorf("give up a capability: %w", err) // and nobody is let in
		}
	}
	p.held = false
	return nil
}

// bootID is the file that tells one boot of a machine from another. bootCover has its
// new content for a moment, in memory that goes with the machine.
const (
	bootID    = "/proc/sys/kernel/random/boot_id"
	bootCover = "/dev/shm/.boot_id"
)

// renewBoot gives this machine an id of its boot that is its own. It may be a copy
// of another one, whose engine answers what it made up for that.
func renewBoot() error {
	fresh, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	if err := os.WriteFile(bootCover, fresh, 0o444); err != nil { //nolint:gosec // G306: everybody may read what it covers
		return err
	}
	if err = unix.Mount(bootCover, bootID, "", unix.MS_BIND, ""); err == nil {
		err = unix.Mount("", bootID, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "") // root cannot write to it either
	}
	return errors.Join(err, os.Remove(bootCover))
}

// relinquish takes a capability from every thread of this process and from
// whatever they start.
func relinquish(capability uintptr) error {
	const bits = 32
	header, data, err := capabilities()
	if err != nil {
		return err
	}
	set := &data[capability/bits]
	for _, field := range []*uint32{&set.Effective, &set.Permitted, &set.Inheritable} {
		*field &^= 1 << (capability % bits)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, capability, 0); errno != 0 {
		return errno
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0) //nolint:gosec // G103: the kernel only reads both
	if errno != 0 {
		return errno
	}
	return nil
}

// capabilities returns those of this process, in the form of the kernel.
func capabilities() (header unix.CapUserHeader, data [2]unix.CapUserData, err error) {
	header.Version = unix.LINUX_CAPABILITY_VERSION_3
	err = unix.Capget(&header, &data[0])
	return header, data, err
}
