package daemon

import (
	"os"
	"runtime/debug"
)

const (
	// memoryShare is the part of the host beyond which a process collects garbage as
	// often as it takes. The rest belongs to sandboxes.
	memoryShare = 8
	// memoryMin is what a process may have on a small host: dozed takes 40 MB when
	// idle.
	memoryMin = 256 << 20
)

// BoundMemory limits the memory of this process on a host with so many bytes, unless
// the operator did so with GOMEMLIMIT. It is a soft limit: memory in use stays.
func BoundMemory(host int64) {
	if os.Getenv("GOMEMLIMIT") != "" { //nolint:forbidigo // this is the place
		return
	}
	debug.SetMemoryLimit(max(host/memoryShare, memoryMin))
}
