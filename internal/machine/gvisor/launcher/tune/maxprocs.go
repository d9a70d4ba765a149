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

	// extra processors of the Go scheduler during a start, a save and a restore.
	// Goroutines in plain blocking system calls keep theirs until the monitor takes
	// it away, up to 10 ms later.
	extra = 2

	// calmExtra is how many it has besides while the guest runs. A goroutine that waits for
	// the guest keeps one, as above. The scheduler wakes a thread for each that has no work.
	// With three of them, a query of PostgreSQL takes 40 percent more of the host.
	calmExtra = 1
)

// pinProcessors sets GOMAXPROCS itself. Otherwise gVisor raises it by 128 for every file
// of memory pages it reads or writes. That stops the world and starts as many garbage
// collectors.
func pinProcessors() {
	temporaryProcessors = never
	runtime.GOMAXPROCS(processors(false, guestProcessors(os.Args), runtime.NumCPU()))
}

// processors is how many the scheduler has, of a guest and a host with so many.
func processors(calm bool, guest, host int) int {
	if !calm {
		return guest + extra
	}
	return min(guest, host) + calmExtra
}

// guestProcessors is how many the guest has, by the arguments of its engine. Without any,
// it is as many as the host has.
func guestProcessors(args []string) int {
	n := runtime.NumCPU()
	for _, arg := range args {
		if v, ok := strings.CutPrefix(arg, "--cpu-num="); ok {
			if guest, err := strconv.Atoi(v); err == nil && guest > 0 {
				n = guest
			}
		}
	}
	return n
}
