package node_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine/fence"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

// spare returns the options of a node that starts machines ahead.
func (h *host) spare(n int) node.Options {
	o := h.options()
	o.Ahead, o.Spares = filepath.Join(h.dir, "ahead"), n
	return o
}

// ahead returns what is in a directory of Options.Ahead.
func (h *host) ahead(name string) (names []string) {
	h.t.Helper()
	synctest.Wait()
	entries, err := os.ReadDir(filepath.Join(h.dir, "ahead", name))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// create makes a sandbox and lets the node start ahead what it wants to.
func (p *process) create(uid string) {
	p.h.t.Helper()
	if err := p.Create(p.h.t.Context(), order(uid)); err != nil {
		p.h.t.Fatal("create:", err)
	}
	p.hello(uid)
	synctest.Wait()
}

// machines returns the machines that have processes, without the sandboxes of
// some names.
func (h *host) machines(but ...string) []string {
	synctest.Wait()
	return slices.DeleteFunc(h.Processes(), func(id string) bool { return slices.Contains(but, id) })
}

// TestAheadSweeps: an earlier version kept copies of machines, and a node that
// was killed left a spare one.
func TestAheadSweeps(t *testing.T) {
	virtual(t, func(h *host) {
		for _, dir := range []string{"templates/v1/ab", "machines/spare-x"} {
			if err := os.MkdirAll(filepath.Join(h.dir, "ahead", dir), 0o700); err != nil {
				h.t.Fatal(err)
			}
		}
		p := h.startWith(h.spare(0))
		if got := h.ahead("."); !slices.Equal(got, []string{"machines"}) || len(h.ahead("machines")) != 0 {
			h.t.Errorf("it leaves %q and %q", got, h.ahead("machines"))
		}
		p.stop()
	})
}

func TestSpare(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.spare(2))
		p.create("a")
		spares := h.machines("a")
		if len(spares) != 2 {
			t.Fatalf("spare machines %q, want 2", spares)
		}
		boots := h.Count("", machinetest.OpBoot)
		p.create("b")
		if got := h.Count("b", machinetest.OpBoot); got != 0 {
			t.Errorf("b was booted %d times, and there was a spare machine", got)
		}
		if got := h.Count("", machinetest.OpBoot); got != boots+1 {
			t.Errorf("%d boots, want one for a new spare machine", got-boots)
		}
		if got := h.identity("b"); len(got) != 0 { // the machine has another name
			t.Errorf("b was told %q", got)
		}
		p.in("b", doze.Running, "awake")
		if st, _ := p.Cost(t.Context(), "b"); st.MemoryBytes == 0 {
			t.Error("b costs nothing")
		}

		// It is a sandbox like others: it sleeps, is adopted, and ends.
		p.stop()
		if left := h.machines("a"); len(left) != 1 {
			t.Errorf("a node that stops leaves %q, want the machine of b", left)
		}
		p = h.startWith(h.spare(0))
		p.hello("b")
		time.Sleep(pauseAfter + diskAfter + time.Second)
		p.in("b", doze.Standby, "disk")
		p.hello("b")
		h.Kill(strings.TrimSpace(h.machines("a")[0]))
		p.in("b", doze.Failed, "")
		for _, uid := range []string{"a", "b"} {
			if err := p.Delete(t.Context(), uid); err != nil {
				t.Error(err)
			}
			p.empty(uid)
		}
		if left := h.ask(func() bool { return len(h.leases) > 0 }); left || len(h.ahead("machines")) > 0 || len(h.machines()) > 0 {
			t.Errorf("leases %v, machines %q, processes %q are left", h.leases, h.ahead("machines"), h.machines())
		}
	})
}

// TestSparesGrow: as many machines wait as sandboxes were created lately, up to a
// bound, and only for a while.
func TestSparesGrow(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.spare(1)
		o.SparesMax = 4
		p := h.startWith(o)
		for i, want := range []int{1, 2, 3, 4, 4, 4} {
			p.create(string(rune('a' + i)))
			// But for the first one, sandboxes have machines that have waited.
			if got := len(h.ahead("machines")) - i; got != want {
				t.Errorf("%d machines wait after %d creates, want %d", got, i+1, want)
			}
		}
		time.Sleep(2 * time.Minute)
		p.create("z")
		const taken = 6
		if got := len(h.ahead("machines")) - taken; got < 1 || got > 4 {
			t.Errorf("%d machines wait after a pause", got)
		}
		time.Sleep(time.Hour)
		if got := len(h.ahead("machines")); got != taken {
			t.Errorf("%d machines wait for ever", got-taken)
		}
	})
}

// What a killed node had started ahead is nobody's: the next one ends it.
func TestSpareKilled(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		m := h.mortal(math.MaxInt)
		o := m.options()
		o.Ahead, o.Spares = h.spare(1).Ahead, 1
		killed := h.startWith(o)
		t.Cleanup(func() { close(m.end) })
		killed.create("a")
		killed.create("b")
		if got := h.machines("a"); len(got) != 2 {
			t.Fatalf("machines %q, want that of b and a spare one", got)
		}
		m.die()
		p := h.startWith(h.spare(0))
		if got := h.machines("a"); len(got) != 1 || len(h.ahead("machines")) != 1 {
			t.Errorf("machines %q in %q, want that of b", got, h.ahead("machines"))
		}
		p.hello("b")
		owned := 0
		for id := range h.leases {
			if p.Owns(id) {
				owned++
			}
		}
		if owned != 2 {
			t.Errorf("%d addresses have an owner among %v", owned, h.leases)
		}
	})
}

// TestStopBehindFence: a node that lost its lease stops at once, with spare machines, and with a
// wake under way that holds its turn. The next process has all that was there, and ends the spare ones.
func TestStopBehindFence(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		gate := fence.NewGate()
		o := h.spare(2)
		o.Driver = fence.New(h.Fake, gate)
		p := h.startWith(o)
		p.create("a")
		if got := h.machines("a"); len(got) != 2 {
			t.Fatalf("machines %q, want two spare ones", got)
		}
		p.sleep("paused")
		if err := gate.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		woken := make(chan error, 1)
		go func() { _, err := p.call(t.Context(), "a", appPort); woken <- err }()
		synctest.Wait()
		p.Stop()
		gate.End()
		began := time.Now()
		p.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the node stopped after %s", took)
		}
		if err := <-woken; !errors.Is(err, fleet.ErrStopping) {
			t.Errorf("a request that waited: %v", err)
		}
		next := h.startWith(h.spare(0))
		next.hello("a")
		if got := h.machines("a"); len(got) != 0 {
			t.Errorf("machines %q are left", got)
		}
	})
}

// TestSparesHang: spare machines that do not end keep the node from stopping for a while only.
func TestSparesHang(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.spare(4))
		p.create("a")
		h.Delay(machinetest.OpClose, 8*time.Second)
		began := time.Now()
		p.stop()
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("the node stopped after %s", took)
		}
	})
}

func TestSpareBroken(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.spare(1))
		p.create("a")
		h.FailNext(machinetest.OpResume, errors.New("broken"))
		p.create("b")
		if got := h.Count("b", machinetest.OpBoot); got != 1 {
			t.Errorf("b was booted %d times, want that it is as the spare machine is broken", got)
		}
		if got := h.machines("a", "b"); len(got) != 1 {
			t.Errorf("spare machines %q, want a new one", got)
		}
	})
}

func TestSparesLeave(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.spare(2))
		p.create("a")
		other := order("b")
		other.Memory = 1024
		if err := p.Create(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if got := h.machines("a", "b"); len(got) != 2 {
			t.Errorf("spare machines %q, want 2 of the size that was used last", got)
		}
		boots := h.Count("", machinetest.OpBoot)
		other.UID, other.Name = "c", "name-c"
		if err := p.Create(t.Context(), other); err != nil || h.Count("c", machinetest.OpBoot) != 0 {
			t.Errorf("c did not get a spare machine: %v, %d boots", err, h.Count("", machinetest.OpBoot)-boots)
		}
		synctest.Wait()
		h.set(func() { h.free = 0 })
		time.Sleep(time.Minute)
		if got := h.machines("a", "b"); len(got) != 0 {
			t.Errorf("machines %q while memory is short: that of c is to be on disk, and none is spare", got)
		}
		h.set(func() { h.free = 1 << 30 })
		p.create("d")
		if got := h.machines("a", "b", "d"); len(got) != 2 {
			t.Errorf("machines %q, want two spare ones", got)
		}
		time.Sleep(time.Hour)
		if got := h.machines("a", "b", "d"); len(got) != 0 {
			t.Errorf("machines %q after an hour, want none", got)
		}
	})
}
