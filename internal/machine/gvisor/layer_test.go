package gvisor

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
)

// sleeperMemory is what [TestSleepAgain], [TestStandsStill] and [TestRequestDuringCheckpoint]
// measure with.
var sleeperMemory = flag.Int("sleeper", 512, "MB of memory that a machine has which sleeps again and again")

// TestSleepAgain lets a large machine sleep that changed little since it woke. It
// prints what the second checkpoint takes, next to the first, which is whole.
func TestSleepAgain(t *testing.T) {
	megabytes := *sleeperMemory
	if testing.Short() {
		megabytes = 128
	}
	const changed = 10 // MB
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "large")
	c.Memory, c.GoBack, c.CPUs = int64(megabytes+512)<<20, true, 2
	m := boot(t, d, c)
	var none any
	ask(t, m, "/alloc", &none, "mb", strconv.Itoa(megabytes))
	sum := func() (n uint32) {
		t.Helper()
		ask(t, m, "/sum", &n)
		return n
	}
	save := func() (took time.Duration, bytes int64) {
		t.Helper()
		if err := m.Suspend(t.Context(), machine.Paused); err != nil {
			t.Fatal(err)
		}
		before, start := written(t, h.launcher()), time.Now()
		if err := m.Suspend(t.Context(), machine.Saved); err != nil {
			t.Fatal(err)
		}
		return time.Since(start), written(t, h.launcher()) - before
	}
	again := func(from machine.Tier) (woke time.Duration) {
		t.Helper()
		if err := m.Suspend(t.Context(), from); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		ask(t, m, "/count", &none)
		return time.Since(start)
	}
	want := sum()
	whole, all := save()
	t.Logf("the first checkpoint of %d MB: %v, %d MB written", megabytes, whole.Round(time.Millisecond), all>>20)
	for i, from := range []machine.Tier{machine.OnDisk, machine.Saved, machine.OnDisk} {
		woke := again(from)
		ask(t, m, "/change", &none, "from", strconv.Itoa(megabytes/3), "mb", strconv.Itoa(changed))
		if own, ok := m.(*sandbox); !ok || own.settled(t.Context()) != nil { // its memory is loaded
			t.Fatal("it does not settle")
		}
		took, bytes := save()
		t.Logf("woke from %v in %v; %d MB changed: %v, %d MB written: 1/%.0f of the time and 1/%.0f of the bytes",
			from, woke.Round(time.Millisecond), changed, took.Round(time.Millisecond), bytes>>20, float64(whole)/float64(took), float64(all)/float64(bytes))
		// The guest's own runtime changes memory, and the engine's state is new.
		if bytes > (changed+32)<<20 {
			t.Errorf("%d MB changed, and %d were written", changed, bytes>>20)
		}
		// The sum reads all memory, which nobody does before a checkpoint that is measured.
		f := h.Config(t, "fork-"+strconv.Itoa(i))
		f.Memory, f.CPUs, f.From = c.Memory, c.CPUs, filepath.Join(t.TempDir(), "copy")
		if err := m.Snapshot(t.Context(), f.From, nil); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := want
		if want = sum(); want == before {
			t.Error("its memory did not change")
		}
		fork := boot(t, d, f)
		var got uint32
		if ask(t, fork, "/sum", &got); got != want {
			t.Errorf("the sum of a fork's memory is %d, and the machine's is %d", got, want)
		}
		if err := fork.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again(machine.OnDisk)
	if got := sum(); got != want {
		t.Errorf("the sum of its memory is %d and was %d", got, want)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// manySleeps is at least three of each kind: the kind follows from the last digit.
var manySleeps = flag.Int("sleeps", 30, "how often TestManySleeps lets a machine sleep")

// TestManySleeps lets a machine that writes to its memory sleep many times, in
// all ways. No byte of it is ever another.
func TestManySleeps(t *testing.T) {
	t.Parallel()
	const megabytes = 64
	sleeps := *manySleeps
	if testing.Short() {
		sleeps = 20
	}
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "often")
	c.GoBack = true
	m := boot(t, d, c)
	var none any
	ask(t, m, "/alloc", &none, "mb", strconv.Itoa(megabytes))
	random := rand.New(rand.NewPCG(1, 2))
	sum := func() (n uint32) {
		t.Helper()
		ask(t, m, "/sum", &n)
		return n
	}
	suspend := func(ctx context.Context, to machine.Tier) error {
		if err := m.Suspend(t.Context(), machine.Paused); err != nil {
			t.Fatal(err)
		}
		return m.Suspend(ctx, to)
	}
	layers, stopped, left := 0, 0, []string{}
	var sums []uint32 // of those that were kept
	for sleep := range sleeps {
		for range random.IntN(4) {
			ask(t, m, "/change", &none, "from", strconv.Itoa(random.IntN(megabytes)), "mb", strconv.Itoa(random.IntN(3)))
		}
		want := sum()
		var err error
		switch sleep % 10 {
		case 3: // a request comes meanwhile
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(100))*time.Millisecond)
			if err = suspend(ctx, machine.Saved); err != nil {
				stopped++
				err = nil
			}
			cancel()
		case 5: // it wakes from memory
			err = suspend(t.Context(), machine.Saved)
		case 7: // a snapshot is taken
			left = append(left, filepath.Join(filepath.Dir(c.Dir), fmt.Sprintf("kept-%d", sleep)))
			sums = append(sums, want)
			if err = m.Snapshot(t.Context(), left[len(left)-1], nil); err == nil {
				err = suspend(t.Context(), machine.OnDisk)
			}
		case 9: // the next dozed takes it over
			if err = suspend(t.Context(), machine.OnDisk); err == nil {
				m, err = d.Adopt(t.Context(), c)
			}
		default:
			err = suspend(t.Context(), machine.OnDisk)
		}
		if err != nil {
			t.Fatal(err)
		}
		if m.Tier() == machine.OnDisk {
			entries, err := filepath.Glob(filepath.Join(checkpoint.Dir(c), "pages*.img"))
			if err != nil {
				t.Fatal(err)
			}
			layers = max(layers, len(entries)-1)
			if sleep%4 == 0 { // as after a restart of the host
				if err := d.vouchers.Doubt(checkpoint.Dir(c)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatalf("sleep %d: %v", sleep, err)
		}
		if got := sum(); got != want {
			t.Fatalf("after %d sleeps the sum of its memory is %d and was %d", sleep+1, got, want)
		}
	}
	t.Logf("%d sleeps, %d checkpoints were stopped, at most %d layers", sleeps, stopped, layers)
	if layers < 3 {
		t.Errorf("a checkpoint is in %d layers at most", layers)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	// What was kept has every byte, though nobody else has its layers now.
	for i, dir := range left {
		own := h.Config(t, fmt.Sprintf("copy-%d", i))
		own.From = dir
		if m = boot(t, d, own); sum() != sums[i] {
			t.Errorf("%s is another", dir)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestOldFormat wakes a machine from a checkpoint as older launchers wrote it: all
// memory in one file, with its checksums in the manifest.
func TestOldFormat(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "old")
	m := boot(t, d, c)
	var none any
	ask(t, m, "/alloc", &none, "mb", "24")
	var want, got uint32
	ask(t, m, "/sum", &want)
	if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
		t.Fatal(err)
	}
	dir := checkpoint.Dir(c)
	about, err := d.manifest(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := checkpoint.OpenMemory(dir, about.Files)
	if err != nil {
		t.Fatal(err)
	}
	raw, room := make([]byte, memory.Bytes), make([]byte, memory.Size)
	for _, chunk := range memory.Chunks {
		part, err := memory.Load(chunk.Number, room)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := memory.At(chunk.Number)
		copy(raw[at:], part)
	}
	if err := memory.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, checkpoint.FilePages), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	pages := checkpoint.Describe(checkpoint.FilePages, raw)
	pages.Ranges = memory.Ranges
	about.Format, about.Files = checkpoint.FormatWhole, []checkpoint.File{about.Files[0], about.Files[1], pages}
	if err := os.Remove(filepath.Join(dir, checkpoint.FileIndex)); err != nil {
		t.Fatal(err)
	}
	if err := about.Write(dir); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is in the new one
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ask(t, m, "/sum", &got); got != want {
			t.Errorf("the sum of its memory is %d and was %d", got, want)
		}
		if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
