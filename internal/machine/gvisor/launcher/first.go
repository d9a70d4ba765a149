package launcher

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// Linux lets no process of a PID namespace harm the first one. From within the
// namespace, the first process gets no signal without a handler, and so neither SIGKILL
// nor SIGSTOP (signal(7), sig_task_ignored in kernel/signal.c). gVisor has no such
// rule, and a machine ends with its first process. So the engine's process has the
// rule.
//
// A filter of system calls in the guest could have it too, but gVisor runs a
// filter for each of 500 system calls at each start of a process or thread.

// firstSignals are the system calls that send a signal to what they name, and
// where they name the task and the signal.
var firstSignals = []struct {
	call   string
	signal int // which argument
	target func(t *kernel.Task, args arch.SyscallArguments) *kernel.Task
}{
	{"kill", 1, named(0)},
	{"rt_sigqueueinfo", 1, named(0)},
	{"tkill", 1, named(0)},
	{"tgkill", 2, named(1)},
	{"rt_tgsigqueueinfo", 2, named(1)},
	{"pidfd_send_signal", 1, opened},
}

// firstID is the number of the first process in its namespace.
const firstID kernel.ThreadID = 1

// GuardFirst makes the engine's process keep the rule of Linux for the first
// process of a PID namespace. It is called before gVisor's own main.
func GuardFirst() {
	calls := map[string]wrapper{}
	for _, c := range firstSignals {
		calls[c.call] = func(call kernel.SyscallFn) kernel.SyscallFn {
			return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				if ignores(t, c.target(t, args), linux.Signal(args[c.signal].Int())) {
					return 0, nil, nil
				}
				return call(t, sysno, args)
			}
		}
	}
	wrap(calls)
}

// named returns the task whose number is an argument.
func named(arg int) func(*kernel.Task, arch.SyscallArguments) *kernel.Task {
	return func(t *kernel.Task, args arch.SyscallArguments) *kernel.Task {
		return t.PIDNamespace().TaskWithID(kernel.ThreadID(args[arg].Int()))
	}
}

// opened returns the task that a descriptor is of.
func opened(t *kernel.Task, args arch.SyscallArguments) *kernel.Task {
	file := t.GetFile(args[0].Int())
	if file == nil {
		return nil
	}
	defer file.DecRef(t)
	target, err := kernel.PIDFDTask(file)
	if err != nil {
		return nil // or it is no such descriptor
	}
	return target
}

// ignores reports whether target is of the first process in the namespace of t,
// which may signal it, and has no handler for sig. For those of other namespaces
// it is a process like any other.
func ignores(t, target *kernel.Task, sig linux.Signal) bool {
	if target == nil || !sig.IsValid() {
		return false // it says so
	}
	process := target.ThreadGroup()
	if t.PIDNamespace().IDOfThreadGroup(process) != firstID || !t.MayKill(target, sig) {
		return false
	}
	action, err := process.SetSigAction(sig, nil)
	return err == nil && action.Handler == linux.SIG_DFL
}
