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

	// extra processors of the Go scheduler during a start, a save and a restore:
	// goroutines in plain blocking system calls keep theirs until the monitor takes
	// it away, up to 10 ms later.
	extra = 2

	// spare processors of it while the guest runs. Whoever waits for the guest keeps one, as
	// above. Each one without work has the scheduler wake a thread that looks for some: with
	// three of them, a query of PostgreSQL on loopback takes 40 percent more of the host.
	spare = 1
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
	return min(guest, host) + spare
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
