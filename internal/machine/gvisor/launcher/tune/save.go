package tune

import (
	"os"
	"os/signal"
	"sync/atomic"
	_ "unsafe" // go:linkname

	"golang.org/x/sys/unix"
)

// SaveStop says that a request waits for the end of the save that is under way. It is
// a real-time signal, as those about the heap are.
const SaveStop = unix.Signal(43)

// saveStop is what the encoder of gVisor looks at, as package patch changes it. A
// gVisor without that change does not know it, and saves to the end.
//
//go:linkname saveStop gvisor.dev/gvisor/pkg/state.saveStop
var saveStop atomic.Bool

// listenSave hears from now on what the launcher says about saves. HeapStill comes
// before each: what was asked of an earlier one is over.
func listenSave() ear {
	e := make(ear, 16) // more than come while one is minded
	signal.Notify(e, SaveStop, HeapStill)
	return e
}

// heed does what it hears.
func (e ear) heed() {
	for told := range e {
		saveStop.Store(told == os.Signal(SaveStop))
	}
}
