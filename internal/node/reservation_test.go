package node_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

// needs is what an order of these tests reserves.
const needs = 512<<20 + machinetest.Overhead

// crowded returns options of a node with room for so many sandboxes in memory.
func (h *host) crowded(sandboxes int64) node.Options {
	o := h.options()
	o.Limit = max(needs, sandboxes*needs/2)
	o.Overcommit = float64(sandboxes*needs) / float64(o.Limit)
	return o
}

// committed fails unless so many sandboxes have a reservation.
func (p *process) committed(sandboxes int64) {
	p.h.t.Helper()
	c := p.Committed()
	if c.Bytes != sandboxes*needs || c.Most > 0 && c.Bytes > c.Most {
		p.h.t.Fatalf("%d of %d bytes are reserved, want those of %d sandboxes", c.Bytes, c.Most, sandboxes)
	}
}

// TestReservationAtOnce: of many creates at once as many succeed as there is room for,
// and nothing is left of the others.
func TestReservationAtOnce(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		const room, many = 3, 12
		p := h.startWith(h.crowded(room))
		errs := make([]error, many)
		var creates sync.WaitGroup
		for i := range many {
			creates.Go(func() { errs[i] = p.Create(t.Context(), order(fmt.Sprint("s", i))) })
		}
		creates.Wait()
		made := 0
		for i, err := range errs {
			if err == nil {
				made++
				continue
			}
			h.kind(err, doze.Unavailable, "no memory left")
			p.empty(fmt.Sprint("s", i))
		}
		if made != room {
			t.Errorf("%d sandboxes were created, want %d", made, room)
		}
		p.committed(room)
		if n := p.Committed().Refusals; n != many-room {
			t.Errorf("%d refusals were counted, want %d", n, many-room)
		}
		for i, err := range errs {
			if err == nil {
				if err := p.Delete(t.Context(), fmt.Sprint("s", i)); err != nil {
					t.Error(err)
				}
			}
		}
		p.committed(0)
	})
}

// TestReservationNever: a sandbox that can never have its memory is told so at once. One
// of the default size or less gets what there is.
func TestReservationNever(t *testing.T) {
	virtual(t, func(h *host) {
		o := h.options()
		o.Limit, o.Overcommit = 1<<30, 4
		p := h.startWith(o)
		large := order("large")
		large.Memory = doze.MemoryDefault + 1
		h.kind(p.Create(h.t.Context(), large), doze.Unprocessable, "ask for less")
		p.empty("large")
		usual := order("usual")
		usual.Memory = doze.MemoryDefault
		if err := p.Create(h.t.Context(), usual); err != nil {
			h.t.Error(err)
		}
	})
}

// TestReservationMakesRoom: sandboxes that sleep are no reason to refuse anybody. What is
// refused stays as it was, and works when there is room.
func TestReservationMakesRoom(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.crowded(2))
		for _, uid := range []string{"a", "b"} {
			if err := p.Create(t.Context(), order(uid)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // a is the one that was unused for longer
		}
		p.sleep("paused")
		p.committed(2)
		if err := p.Create(t.Context(), order("c")); err != nil {
			t.Fatal("with sandboxes that sleep:", err)
		}
		p.in("a", doze.Standby, "disk")
		p.in("b", doze.Standby, "paused")
		p.committed(2)

		// A wake makes room likewise.
		p.hello("a")
		p.in("b", doze.Standby, "disk")
		p.committed(2)

		// With two that are in use, a third one sleeps on.
		var release []func()
		for _, uid := range []string{"a", "c"} {
			let, err := p.Hold(t.Context(), uid)
			if err != nil {
				t.Fatal(err)
			}
			release = append(release, let)
		}
		reports := len(h.told("b"))
		_, err := p.Hold(t.Context(), "b")
		h.kind(err, doze.Unavailable, "no memory left")
		p.in("b", doze.Standby, "disk")
		for _, r := range h.told("b")[reports:] {
			if r.Message != "" {
				t.Errorf("its owner is told %q, and has nothing to repair", r.Message)
			}
		}
		p.committed(2)
		release[0]()
		time.Sleep(pauseAfter + time.Second)
		p.hello("b")
		p.in("a", doze.Standby, "disk")
		release[1]()
	})
}

// TestReservationOfTheNext: the next process reserves what it adopts, also if that is
// more than it would reserve, and nothing to what sleeps on disk.
func TestReservationOfTheNext(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a", "b", "c")
		p.sleep("disk")
		p.hello("b")
		p.hello("c")
		p.committed(2)
		p.stop()
		p = h.startWith(h.crowded(1))
		p.in("b", doze.Running, "awake")
		p.in("c", doze.Running, "awake")
		if c := p.Committed(); c.Bytes != 2*needs {
			t.Fatalf("%d bytes are reserved after a start, want those of two sandboxes", c.Bytes)
		}
		letB, err := p.Hold(t.Context(), "b")
		if err != nil {
			t.Fatal("what was awake is not let in:", err)
		}
		letC, err := p.Hold(t.Context(), "c")
		if err != nil {
			t.Fatal("what was awake is not let in:", err)
		}
		_, err = p.Hold(t.Context(), "a")
		h.kind(err, doze.Unavailable, "no memory left")
		letB()
		letC()
	})
}

// TestReservationComesBack: what fails, ends or dies has no reservation.
func TestReservationComesBack(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.crowded(1))
		for _, step := range []string{"image", "lease", "admit"} {
			h.set(func() { h.failing[step] = errors.New("broken") })
			if err := p.Create(t.Context(), order("a")); err == nil {
				t.Fatalf("a create without %s works", step)
			}
			p.committed(0)
		}
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		h.Kill("a")
		p.in("a", doze.Failed, "")
		p.committed(0)
		if err := p.Create(t.Context(), order("b")); err != nil {
			t.Fatal(err)
		}
		// One that is killed while its checkpoint is on disk is no event.
		time.Sleep(pauseAfter + saveAfter + time.Second)
		p.in("b", doze.Standby, "saved")
		h.Kill("b")
		if err := p.Create(t.Context(), order("c")); err != nil {
			t.Fatal("what sleeps on disk since it was killed has a reservation:", err)
		}
		p.committed(1)
	})
}
