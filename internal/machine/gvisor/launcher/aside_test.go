package launcher

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"

	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
)

// newTable returns a table for so many units.
func newTable(tb testing.TB, units uint32) *aside {
	tb.Helper()
	room, err := newRoom()
	if err != nil {
		tb.Fatal(err)
	}
	a, err := newAside(room, units)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := a.close(); err != nil {
			tb.Error(err)
		}
	})
	return a
}

// allOf returns a part that has all of a chunk.
func allOf(from *source, number uint32) part {
	start := uint64(number) * checkpoint.PageChunk
	return part{number: number, pieces: []piece{{from: from, at: memmap.FileRange{Start: start, End: start + checkpoint.PageChunk}}}}
}

// TestAsideTakes reads chunks that the engine copied aside, and those that it did not.
func TestAsideTakes(t *testing.T) {
	t.Parallel()
	a := newTable(t, 4)
	p := allOf(&source{}, 3)
	p.pieces[0].at.Start += 4096 // a part of the chunk was named
	read := bytes.Repeat([]byte{7}, checkpoint.PageChunk)
	const start = 3 * checkpoint.PageChunk
	a.units[3].Store(patch.AsideWanted)
	if err := a.take(p, read, start); err != nil || read[4096] != 7 || a.units[3].Load() != patch.AsideDone {
		t.Fatalf("%v: %d", err, read[4096])
	}
	if err := a.take(p, read, start); !errors.Is(err, errLost) {
		t.Error("it is taken twice:", err)
	}
	const slot = 200
	if _, err := a.room.WriteAt(bytes.Repeat([]byte{8}, checkpoint.PageChunk), slot*checkpoint.PageChunk); err != nil {
		t.Fatal(err)
	}
	a.slots[slot].Store(patch.AsideUnit + 3)
	a.units[3].Store(patch.AsideSlot + slot)
	if got := a.filled(); len(got) != 1 || got[0] != 3 {
		t.Error("units in slots:", got)
	}
	if err := a.take(p, read, start); err != nil {
		t.Fatal(err)
	}
	if bytes.Count(read, []byte{0}) != 4096 || bytes.Count(read, []byte{8}) != checkpoint.PageChunk-4096 {
		t.Error("it is not what was copied aside")
	}
	if a.slots[slot].Load() != patch.AsideFree || a.units[3].Load() != patch.AsideDone || len(a.filled()) != 0 {
		t.Error("its slot is not free")
	}
	a.units[3].Store(patch.AsideSlot + slots) // an engine that lies
	if err := a.take(p, read, start); !errors.Is(err, errLost) {
		t.Error("a slot that there is not:", err)
	}
}

// TestAsideWaits waits for an engine that copies a chunk, and not for good.
func TestAsideWaits(t *testing.T) {
	t.Parallel()
	a := newTable(t, 1)
	synctest.Test(t, func(t *testing.T) {
		read := make([]byte, checkpoint.PageChunk)
		a.units[0].Store(patch.AsideCopying)
		time.AfterFunc(asideTime/2, func() { a.units[0].Store(patch.AsideSlot) })
		if err := a.take(allOf(&source{}, 0), read, 0); err != nil {
			t.Error(err)
		}
		a.units[0].Store(patch.AsideCopying)
		if err := a.take(allOf(&source{}, 0), read, 0); err == nil || !strings.Contains(err.Error(), asideTime.String()) {
			t.Error("an engine that never ends:", err)
		}
		start := time.Now()
		a.over = func() bool { return time.Since(start) > time.Second }
		if err := a.take(allOf(&source{}, 0), read, 0); !errors.Is(err, errGone) || time.Since(start) > 2*time.Second {
			t.Errorf("an engine that ended is waited for until %v: %v", time.Since(start), err)
		}
	})
}

// TestRunsOn copies memory that four writers change all the time, which do what the engine
// does. The copy is as the memory was when it began.
func TestRunsOn(t *testing.T) {
	t.Parallel()
	const chunks, size = 64, 64 * checkpoint.PageChunk
	raw := make([]byte, size)
	for number := range chunks {
		binary.LittleEndian.PutUint64(raw[number*checkpoint.PageChunk:], uint64(number)+1)
	}
	memory := memfd(t, size, 0, raw)
	dir := t.TempDir()
	c := &capture{clock: true, most: size}
	if err := c.openPages(dir, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.put(source{fd: memory}, memmap.FileRange{Start: 0, End: size}); err != nil {
		t.Fatal(err)
	}
	a := newTable(t, chunks)
	held := make([]byte, chunks/8)
	held[0] = 1 // the first chunk is written to without a note
	if err := c.late(a, held); err != nil {
		t.Fatal(err)
	}
	c.aside = a
	var end atomic.Bool
	var copied atomic.Int64
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			content := make([]byte, checkpoint.PageChunk)
			for i := 0; !end.Load(); i++ {
				number := uint32(i) * 37 % chunks
				at := int64(number) * checkpoint.PageChunk
				if a.units[number].CompareAndSwap(patch.AsideWanted, patch.AsideCopying) {
					slot := uint32(copied.Add(1))
					if _, err := unix.Pread(memory, content, at); err != nil {
						t.Error(err)
					}
					if _, err := a.room.WriteAt(content, int64(slot)*checkpoint.PageChunk); err != nil {
						t.Error(err)
					}
					a.slots[slot].Store(patch.AsideUnit + number)
					a.units[number].Store(patch.AsideSlot + slot)
				}
				if number == 0 || a.units[number].Load() != patch.AsideCopying {
					binary.LittleEndian.PutUint64(content, 1<<40)
					if _, err := unix.Pwrite(memory, content, at); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	err := c.copy(nil, true)
	end.Store(true)
	writers.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if copied.Load() == 0 {
		t.Error("no chunk was copied aside")
	}
	got, err := os.ReadFile(dir + "/" + checkpoint.FilePages)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, raw) {
		for number := range chunks {
			if n := binary.LittleEndian.Uint64(got[number*checkpoint.PageChunk:]); n != uint64(number)+1 {
				t.Errorf("chunk %d has %x", number, n)
			}
		}
	}
	c.aside = nil // newTable closes it
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

// FuzzAside reads tables that an engine can make which was taken over.
func FuzzAside(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0}, []byte{3, 0, 0, 0})
	f.Add([]byte{5, 0, 0, 0, 2, 0, 0, 0}, []byte{4, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, taken, words []byte) {
		const units = 4
		a := newTable(t, units)
		fill := func(into []atomic.Uint32, raw []byte) {
			for i := range min(len(into), len(raw)/4) {
				into[i].Store(binary.LittleEndian.Uint32(raw[4*i:]))
			}
		}
		fill(a.slots, taken)
		fill(a.units, words)
		c := &capture{aside: a, claimed: make([]atomic.Bool, units)}
		for number := range uint32(units) {
			c.named = append(c.named, allOf(&source{}, number))
		}
		chunk := make([]byte, checkpoint.PageChunk)
		seen := 0
		for p, more := c.claim(); more; p, more = c.claim() {
			if seen++; a.units[p.number].Load() == patch.AsideCopying {
				continue // TestAsideWaits
			}
			if err := a.take(p, chunk, int64(p.number)*checkpoint.PageChunk); err != nil && !errors.Is(err, errLost) {
				t.Error(err)
			}
		}
		if seen != units {
			t.Errorf("%d of %d parts were claimed", seen, units)
		}
	})
}
