package pgalloc

import (
	"bytes"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/sentry/memmap"
)

// inMemory returns a file of a size.
func inMemory(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return file
}

// begin begins to copy the units of a file of memory aside that are wanted. Each has its
// number in all bytes.
func begin(t *testing.T, slots, units int, wanted ...int) (f *MemoryFile, lost *atomic.Uint32, taken, words []atomic.Uint32, slot func(int) byte) {
	t.Helper()
	f = &MemoryFile{file: inMemory(t, int64(units)*WatchUnit)}
	for unit := range units {
		if _, err := f.file.WriteAt(bytes.Repeat([]byte{byte(unit)}, WatchUnit), int64(unit)*WatchUnit); err != nil {
			t.Fatal(err)
		}
	}
	size := 4 * (1 + slots + units)
	table, room := inMemory(t, int64(size)), inMemory(t, int64(slots)*WatchUnit)
	mapped, err := unix.Mmap(int(table.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	all := unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&mapped[0])), size/4)
	for _, unit := range wanted {
		all[1+slots+unit].Store(asideWanted)
	}
	own, err := unix.Dup(int(room.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Aside(int(table.Fd()), own, uint32(slots), uint32(units)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.EndAside)
	return f, &all[0], all[1 : 1+slots], all[1+slots:], func(i int) byte {
		content := make([]byte, WatchUnit)
		if _, err := room.ReadAt(content, int64(i)*WatchUnit); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(content, content[:1]); n != WatchUnit {
			t.Errorf("slot %d has %d equal bytes", i, n)
		}
		return content[0]
	}
}

// touch is what a writer does.
func touch(f *MemoryFile, unit int) {
	f.Touch(memmap.FileRange{Start: uint64(unit) * WatchUnit, End: uint64(unit+1) * WatchUnit})
}

// TestAside copies what is wanted, once, as it was when it was first touched.
func TestAside(t *testing.T) {
	f, lost, taken, words, slot := begin(t, 8, 8, 2, 3, 5)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for unit := range 5 {
				touch(f, unit)
				if _, err := f.file.WriteAt(bytes.Repeat([]byte{99}, WatchUnit), int64(unit)*WatchUnit); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	f.Touch(memmap.FileRange{Start: 7 * WatchUnit, End: 90 * WatchUnit}) // behind the table
	var full int
	for i := range taken {
		if taken[i].Load() == asideFree {
			continue
		}
		full++
		unit := taken[i].Load() - asideUnit
		if got := slot(i); uint32(got) != unit || words[unit].Load() != asideSlot+uint32(i) {
			t.Errorf("slot %d has unit %d, and says %d", i, got, unit)
		}
	}
	if full != 2 || lost.Load() != 0 || words[5].Load() != asideWanted || words[0].Load() != asideDone {
		t.Errorf("%d slots are full, lost: %d", full, lost.Load())
	}
	f.EndAside()
	touch(f, 5)
	if words[5].Load() != asideWanted {
		t.Error("it goes on after its end")
	}
}

// TestAsideFull waits for a free slot, and not for long.
func TestAsideFull(t *testing.T) {
	f, lost, taken, words, _ := begin(t, 1, 4, 0, 1, 2, 3)
	touch(f, 0)
	freed := time.AfterFunc(asideWait/10, func() { taken[0].Store(asideFree) })
	defer freed.Stop()
	touch(f, 1)
	if words[1].Load() != asideSlot || lost.Load() != 0 {
		t.Fatalf("unit 1 is %d, lost: %d", words[1].Load(), lost.Load())
	}
	touch(f, 2)
	if words[2].Load() != asideDone || lost.Load() != 1 {
		t.Errorf("unit 2 is %d, lost: %d", words[2].Load(), lost.Load())
	}
	start := time.Now()
	if touch(f, 3); time.Since(start) > asideWait/2 || words[3].Load() != asideWanted {
		t.Errorf("a writer waits for a copy that is lost")
	}
}
