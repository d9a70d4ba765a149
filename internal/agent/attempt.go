package agent

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/spawn"
)

// attempt is one start of a command. A process has several if it restarts.
type attempt struct {
	*child
	pumps [2]*pump
	stdin *os.File // nil without one
	alarm *time.Timer
}

// try runs c in a process group of its own. Every error is Unprocessable and
// says what is missing.
func try(l *launcher, c *command, out *output) (_ *attempt, err error) {
	dir := l.dir(c.WorkingDir)
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s' because folder '%s' does not exist", c.Command, cmp.Or(c.WorkingDir, dir))
	}
	if err != nil || !info.IsDir() {
		return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s' because '%s' is not a folder", c.Command, cmp.Or(c.WorkingDir, dir))
	}
	as, err := l.who.credential()
	if err != nil {
		return nil, err
	}
	ways, err := c.invocations(dir, l.vars.list())
	if err != nil {
		return nil, err
	}

	a := &attempt{}
	files := make([]int, 0, 3)
	defer func() {
		for _, fd := range files {
			_ = syscall.Close(fd) // the child has its own
		}
		if err != nil {
			a.discard()
		}
	}()
	in, err := a.openStdin(c.Stdin)
	if err != nil {
		return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s': %v", c.Command, err)
	}
	files = append(files, in)
	for _, s := range streams {
		p, fd, err := newPump(func(b []byte) { out.write(s, b) })
		if err != nil {
			return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s': %v", c.Command, err)
		}
		a.pumps[s] = p
		files = append(files, fd)
	}
	if as != nil {
		own := files
		if !c.Stdin {
			own = files[1:] // the first is /dev/null
		}
		for _, fd := range own {
			_ = syscall.Fchown(fd, int(as.Uid), int(as.Gid)) // best effort: programs open /dev/stdout, too
		}
	}
	for _, way := range ways {
		a.child, err = l.children.start(way.file, way.argv, spawn.Attr{Dir: dir, Env: way.env, Files: [3]int(files), As: as})
		if err == nil {
			return a, nil
		}
	}
	return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s' with %s in %s: %v", clip(c.Command), ways[len(ways)-1].file, clip(dir), err)
}

// openStdin returns the end for the child.
func (a *attempt) openStdin(writable bool) (int, error) {
	if !writable {
		return syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	}
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return 0, err
	}
	if err := syscall.SetNonblock(fds[1], true); err != nil {
		_ = syscall.Close(fds[0])
		_ = syscall.Close(fds[1])
		return 0, err
	}
	a.stdin = os.NewFile(uintptr(fds[1]), "stdin")
	return fds[0], nil
}

// discard closes our ends after a start that failed.
func (a *attempt) discard() {
	for _, p := range a.pumps {
		if p != nil {
			p.close() // nothing was read
		}
	}
	if a.stdin != nil {
		_ = a.stdin.Close() // nobody reads it
	}
}
