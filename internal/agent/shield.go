package agent

import (
	"os"
	"os/signal"
	"syscall"
)

// Linux lets nobody in a PID namespace harm its first process by a signal that
// it does not handle, and the engine keeps that rule. But Go's runtime handles
// all that it can, and ends the process by most of them. So the first process
// handles these, by nothing.

// harmless are the signals that would end or stop the first process. Those that
// its own mistakes raise still do.
var harmless = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS,
	syscall.SIGFPE, syscall.SIGUSR1, syscall.SIGSEGV, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGTERM, syscall.SIGSTKFLT,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGVTALRM, syscall.SIGPROF,
	syscall.SIGIO, syscall.SIGPWR, syscall.SIGSYS,
}

// Shield keeps the signals of other processes from ending this one, which is the
// first of its namespace.
func Shield() {
	ignored := make(chan os.Signal, 1) // a signal that does not fit in is ignored too
	signal.Notify(ignored, harmless...)
}
