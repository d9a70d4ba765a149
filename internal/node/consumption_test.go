package node_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

func (p *process) used(uid string) doze.Usage {
	p.h.t.Helper()
	all, err := p.Consumption(p.h.t.Context(), []string{uid})
	p.done(err)
	return all[uid]
}

// TestConsumption follows a sandbox through sleeps and wakes: what it did adds up over
// the ends of its processes, and asking does not wake it.
func TestConsumption(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.Traffic = func(id string) (doze.NetworkUsage, error) {
			return doze.NetworkUsage{ReceivedBytes: int64(len(id)), SentBytes: 7}, nil
		}
		p := h.startWith(o)
		began := time.Now()
		p.done(p.Create(t.Context(), order("a")))
		fresh := p.used("a")
		if fresh.Tier != "awake" || fresh.Memory.ResidentBytes == 0 || fresh.Wakes != (doze.WakeUsage{}) || fresh.Sleeps != 0 || fresh.LastWake != nil {
			t.Errorf("%+v", fresh)
		}
		if fresh.CountedSince.Before(began) || fresh.Network != (doze.NetworkUsage{ReceivedBytes: 1, SentBytes: 7}) {
			t.Errorf("%+v", fresh)
		}
		h.Compute("a", 0.1)
		time.Sleep(10 * time.Second)
		first := p.used("a").Processor.Seconds
		if grown := first - fresh.Processor.Seconds; grown < 0.9 || grown > 1.1 {
			t.Errorf("in 10 s at a tenth of a processor it used %v s", grown)
		}

		h.Compute("a", 0)
		p.sleep("paused")
		h.Delay(machinetest.OpResume, 3*time.Second)
		p.hello("a")
		h.Delay(machinetest.OpResume, 0)
		p.sleep("disk")
		asleep := p.used("a")
		if asleep.Tier != "disk" || asleep.Sleeps != 2 || asleep.Disk.CheckpointBytes == 0 {
			t.Errorf("%+v", asleep)
		}
		if asleep.Processor.Seconds < first {
			t.Errorf("its processes are gone, and with them %v s of %v", first-asleep.Processor.Seconds, first)
		}
		h.Delay(machinetest.OpRestore, time.Second)
		p.hello("a")
		awake := p.used("a")
		want := doze.WakeUsage{Count: 2, P50Us: 1e6, P99Us: 3e6, LastUs: 1e6}
		if awake.Wakes != want || awake.LastWake == nil || awake.LastWake.From != "disk" {
			t.Errorf("%+v, %+v", awake.Wakes, awake.LastWake)
		}
		if awake.Processor.Seconds <= asleep.Processor.Seconds {
			t.Errorf("it used %v s before it slept, and now %v", asleep.Processor.Seconds, awake.Processor.Seconds)
		}
	})
}

// TestConsumptionOfFailures: a wake that fails is counted, and no latency of it.
func TestConsumptionOfFailures(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.start()
		p.done(p.Create(t.Context(), order("a")))
		p.sleep("paused")
		h.FailNext(machinetest.OpResume, os.ErrPermission)
		if _, err := p.call(t.Context(), "a", appPort); err == nil {
			t.Fatal("it woke")
		}
		if u := p.used("a"); u.Wakes != (doze.WakeUsage{Failures: 1}) {
			t.Errorf("%+v", u.Wakes)
		}
	})
}

// TestConsumptionOfDisk: what a sandbox has on the disk is its own, volumes included.
func TestConsumptionOfDisk(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.start()
		p.done(p.MakeVolume(t.Context(), "kept", 64, ""))
		p.done(p.Create(t.Context(), withVolumes("a")))
		p.done(p.Create(t.Context(), order("b")))
		name := filepath.Join(h.dir, "sandboxes/a/drives/one/file")
		p.done(os.MkdirAll(filepath.Dir(name), 0o700))
		p.done(os.WriteFile(name, make([]byte, 1<<20), 0o600))
		time.Sleep(2 * time.Minute) // the node looks again
		a, b := p.used("a").Disk, p.used("b").Disk
		if a.DriveBytes < 1<<20 || a.ScratchBytes != doze.Megabytes(8).Bytes() || a.VolumeBytes == 0 {
			t.Errorf("%+v", a)
		}
		if b.DriveBytes+b.ScratchBytes+b.VolumeBytes != 0 {
			t.Errorf("%+v", b)
		}
	})
}
