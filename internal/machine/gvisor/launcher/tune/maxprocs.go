package tune

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	_ "unsafe" // go:linkname

	_ "gvisor.dev/gvisor/pkg/gomaxprocs" // owns the variable below
)

//go:linkname temporaryProcessors gvisor.dev/gvisor/pkg/gomaxprocs.temp
var temporaryProcessors int

const (
	// never is so negative that no request of gVisor makes a sum that it
	// would pass on to the runtime.
	never = -1 << 30

	// extra processors of the Go scheduler: goroutines in plain blocking
	// system calls keep theirs until the monitor takes it away, up to 10 ms
	// later.
	extra = 2
)

// pinProcessors sets GOMAXPROCS once to the processors of the guest. Otherwise gVisor
// raises it by 128 for every file of memory pages it reads or writes. That stops the
// world and starts as many garbage collectors.
func pinProcessors() {
	temporaryProcessors = never
	n := runtime.NumCPU()
	for _, arg := range os.Args {
		if v, ok := strings.CutPrefix(arg, "--cpu-num="); ok {
			if guest, err := strconv.Atoi(v); err == nil && guest > 0 {
				n = guest
			}
		}
	}
	runtime.GOMAXPROCS(n + extra)
}
