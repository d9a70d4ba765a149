package process

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/output"
	"github.com/dozehq/doze/internal/agent/pump"
	"github.com/dozehq/doze/internal/agent/spawn"
)

// attempt is one start of a command. A process has several if it restarts.
type attempt struct {
	*child.Child
	pumps    [2]*pump.Pump
	stdin    *os.File // nil without one
	deadline *time.Timer
}

// try runs c in a process group of its own. Every error is Unprocessable and
// says what is missing.
func try(l *child.Launcher, c *command.Spec, out *output.Output) (_ *attempt, err error) {
	dir := l.In(c.WorkingDir)
	info, err := os.Stat(dir) //nolint:gosec // G703: callers run commands where they like
	if errors.Is(err, fs.ErrNotExist) {
		return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s' because folder '%s' does not exist", c.Command, cmp.Or(c.WorkingDir, dir))
	}
	if err != nil || !info.IsDir() {
		return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s' because '%s' is not a folder", c.Command, cmp.Or(c.WorkingDir, dir))
	}
	as, err := l.User.Credential()
	if err != nil {
		return nil, err
	}
	invocations, err := c.Invocations(dir, l.Vars.List())
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
	for _, s := range output.Streams {
		p, fd, err := pump.New(func(b []byte) { out.Write(s, b) })
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
	for _, invocation := range invocations {
		a.Child, err = l.Children.Start(invocation.File, invocation.Argv, spawn.Attr{Dir: dir, Env: invocation.Env, Files: [3]int(files), As: as})
		if err == nil {
			return a, nil
		}
	}
	return nil, doze.Wrap(err, doze.Unprocessable, "could not execute command '%s' with %s in %s: %v", mistake.Clip(c.Command), invocations[len(invocations)-1].File, mistake.Clip(dir), err)
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
			p.Close() // nothing was read
		}
	}
	if a.stdin != nil {
		_ = a.stdin.Close() // nobody reads it
	}
}
