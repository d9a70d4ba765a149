package tune

import (
	"os"
	"os/signal"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// What the launcher tells an engine about its heap. An engine that was told
// nothing yet is as a start or a restore wants it: see gcPercent. They are
// real-time signals, of which neither gVisor nor Go's runtime uses any.
const (
	// HeapAwake says that the guest runs and is past its start or its wake.
	HeapAwake = unix.Signal(40)
	// HeapAsleep says that the guest stands still: no collection until it runs
	// again. Go's runtime makes one every two minutes, which would bring back
	// all of a heap that was moved to swap.
	HeapAsleep = unix.Signal(41)
)

const (
	// awakePercent lets the heap grow to half as much again as is in use: most
	// guests idle most of the time, and so their engines' memory is a host's.
	awakePercent = 50
	// asleepPercent switches collections off. No heap grows while a guest
	// stands still; should the launcher die before it says that the guest runs
	// again, its successor says so.
	asleepPercent = -1
)

// ear hears what the launcher says.
type ear chan os.Signal

// listen hears from now on.
func listen() ear {
	e := make(ear, 16) // more than come while one is minded
	signal.Notify(e, HeapAwake, HeapAsleep)
	return e
}

// mind does what it hears, and gives the memory that was free in the heap back
// to the host.
func (e ear) mind() {
	for told := range e {
		percent := awakePercent
		if told == HeapAsleep {
			percent = asleepPercent
		}
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	}
}

// Close ends mind.
func (e ear) Close() {
	signal.Stop(e)
	close(e)
}
