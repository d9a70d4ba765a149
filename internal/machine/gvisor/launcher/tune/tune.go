// Package tune prepares a gVisor sandbox process, before gVisor's own main,
// for a fast start and restore. Each measure fails soft: without it a sandbox
// is slower and otherwise the same.
package tune

import (
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// gcPercent lets the heap of a sandbox grow to 4 MiB × gcPercent/100 before
// the first collection: a restore then runs none.
const gcPercent = 400

// Sandbox applies all measures. It is called in the sandbox process only.
func Sandbox() {
	debug.SetGCPercent(gcPercent)
	pinProcessors()
	leaveMonitoring()
	go announceSignals()
	go listen().mind()
	go listenSave().heed()
}

// announceSignals makes the runtime enable the signals that gVisor will ask
// for one by one, each with a hand-off between threads, while a restore waits
// for it. Later requests for the same signals only change a map.
func announceSignals() {
	unused := make(chan os.Signal, 1)
	for s := unix.Signal(1); s <= 31; s++ {
		switch s {
		case unix.SIGURG, unix.SIGPIPE, unix.SIGCHLD, unix.SIGKILL, unix.SIGSTOP:
		default:
			signal.Notify(unused, s)
		}
	}
}
