package memory

import (
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

// released is what the runtime has given back of its heap, in bytes.
func released() uint64 {
	all := []metrics.Sample{{Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64()
}

func TestTrim(t *testing.T) { //nolint:paralleltest // the heap belongs to the process
	const burst = 64 << 20
	synctest.Test(t, func(t *testing.T) {
		var l Trimmer
		garbage := make([]byte, burst)
		for i := range garbage {
			garbage[i] = 1
		}
		held := released()
		l.Mark()
		for range 3 { // requests that come one after the other
			time.Sleep(trimAfter - time.Millisecond)
			l.Mark()
		}
		synctest.Wait()
		if l.freed.Load() != 0 {
			t.Error("memory was given back while there were requests")
		}
		time.Sleep(trimAfter)
		synctest.Wait()
		was := l.freed.Load()
		if was == 0 {
			t.Error("no memory was given back")
		}
		if now := released(); now < held+burst/2 {
			t.Errorf("%d MiB of %d were given back", (int64(now)-int64(held))>>20, burst>>20)
		}
		l.Mark()
		time.Sleep(trimAfter)
		synctest.Wait()
		if l.freed.Load() != was {
			t.Error("one small request was worth a collection")
		}
	})
}

func TestFreeOnce(t *testing.T) { //nolint:paralleltest // the heap belongs to the process
	var l Trimmer
	l.Free()
	was := l.freed.Load()
	if l.check(); l.freed.Load() != was {
		t.Error("memory was given back twice")
	}
}
