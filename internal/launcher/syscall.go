package launcher

import (
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

// wrap puts something around a system call of the engine that this process
// becomes.
func wrap(name string, with func(kernel.SyscallFn) kernel.SyscallFn) {
	for _, table := range []*kernel.SyscallTable{linux.AMD64, linux.ARM64} {
		number, err := table.LookupNo(name)
		if err != nil {
			panic(err) // a name of ours that gVisor does not know
		}
		call := table.Table[number]
		call.Fn = with(call.Fn)
		table.Table[number] = call
		table.Init() // again, so that it is found
	}
}
