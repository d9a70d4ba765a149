package tune

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMindHeap(t *testing.T) { //nolint:paralleltest // the heap belongs to the process
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	heard := listen()
	defer heard.Close()
	go heard.mind()
	// Each is sent after the one before was heard: signals can overtake each
	// other, and what was told last must be what counts here.
	for _, tc := range []struct {
		signal         unix.Signal
		percent, limit uint64
	}{
		{HeapAwake, awakePercent, math.MaxInt64},
		{HeapStill, math.MaxUint64, uint64(inUse()) + 2*asleepGrowth},
		{HeapAwake, awakePercent, math.MaxInt64},
		{HeapAsleep, math.MaxUint64, uint64(inUse()) + 2*asleepGrowth},
		{HeapAwake, awakePercent, math.MaxInt64},
	} {
		if err := unix.Kill(os.Getpid(), tc.signal); err != nil {
			t.Fatal(err)
		}
		now := []metrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"}}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			metrics.Read(now)
			percent, limit := now[0].Value.Uint64(), now[1].Value.Uint64()
			scheduled := runtime.GOMAXPROCS(0) == processors(tc.signal == HeapAwake, runtime.NumCPU(), runtime.NumCPU())
			if scheduled && percent == tc.percent && limit <= tc.limit && (tc.signal != HeapAwake || limit == tc.limit) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: collections at %d percent, limit %d, want %d and %d; %d processors", tc.signal, percent, limit, tc.percent, tc.limit, runtime.GOMAXPROCS(0))
			}
		}
	}
}
