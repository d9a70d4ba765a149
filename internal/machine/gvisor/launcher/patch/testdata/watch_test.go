package pgalloc

import (
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

func TestTouched(t *testing.T) {
	f, other := &MemoryFile{}, &MemoryFile{}
	chunks := make([]chunkInfo, 2)
	f.chunks.Store(&chunks)
	has := func(bits []byte, unit int) bool { return bits[unit/8]&(1<<(unit%8)) != 0 }
	if _, known := f.Touched(); known || Watching() {
		t.Error("somebody watches from the beginning")
	}
	f.Touch(memmap.FileRange{Start: 0, End: 4096})
	f.Watch()
	defer watched.Store(nil)
	if !Watching() {
		t.Error("nobody watches")
	}
	f.Touch(memmap.FileRange{Start: WatchUnit - 4096, End: WatchUnit + 4096})
	f.Touch(memmap.FileRange{Start: chunkSize - 4096, End: chunkSize + 4096})
	f.Touch(memmap.FileRange{Start: 70 * WatchUnit, End: 71 * WatchUnit})
	other.Touch(memmap.FileRange{Start: 5 * WatchUnit, End: 6 * WatchUnit})
	f.Hold(memmap.FileRange{Start: 9 * WatchUnit, End: 9*WatchUnit + 1})
	want := map[int]bool{0: true, 1: true, 4095: true, 4096: true, 70: true, 9: true}
	check := func() {
		t.Helper()
		bits, known := f.Touched()
		if !known || len(bits) != 2*chunkSize/WatchUnit/8 {
			t.Fatalf("%d bytes, known: %v", len(bits), known)
		}
		for unit := range len(bits) * 8 {
			if has(bits, unit) != want[unit] {
				t.Errorf("unit %d is touched: %v", unit, !want[unit])
			}
		}
	}
	check()
	f.Watch()
	want = map[int]bool{9: true} // for good
	check()
	if _, known := other.Touched(); known {
		t.Error("another file is watched")
	}
	f.Touch(memmap.FileRange{Start: watchChunks * chunkSize, End: watchChunks*chunkSize + 1})
	if _, known := f.Touched(); known {
		t.Error("memory far behind is known")
	}
}
