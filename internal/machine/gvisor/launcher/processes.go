package launcher

import (
	"os"
	_ "unsafe" // go:linkname

	_ "gvisor.dev/gvisor/pkg/sentry/kernel" // owns the variable below
)

// ProcessesMost is how many processes a guest may have. Each has a seccomp filter on
// the host. Linux 6.18 stands still for good when it frees 1,024 filters at once, as
// it does when all processes of a machine end together.
const ProcessesMost = 800

// processesMost is what the guest's kernel looks at, as package patch changes it. A
// gVisor without that change has no bound.
//
//go:linkname processesMost gvisor.dev/gvisor/pkg/sentry/kernel.processesMost
var processesMost int

// BoundProcesses makes the engine's process refuse its guest a process too many. It is
// called before gVisor's own main.
func BoundProcesses() {
	processesMost = ProcessesMost
	spec, ok := inheritedSpec(os.Args)
	if ok && spec.Linux != nil && spec.Linux.Resources != nil && spec.Linux.Resources.Pids != nil {
		if limit := spec.Linux.Resources.Pids.Limit; limit > 0 && limit < ProcessesMost {
			processesMost = int(limit)
		}
	}
}
