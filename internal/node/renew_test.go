package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// renewPause is for how long a sandbox in use may stand still.
const renewPause = 150 * time.Millisecond

// TestCheckpointEvery uses a sandbox more often than it would fall asleep: its
// checkpoint is renewed in the gaps, and not where there are none.
func TestCheckpointEvery(t *testing.T) {
	const every, gap = time.Minute, 3 * time.Second
	use := func(p *process, d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(gap) {
			p.hello("a")
		}
	}
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		use(p, 10*every)
		if n := h.Count("a", machinetest.OpPause); n != 0 {
			t.Errorf("without the setting it was paused %d times", n)
		}
		p.stop()

		o := h.options()
		o.GoBack, o.CheckpointEvery, o.CheckpointPause = true, every, renewPause
		p = h.startWith(o)
		use(p, 10*every)
		saves := h.Count("a", machinetest.OpSave)
		if pauses := h.Count("a", machinetest.OpPause); saves < 9 || saves > 11 || pauses != saves {
			t.Errorf("in 10 minutes it was paused %d times and saved %d times", pauses, saves)
		}
		if a := p.CheckpointAge(); a.Oldest > every+gap || a.Overdue != 0 {
			t.Errorf("%+v", a)
		}
		h.Kill("a")
		synctest.Wait()
		st, _ := p.Status("a")
		if st.Phase != doze.Standby || st.Setback == nil || st.Setback.At.Sub(st.Setback.Checkpoint) > every+gap {
			t.Fatalf("a crash lost more than it should: %+v, %+v", st, st.Setback)
		}

		// A request that is under way is not interrupted: the checkpoint is renewed beside it.
		p.hello("a")
		before := h.Count("a", machinetest.OpPause)
		release, err := p.Hold(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * every)
		if n := h.Count("a", machinetest.OpPause); n != before {
			t.Errorf("in use all the time it was paused %d times", n-before)
		}
		if n := h.Count("a", machinetest.OpRenew); n < 7 || n > 10 {
			t.Errorf("in use all the time for 10 minutes, its checkpoint was renewed %d times", n)
		}
		if a := p.CheckpointAge(); a.Overdue > 1 || a.Oldest > every+20*time.Second {
			t.Errorf("in use all the time: %+v", a)
		}
		release()
		time.Sleep(every)
		if st, _ := p.Status("a"); st.Phase != doze.Standby {
			t.Errorf("a minute after its last use it is %s", st.Phase)
		}
		if a := p.CheckpointAge(); a.Overdue != 0 || a.Oldest != 0 {
			t.Errorf("asleep: %+v", a)
		}

		// A process that keeps it awake does so.
		p.hello("a")
		h.set(func() { h.holds["a"] = 1 })
		before = h.Count("a", machinetest.OpPause)
		time.Sleep(10 * every)
		if st, _ := p.Status("a"); st.Phase != doze.Running {
			t.Errorf("kept awake it is %s", st.Phase)
		}
		if n := h.Count("a", machinetest.OpPause); n != before {
			t.Errorf("kept awake it was paused %d times", n-before)
		}
		if a := p.CheckpointAge(); a.Oldest > every+20*time.Second {
			t.Errorf("kept awake: %+v", a)
		}
	})
}

// TestRenewInUse: a crash of a sandbox that is in use all the time leads back to the
// checkpoint that was made meanwhile. One that would stand still for too long is left
// alone, and is tried again after as long as its checkpoint may get old.
func TestRenewInUse(t *testing.T) {
	const every = time.Minute
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.GoBack, o.CheckpointEvery, o.CheckpointPause = true, every, renewPause
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		release, err := p.Hold(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * every)
		if n := h.Count("a", machinetest.OpRenew); n != 1 {
			t.Fatalf("its checkpoint was renewed %d times, want once", n)
		}
		h.Delay(machinetest.OpRenew, time.Second) // above what it may stand still
		time.Sleep(10 * every)
		if n := h.Count("a", machinetest.OpRenew); n < 8 || n > 12 {
			t.Errorf("it was tried %d times in 10 minutes", n)
		}
		if a := p.CheckpointAge(); a.Overdue != 1 || a.Oldest < 10*every {
			t.Errorf("a checkpoint that was never renewed: %+v", a)
		}
		h.Delay(machinetest.OpRenew, 0)
		h.Delay(machinetest.OpPrecopy, 5*time.Second) // requests enter meanwhile
		for range 2 * every / time.Second {
			began := time.Now()
			if p.hello("a"); time.Since(began) > 0 {
				t.Errorf("a request waited %v for a copy of memory", time.Since(began))
			}
			time.Sleep(time.Second)
		}
		age := p.CheckpointAge().Oldest
		if age > every+30*time.Second {
			t.Errorf("the checkpoint is %v old", age)
		}
		release()
		h.Kill("a")
		synctest.Wait()
		st, _ := p.Status("a")
		if st.Phase != doze.Standby || st.Setback == nil || st.Setback.At.Sub(st.Setback.Checkpoint) > age+time.Second {
			t.Fatalf("after a crash: %+v, %+v, want one that lost %v", st, st.Setback, age)
		}
	})
}

// TestPrecopy: requests enter a sandbox while its memory is copied, and it does not fall
// asleep. A copy that cannot be made costs nothing but time.
func TestPrecopy(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		h.Delay(machinetest.OpPrecopy, 10*pauseAfter)
		taken := make(chan error, 1)
		go func() { _, err := p.Snapshot(t.Context(), "a", "n"); taken <- err }()
		synctest.Wait()
		began := time.Now()
		if p.hello("a"); time.Since(began) > 0 {
			t.Errorf("a request waited %v", time.Since(began))
		}
		time.Sleep(9 * pauseAfter)
		p.in("a", doze.Running, "awake")
		if err := <-taken; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * pauseAfter)
		if st, _ := p.Status("a"); st.Phase != doze.Standby {
			t.Errorf("after its copy it is %s", st.Phase)
		}
		h.Delay(machinetest.OpPrecopy, 0)
		p.hello("a")
		h.FailNext(machinetest.OpPrecopy, errBroken)
		if _, err := p.Snapshot(t.Context(), "a", "n2"); err != nil {
			t.Error("without a copy that was made before:", err)
		}
	})
}

// TestCheckpointEveryYields lets each checkpoint take longer than a gap: one request
// in a while ends an attempt, and the others meet none.
func TestCheckpointEveryYields(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.GoBack, o.CheckpointEvery, o.CheckpointPause = true, time.Minute, renewPause
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		const gap, slow = 2 * time.Second, 1500 * time.Millisecond // which the fake does not end early
		h.Delay(machinetest.OpSave, slow)
		waited := 0
		ask := func() {
			began := time.Now()
			p.hello("a")
			if time.Since(began) > 0 {
				waited++
			}
		}
		for range 5 * time.Minute / gap {
			ask()
			time.Sleep(gap)
		}
		ask() // and ends the attempt that may be under way
		if n, most := h.Count("a", machinetest.OpSave), int(5*time.Minute/pauseAfter); n == 0 || n > most || waited != n {
			t.Errorf("a checkpoint was tried %d times, want 1 to %d, and %d requests waited", n, most, waited)
		}
		// Where no gap is long enough, it is renewed beside the requests.
		if n := h.Count("a", machinetest.OpRenew); n == 0 {
			t.Error("it was never renewed")
		}
		if a := p.CheckpointAge(); a.Oldest > 2*time.Minute {
			t.Errorf("%+v", a)
		}
	})
}

// TestCheckpointEveryLosesNoMemory: a sandbox whose checkpoint would leave something
// out is not put to sleep for one.
func TestCheckpointEveryLosesNoMemory(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.CheckpointEvery = time.Minute
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		h.set(func() { h.changed["a"] = `"namespaces":true` })
		for range 100 {
			p.hello("a")
			time.Sleep(3 * time.Second)
		}
		if n := h.Count("a", machinetest.OpSave); n != 0 {
			t.Errorf("it was saved %d times", n)
		}
		if n := h.Count("a", machinetest.OpPause); n > 1 { // once, to find out
			t.Errorf("it was paused %d times", n)
		}
	})
}
