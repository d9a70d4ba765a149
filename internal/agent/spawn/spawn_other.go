//go:build !amd64

package spawn

import "syscall"

// Start starts a program and returns its pid, which the caller must collect. The
// error is a [syscall.Errno]: of the first call that did not work, on the way to
// the program or for it.
func Start(file string, argv []string, a Attr) (pid int, err error) {
	return syscall.ForkExec(file, argv, &syscall.ProcAttr{
		Dir:   a.Dir,
		Env:   a.Env,
		Files: []uintptr{uintptr(a.Files[0]), uintptr(a.Files[1]), uintptr(a.Files[2])},
		Sys:   &syscall.SysProcAttr{Setpgid: !a.Terminal, Setsid: a.Terminal, Setctty: a.Terminal, Credential: a.As},
	})
}
