package launcher

import (
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

// wrapper puts something around a system call.
type wrapper func(kernel.SyscallFn) kernel.SyscallFn

// wrap puts something around system calls, by name, of the engine that this process
// becomes.
func wrap(calls map[string]wrapper) {
	for _, table := range []*kernel.SyscallTable{linux.AMD64, linux.ARM64} {
		for name, with := range calls {
			number, err := table.LookupNo(name)
			if err != nil {
				panic(err) // a name of ours that gVisor does not know
			}
			call := table.Table[number]
			call.Fn = with(call.Fn)
			table.Table[number] = call
		}
		table.Init() // again, so that they are found
	}
}
