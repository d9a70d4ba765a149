package tune

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMindHeap(t *testing.T) { //nolint:paralleltest // the heap belongs to the process
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	heard := listen()
	defer heard.Close()
	go heard.mind()
	for _, tc := range []struct {
		signal unix.Signal
		want   uint64
	}{{HeapAwake, awakePercent}, {HeapAsleep, 1<<64 - 1}, {HeapAsleep, 1<<64 - 1}, {HeapAwake, awakePercent}} {
		if err := unix.Kill(os.Getpid(), tc.signal); err != nil {
			t.Fatal(err)
		}
		percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if metrics.Read(percent); percent[0].Value.Uint64() == tc.want {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v: collections at %d percent, want %d", tc.signal, percent[0].Value.Uint64(), tc.want)
			}
		}
	}
}
