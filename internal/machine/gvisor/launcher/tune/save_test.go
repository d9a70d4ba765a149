package tune

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHeedSave(t *testing.T) { //nolint:paralleltest // signals belong to the process
	heard := listenSave()
	defer heard.Close()
	go heard.heed()
	for _, tc := range []struct {
		signal unix.Signal
		want   bool
	}{{SaveStop, true}, {HeapStill, false}, {SaveStop, true}, {HeapStill, false}} {
		if err := unix.Kill(os.Getpid(), tc.signal); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); saveStop.Load() != tc.want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after %v a save is stopped: %v, want %v", tc.signal, saveStop.Load(), tc.want)
			}
		}
	}
}
