package tune

import (
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"golang.org/x/sys/unix"
)

// What the launcher tells an engine about its heap, and so about its processors. An engine that was told
// nothing yet is as a start or a restore wants it: see gcPercent. They are
// real-time signals, of which neither gVisor nor Go's runtime uses any.
const (
	// HeapAwake says that the guest runs and is past its start or its wake.
	HeapAwake = unix.Signal(40)
	// HeapAsleep says that the guest stands still: no collection until it runs
	// again. Go's runtime makes one every two minutes, which would bring back
	// all of a heap that was moved to swap.
	HeapAsleep = unix.Signal(41)
	// HeapStill says that the guest stands still and its memory is about to be
	// saved: no collection either, and what is free stays. A sandbox that moves to
	// disk or is woken soon never needs one.
	HeapStill = unix.Signal(42)
)

const (
	// awakePercent lets the heap grow to half as much again as is in use: most
	// guests idle most of the time, and so their engines' memory is a host's.
	awakePercent = 50
	// asleepPercent switches collections off.
	asleepPercent = -1
	// asleepGrowth is how far the heap of a guest that stands still may grow, in
	// bytes. It does not grow; but signals can overtake each other, and a
	// launcher can die before it says that the guest runs again.
	asleepGrowth = 64 << 20
)

// ear hears what the launcher says.
type ear chan os.Signal

// listen hears from now on.
func listen() ear {
	e := make(ear, 16) // more than come while one is minded
	signal.Notify(e, HeapAwake, HeapAsleep, HeapStill)
	return e
}

// mind does what it hears. It sets the processors of the scheduler, and gives the memory that was free in the heap back
// to the host, unless a checkpoint waits.
func (e ear) mind() {
	for told := range e {
		percent, limit := awakePercent, int64(math.MaxInt64)
		if told != HeapAwake {
			percent, limit = asleepPercent, inUse()+asleepGrowth
		}
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
		runtime.GOMAXPROCS(processors(told == HeapAwake, guestProcessors(os.Args), runtime.NumCPU()))
		if told != HeapStill {
			debug.FreeOSMemory()
		}
	}
}

// inUse is what debug.SetMemoryLimit counts, in bytes.
func inUse() int64 {
	counted := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(counted)
	return int64(counted[0].Value.Uint64() - counted[1].Value.Uint64()) //nolint:gosec // memory of one process
}

// Close ends mind.
func (e ear) Close() {
	signal.Stop(e)
	close(e)
}
