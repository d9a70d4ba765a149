package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// TestConsult: the agent of a sandbox that is awake knows of processes that
// nobody else does, and when they ended.
func TestConsult(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		born := time.Now()
		h.set(func() { h.holds["a"] = 1 })
		time.Sleep(pauseAfter / 2)
		if st, _ := p.Status("a"); st.InUse {
			t.Fatalf("nobody asked: %+v", st)
		}
		p.Consult("a")
		if st, _ := p.Status("a"); !st.InUse {
			t.Errorf("a process runs: %+v", st)
		}
		time.Sleep(time.Second)
		ended := time.Now()
		h.set(func() { h.holds["a"], h.ended["a"] = 0, ended })
		time.Sleep(2 * time.Second)
		p.Consult("a")
		if st, _ := p.Status("a"); st.InUse || !st.LastUsed.Equal(ended) {
			t.Errorf("it ended %v after the start: %+v, %v", ended.Sub(born), st, st.LastUsed.Sub(born))
		}
		h.set(func() { h.deaf = true })
		p.Consult("a")
		if st, _ := p.Status("a"); !st.InUse {
			t.Errorf("an agent that says nothing may be busy: %+v", st)
		}
		h.set(func() { h.deaf = false })
		p.sleep("disk")
		h.set(func() { h.holds["a"] = 1 })
		p.Consult("a")
		p.in("a", doze.Standby, "disk")
		p.Consult("nobody")
	})
}

// TestRetire: of the last request and the end for being unused, the first one
// wins.
func TestRetire(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(*host, *process)
		want   bool
	}{
		"unused": {func(*host, *process) {}, true},
		"asleep": {func(_ *host, p *process) { p.sleep("disk") }, true},
		"held":   {func(h *host, p *process) { _, _ = p.Hold(h.t.Context(), "a") }, false},
		"kept":   {func(h *host, p *process) { h.set(func() { h.holds["a"] = 1 }); p.Consult("a") }, false},
		"waking": {func(h *host, p *process) {
			p.sleep("disk")
			h.Delay(machinetest.OpRestore, time.Second)
			go func() { _, _ = p.Hold(h.t.Context(), "a") }()
			synctest.Wait()
		}, false},
		"waits until it sleeps": {func(h *host, p *process) {
			h.Delay(machinetest.OpPause, time.Second)
			time.Sleep(pauseAfter + time.Millisecond)
			go func() { _, _ = p.Hold(h.t.Context(), "a") }()
			synctest.Wait()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				time.Sleep(time.Second)
				since := time.Now()
				time.Sleep(time.Second)
				tt.before(h, p)
				if got := p.Retire("a", since); got != tt.want {
					t.Fatalf("retired: %v", got)
				}
				if !tt.want {
					p.hello("a")
					return
				}
				_, err := p.Hold(t.Context(), "a")
				h.kind(err, doze.Unavailable, "deleted")
				p.Reinstate("a")
				p.hello("a")
				if p.Retire("a", since) {
					t.Error("it was used since")
				}
			})
		})
	}
	virtual(t, func(h *host) {
		p := h.has("a")
		if !p.Retire("nobody", time.Now()) {
			t.Error("nobody can use what is not there")
		}
		p.Reinstate("nobody")
	})
}

// TestComputing: a sandbox whose processes compute stays awake without a request, for as
// long as they are allowed to.
func TestComputing(t *testing.T) {
	const busyMax = 10 * time.Minute
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.IdleCPU, o.BusyMax = 0.2, busyMax
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		p.hello("a")
		h.Compute("a", 1)
		time.Sleep(3 * pauseAfter)
		p.in("a", doze.Running, "awake")
		h.Compute("a", 0.1) // which is less than what counts
		time.Sleep(2*pauseAfter + time.Second)
		p.in("a", doze.Standby, "paused")

		p.hello("a")
		h.Compute("a", 1)
		time.Sleep(busyMax - pauseAfter)
		p.in("a", doze.Running, "awake")
		time.Sleep(2 * pauseAfter)
		p.in("a", doze.Standby, "paused")

		h.Compute("a", 0) // a sandbox that computes nothing is paused on time
		p.hello("a")
		time.Sleep(pauseAfter + time.Second)
		p.in("a", doze.Standby, "paused")
	})
}
