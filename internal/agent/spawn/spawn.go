// Package spawn starts programs. It does what [syscall.ForkExec] does, with ten
// system calls instead of seventy: these are much of what a short command costs
// in a sandbox, where each takes 10 µs. The library makes one for every signal, so
// that the child forgets what is done about it, and has a pipe for the error of
// the child; here the kernel forgets all handlers at once, and the error is in
// memory that both have.
//
// It is for a process that has its descriptors 0 to 2 open, and all others
// closed on exec. Limits of resources are inherited as they are now.
package spawn

import "syscall"

// Attr is what a program starts with.
type Attr struct {
	Dir   string
	Env   []string
	Files [3]int // its stdin, stdout and stderr; each above 2
	// As is its user; nil means that of this process.
	As *syscall.Credential
	// Terminal makes it the leader of a session whose terminal is its stdin. If
	// not set, it is the leader of a process group.
	Terminal bool
}
