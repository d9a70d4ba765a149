package spawn

import (
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// birth is what the parent prepares for its child, which runs no Go code. All of
// it is on the heap, so that addresses in it stay what they are.
type birth struct {
	clone   cloneArgs
	blocked uint64 // signals that must not come while there are two in this memory
	before  uint64 // signals that were blocked when it began
	next    *call  // what the child does next
	err     uintptr

	calls [11]call // so many for a user and a terminal
	n     int

	// What calls point to.
	file, dir *byte
	argv, env []*byte
	groups    []uint32
}

// cloneArgs is what clone3 takes, in its first version. Without a stack, which
// would be in the rest, the child has that of the parent.
type cloneArgs struct {
	flags      uint64
	_          [3]uint64
	exitSignal uint64
	_          [3]uint64
}

// call is one system call of the child.
type call struct {
	number uintptr
	args   [4]uintptr
}

// fork starts a child that makes the calls, and waits until it has become
// another program or ended. It returns the pid, or minus the error.
//
// In the child, memory and stack are the parent's: it uses registers alone.
func fork(b *birth) (pid int)

// Start starts a program and returns its pid, which the caller must collect. The
// error is a [syscall.Errno]: of the first call that did not work, on the way to
// the program or for it.
func Start(file string, argv []string, a Attr) (pid int, err error) {
	b, err := prepare(file, argv, a)
	if err != nil {
		return 0, err
	}
	syscall.ForkLock.Lock()
	pid = fork(b)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(b)
	switch {
	case pid < 0:
		return 0, syscall.Errno(-pid)
	case b.err != 0: // the child has ended
		for {
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
				return 0, syscall.Errno(b.err)
			}
		}
	}
	return pid, nil
}

// prepare writes down what the child will do.
func prepare(file string, argv []string, a Attr) (b *birth, err error) {
	b = &birth{blocked: ^uint64(0)}
	b.clone.flags = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND
	b.clone.exitSignal = uint64(unix.SIGCHLD)
	if b.file, err = syscall.BytePtrFromString(file); err != nil {
		return nil, err
	}
	if b.dir, err = syscall.BytePtrFromString(a.Dir); err != nil {
		return nil, err
	}
	if b.argv, err = syscall.SlicePtrFromStrings(argv); err != nil {
		return nil, err
	}
	if b.env, err = syscall.SlicePtrFromStrings(a.Env); err != nil {
		return nil, err
	}

	if a.Terminal {
		b.call(unix.SYS_SETSID)
	} else {
		b.call(unix.SYS_SETPGID)
	}
	if a.As != nil {
		b.groups = append(slices.Clone(a.As.Groups), 0) // one more: none have an address, too
		b.call(unix.SYS_SETGROUPS, uintptr(len(a.As.Groups)), address(&b.groups[0]))
		b.call(unix.SYS_SETGID, uintptr(a.As.Gid))
		b.call(unix.SYS_SETUID, uintptr(a.As.Uid))
	}
	b.call(unix.SYS_CHDIR, address(b.dir))
	for to, from := range a.Files {
		if from < len(a.Files) {
			return nil, syscall.EBADF
		}
		b.call(unix.SYS_DUP3, uintptr(from), uintptr(to))
	}
	if a.Terminal {
		b.call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 1)
	}
	b.call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, address(&b.before), 0, unsafe.Sizeof(b.before))
	b.call(unix.SYS_EXECVE, address(b.file), address(&b.argv[0]), address(&b.env[0]))
	b.next = &b.calls[0]
	return b, nil
}

// call adds one to what the child does.
func (b *birth) call(number uintptr, args ...uintptr) {
	c := &b.calls[b.n]
	c.number = number
	copy(c.args[:], args)
	b.n++
}

// address is that of something on the heap which the birth keeps there.
func address[T any](p *T) uintptr {
	return uintptr(unsafe.Pointer(p)) //nolint:gosec // G103: the kernel is told addresses
}
