package node_test

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// sleepNow puts sandbox a to sleep a moment after its last use: the clock of the test
// stands still otherwise.
func (p *process) sleepNow(deep bool) error {
	time.Sleep(time.Millisecond)
	return p.Sleep(p.h.t.Context(), "a", deep)
}

// refusedSleep fails unless a sleep of the sandbox is a Conflict that says why.
func (p *process) refusedSleep(uid, why string) {
	p.h.t.Helper()
	err := p.Sleep(p.h.t.Context(), uid, false)
	if e := doze.Public(err); e.Kind != doze.Conflict || !strings.Contains(e.Message, why) {
		p.h.t.Errorf("the sleep of %s: %v, want a conflict: %s", uid, err, why)
	}
}

// TestSleepNow: a sandbox sleeps when told to, before its time, though its processes
// compute, and goes on down and up as others do.
func TestSleepNow(t *testing.T) {
	virtual(t, func(h *host) {
		o := h.options()
		o.IdleCPU, o.BusyMax = 0.2, time.Hour
		p := h.startWith(o)
		p.done(p.Create(h.t.Context(), order("a")))
		h.Compute("a", 1)
		time.Sleep(10 * pauseAfter)
		p.in("a", doze.Running, "awake")
		began := time.Now()
		p.done(p.sleepNow(false))
		p.in("a", doze.Standby, "paused")
		if took := time.Since(began); took > time.Millisecond {
			h.t.Errorf("it took %v", took)
		}
		time.Sleep(saveAfter + time.Second)
		p.in("a", doze.Standby, "saved")
		p.done(p.sleepNow(true))
		p.in("a", doze.Standby, "disk")
		p.done(p.sleepNow(false)) // deeper than that it is already
		p.in("a", doze.Standby, "disk")
		p.done(p.Wake(h.t.Context(), "a"))
		p.in("a", doze.Running, "awake")
		p.hello("a")
		p.done(p.sleepNow(true))
		p.in("a", doze.Standby, "disk")
		p.hello("a")
	})
}

// TestSleepIsRefused: whoever uses a sandbox comes first.
func TestSleepIsRefused(t *testing.T) {
	virtual(t, func(h *host) {
		p := h.has("a")
		release, err := p.Hold(h.t.Context(), "a")
		p.done(err)
		p.refusedSleep("a", "a request is in flight")
		release()
		h.FailNext(machinetest.OpPause, os.ErrPermission)
		if err := p.sleepNow(false); doze.Public(err).Kind != doze.Unavailable {
			h.t.Errorf("a pause that fails: %v", err)
		}
		p.in("a", doze.Running, "awake")
		p.done(p.sleepNow(false))
		h.FailNext(machinetest.OpSave, os.ErrPermission)
		if err := p.sleepNow(true); doze.Public(err).Kind != doze.Unavailable {
			h.t.Errorf("a checkpoint that fails: %v", err)
		}
		p.in("a", doze.Standby, "paused")
	})
}

// TestSleepMeetsOthers: a sleep waits for a wake that is under way, and for a move down.
func TestSleepMeetsOthers(t *testing.T) {
	virtual(t, func(h *host) {
		p := h.has("a")
		p.sleep("paused")
		h.Delay(machinetest.OpResume, 5*time.Second)
		go func() { p.done(p.Wake(h.t.Context(), "a")) }()
		synctest.Wait()
		p.done(p.sleepNow(false))
		p.in("a", doze.Standby, "paused")
		h.Delay(machinetest.OpResume, 0)
		h.Delay(machinetest.OpSave, 5*time.Second)
		for range 2 {
			go func() { p.done(p.sleepNow(true)) }()
		}
		synctest.Wait()
		time.Sleep(20 * time.Second)
		p.in("a", doze.Standby, "disk")
		p.hello("a")
	})
}
