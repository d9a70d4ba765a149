package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

func TestHoldsWakeOnce(t *testing.T) {
	for _, tier := range []string{"paused", "saved", "disk"} {
		t.Run(tier, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				p.sleep(tier)
				h.Delay(machinetest.OpResume, time.Second)
				h.Delay(machinetest.OpRestore, time.Second)
				began := time.Now()
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						release, err := p.Hold(t.Context(), "a")
						if err != nil {
							t.Error(err)
							return
						}
						if took := time.Since(began); took != time.Second {
							t.Errorf("a hold took %v", took)
						}
						time.Sleep(time.Hour) // far longer than the idle time
						if got := p.phase("a"); got != doze.Running {
							t.Errorf("held, it is %s", got)
						}
						release()
						release() // once is enough
					})
				}
				all.Wait()
				if n := h.Count("a", machinetest.OpResume) + h.Count("a", machinetest.OpRestore); n != 1 {
					t.Errorf("100 holds woke it %d times", n)
				}
				p.in("a", doze.Running, "awake")
				time.Sleep(pauseAfter - time.Second)
				p.in("a", doze.Running, "awake")
				time.Sleep(2 * time.Second)
				p.in("a", doze.Standby, "paused")
			})
		})
	}
}

// TestRequestMeanwhile sends a request while something else takes its time.
func TestRequestMeanwhile(t *testing.T) {
	tests := map[string]struct {
		slow  machinetest.Op
		after time.Duration // when the slow step has begun
		phase doze.Phase    // then
	}{
		"suspending":       {machinetest.OpPause, pauseAfter + time.Second, doze.Suspending},
		"sinking to saved": {machinetest.OpSave, pauseAfter + 3*time.Second + saveAfter, doze.Standby},
		"sinking to disk":  {machinetest.OpDrop, pauseAfter + 3*time.Second + diskAfter, doze.Standby},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				p := h.has("a")
				h.Delay(test.slow, 30*time.Second)
				time.Sleep(test.after)
				if got := p.phase("a"); got != test.phase {
					h.t.Fatalf("it is %s, want %s", got, test.phase)
				}
				p.hello("a")
				p.in("a", doze.Running, "awake")
				h.Delay(test.slow, 0)
				p.sleep("disk") // timers go on as ever
			})
		})
	}
}

// TestCutSink: whoever ended a move to disk and went away leaves a box that
// sinks later.
func TestCutSink(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		h.Delay(machinetest.OpSave, 30*time.Second)
		time.Sleep(pauseAfter + saveAfter + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Hold(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		p.in("a", doze.Standby, "paused")
		if n := h.notes("a"); n != 0 {
			t.Errorf("%d notes about what a request did", n)
		}
		h.Delay(machinetest.OpSave, 0)
		time.Sleep(diskAfter)
		p.in("a", doze.Standby, "disk")
	})
}

// TestWokeCounts: a wake counts from the request, with the end of a move to a
// lower tier that the request waited for. One that gave up counts for nothing.
func TestWokeCounts(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var took []time.Duration
		o := h.options()
		o.Woke = func(_ machine.Tier, d time.Duration, _ error) { h.set(func() { took = append(took, d) }) }
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		const slow, since = 3 * time.Second, time.Second
		h.Delay(machinetest.OpSave, slow)
		time.Sleep(pauseAfter + saveAfter + since)
		p.hello("a")
		h.set(func() {
			if len(took) != 1 || took[0] < slow-since || took[0] > slow-since+time.Second {
				t.Errorf("wakes took %v, and the request waited %v", took, slow-since)
			}
			took = nil
		})

		time.Sleep(pauseAfter + saveAfter + since)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Hold(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		h.Delay(machinetest.OpSave, 0)
		time.Sleep(saveAfter + time.Minute)
		p.hello("a")
		h.set(func() {
			if len(took) != 1 || took[0] > time.Second {
				t.Errorf("wakes took %v, and nobody waited", took)
			}
		})
	})
}

func TestFailedSuspend(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		h.FailNext(machinetest.OpPause, errBroken)
		time.Sleep(pauseAfter + time.Second)
		p.in("a", doze.Running, "awake")
		if last := h.last("a"); last.Phase != doze.Running || last.Message == "" {
			t.Errorf("reported %+v", last)
		}
		p.hello("a")
		time.Sleep(pauseAfter + time.Second) // it is not tried again so soon
		p.in("a", doze.Running, "awake")
		time.Sleep(time.Minute)
		p.in("a", doze.Standby, "paused")
	})
}

func TestFailedSave(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		for range 3 {
			h.FailNext(machinetest.OpSave, fmt.Errorf("write /secret/path: %w", syscall.ENOSPC))
		}
		time.Sleep(pauseAfter + saveAfter + 2*time.Minute + time.Second)
		p.in("a", doze.Standby, "paused")
		if n := h.Count("a", machinetest.OpSave); n != 3 {
			t.Errorf("%d attempts in two minutes", n)
		}
		if n := h.notes("a"); n != 1 {
			t.Errorf("%d notes, want 1", n)
		}
		if last := h.last("a").Message; strings.Contains(last, "secret") || !strings.HasSuffix(last, "stays in memory: the disk of the node is full") {
			t.Errorf("reported %q", last)
		}
		p.hello("a") // it is as good as ever
		p.sleep("paused")
		time.Sleep(time.Minute)
		p.in("a", doze.Standby, "saved")
	})
}

func TestFailedWake(t *testing.T) {
	tests := map[string]struct {
		err  error
		kind doze.Kind
		text string
	}{
		"engine":  {fmt.Errorf("run /host/path: %w", errBroken), doze.Unavailable, "the node's log has it"},
		"slow":    {context.DeadlineExceeded, doze.Unavailable, "it took too long"},
		"damaged": {fmt.Errorf("%w: memory.img was altered near byte 7\nkill: /run/x", machine.ErrDamaged), doze.Conflict, "the checkpoint cannot be run: memory.img was altered near byte 7: restore one of its snapshots, or delete it"},
		"no engine": {
			fmt.Errorf("adopt: %w: the engine \"v1\" is not installed: put it back as /var/x", machine.ErrNoEngine),
			doze.Unavailable, "its engine is missing: the engine \"v1\" is not installed",
		},
		"path": {fmt.Errorf("restore: %w: memory.img: open /var/x/memory.img: %w", machine.ErrDamaged, os.ErrNotExist), doze.Conflict, "the checkpoint cannot be run: memory.img: restore"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				p.sleep("disk")
				h.FailNext(machinetest.OpRestore, test.err)
				h.Delay(machinetest.OpRestore, time.Second)
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						_, err := p.Hold(t.Context(), "a")
						h.kind(err, test.kind, test.text)
						if message := doze.Public(err).Message; strings.Contains(message, "/") || strings.HasSuffix(message, ": ") {
							t.Errorf("the caller is told %q", message)
						}
					})
				}
				all.Wait()
				p.in("a", doze.Standby, "disk")
				if n := h.Count("a", machinetest.OpRestore); n != 1 {
					t.Errorf("%d attempts for 20 callers", n)
				}
				if last := h.last("a"); last.Phase != doze.Standby || strings.Contains(last.Message, "/") {
					t.Errorf("reported %+v", last)
				}
				p.hello("a")
			})
		})
	}
}

// TestDamagedImage has a real one.
func TestDamagedImage(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.sleep("disk")
		name := filepath.Join(h.dir, "sandboxes", "a", "machine", "image", "memory.json")
		sound, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for what, do := range map[string]func() error{
			"altered": func() error { return os.WriteFile(name, append(sound, 'x'), 0o600) },
			"missing": func() error { return os.Remove(name) },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
			_, err = p.call(t.Context(), "a", appPort)
			h.kind(err, doze.Conflict, "the checkpoint cannot be run")
			if strings.Contains(doze.Public(err).Message, h.dir) {
				t.Errorf("%s: %v", what, err)
			}
		}
		p.in("a", doze.Standby, "disk")
		if err := os.WriteFile(name, sound, 0o600); err != nil {
			t.Fatal(err)
		}
		p.hello("a")
	})
}

// TestExit ends the machine in every phase.
func TestExit(t *testing.T) {
	slow := func(op machinetest.Op, after time.Duration) func(*host, *process) {
		return func(h *host, _ *process) {
			h.Delay(op, 30*time.Second)
			time.Sleep(after)
		}
	}
	waking := func(tier string, op machinetest.Op) func(*host, *process) {
		return func(h *host, p *process) {
			p.sleep(tier)
			h.Delay(op, 30*time.Second)
			go func() { _, _ = p.call(h.t.Context(), "a", appPort) }()
			time.Sleep(time.Second)
		}
	}
	tests := map[string]struct {
		before func(*host, *process)
		in     doze.Phase
		want   doze.Phase
		tier   string
	}{
		"running":        {func(*host, *process) {}, doze.Running, doze.Failed, ""},
		"held":           {func(h *host, p *process) { _, _ = p.Hold(h.t.Context(), "a") }, doze.Running, doze.Failed, ""},
		"suspending":     {slow(machinetest.OpPause, pauseAfter+time.Second), doze.Suspending, doze.Failed, ""},
		"paused":         {func(_ *host, p *process) { p.sleep("paused") }, doze.Standby, doze.Failed, ""},
		"saving":         {slow(machinetest.OpSave, pauseAfter+saveAfter+time.Second), doze.Standby, doze.Failed, ""},
		"saved":          {func(_ *host, p *process) { p.sleep("saved") }, doze.Standby, doze.Standby, "disk"},
		"dropping":       {slow(machinetest.OpDrop, pauseAfter+diskAfter+time.Second), doze.Standby, doze.Standby, "disk"},
		"waking, paused": {waking("paused", machinetest.OpResume), doze.Waking, doze.Failed, ""},
		"waking, saved":  {waking("saved", machinetest.OpResume), doze.Waking, doze.Running, "awake"},
		"disabling": {func(h *host, p *process) {
			h.Delay(machinetest.OpPause, 30*time.Second)
			go func() { _ = p.Disable(h.t.Context(), "a") }()
			time.Sleep(time.Second)
		}, doze.Disabling, doze.Failed, ""},
		"disabled": {func(h *host, p *process) {
			h.FailNext(machinetest.OpSave, errBroken)
			if err := p.Disable(h.t.Context(), "a"); err != nil {
				h.t.Fatal(err)
			}
		}, doze.Disabled, doze.Failed, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				test.before(h, p)
				if got := p.phase("a"); got != test.in {
					t.Fatalf("it is %s, want %s", got, test.in)
				}
				h.OutOfMemory("a", true)
				time.Sleep(35 * time.Second)
				synctest.Wait()
				st, _ := p.Status("a")
				if st.Phase != test.want || st.Tier != test.tier {
					t.Fatalf("it is %s, %s; want %s, %s", st.Phase, st.Tier, test.want, test.tier)
				}
				last := h.last("a")
				if last.Phase != test.want {
					t.Errorf("reported %+v", last)
				}
				if test.want == doze.Failed {
					if !strings.Contains(last.Message, "ended by itself") {
						t.Errorf("reported %+v", last)
					}
					_, err := p.call(t.Context(), "a", appPort)
					h.kind(err, doze.Conflict, "the sandbox is failed: its machine ended by itself")
					h.kind(p.Disable(t.Context(), "a"), doze.Conflict, "the sandbox is failed")
					h.kind(p.Enable(t.Context(), "a"), doze.Conflict, "the sandbox is failed")
					p.stop()
					p = h.start()
					if last := h.last("a"); last.Phase != doze.Failed || !strings.Contains(last.Message, "ended by itself") {
						t.Errorf("after a restart it reported %+v", last)
					}
				} else {
					p.hello("a")
				}
				if err := p.Delete(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				p.empty("a")
			})
		})
	}
}

// TestGoesBack ends machines that may go on from their last checkpoint: awake,
// paused, and with the host. Each says of when that is.
func TestGoesBack(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.GoBack = true
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		back := func(how string) {
			t.Helper()
			synctest.Wait()
			if st, _ := p.Status("a"); st.Phase != doze.Standby || st.Tier != "disk" {
				t.Fatalf("%s: it is %s, %s", how, st.Phase, st.Tier)
			}
			if last := h.last("a"); !strings.Contains(last.Message, "it goes on from its checkpoint of 2000-01-01T") || !strings.Contains(last.Message, "what it did since is lost") {
				t.Errorf("%s: reported %+v", how, last)
			}
			st, _ := p.Status("a")
			if st.Setback == nil || !st.Setback.At.After(st.Setback.Checkpoint) || st.Setback.At.After(time.Now()) {
				t.Fatalf("%s: it went back to %+v", how, st.Setback)
			}
			p.hello("a")
			age := time.Since(st.Setback.Checkpoint)
			if got, ok := p.StateAge("a"); !ok || got != age {
				t.Errorf("%s: its state is %v old, %t, want %v", how, got, ok, age)
			}
			if got, ok := p.StateAge("a"); ok {
				t.Errorf("%s: a second answer says that its state is %v old", how, got)
			}
			// What is known of it lasts, and nobody is told again.
			p.sleep("paused")
			p.hello("a")
			if last := h.last("a"); strings.Contains(last.Message, "it goes on from its checkpoint") {
				t.Errorf("%s: a later wake says so again: %+v", how, last)
			}
			p.stop()
			p = h.startWith(o)
			if now, _ := p.Status("a"); now.Setback == nil || !now.Setback.At.Equal(st.Setback.At) || !now.Setback.Checkpoint.Equal(st.Setback.Checkpoint) {
				t.Errorf("%s: after a restart it went back to %+v, not %+v", how, now.Setback, st.Setback)
			}
			if got, ok := p.StateAge("a"); ok {
				t.Errorf("%s: after a restart an answer says again that its state is %v old", how, got)
			}
		}
		if st, _ := p.Status("a"); st.Setback != nil {
			t.Errorf("it went back to %+v before it could", st.Setback)
		}
		if _, ok := p.StateAge("a"); ok {
			t.Error("it has an age before it went back")
		}
		for range 2 {
			p.sleep("disk")
			release, err := p.Hold(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			h.Kill("a")
			synctest.Wait()
			release()
			back("awake")
		}
		p.sleep("disk")
		p.hello("a")
		p.sleep("paused")
		h.Kill("a")
		back("paused")

		p.sleep("disk")
		p.hello("a")
		p.stop()
		h.Reboot()
		p = h.startWith(o)
		// Control records no message with a phase that it knows. It may not have heard that the
		// sandbox woke.
		if last := h.last("a"); !last.Note {
			t.Errorf("what it lost with the host is reported with its phase alone: %+v", last)
		}
		back("with the host")
		if n := h.Count("a", machinetest.OpBoot); n != 1 {
			t.Errorf("it was booted %d times", n)
		}

		p.sleep("disk")
		p.hello("a")
		p.stop()
		h.Reboot()
		o.GoBack = false // from now on
		p = h.startWith(o)
		p.in("a", doze.Failed, "")
	})
}

// TestLastMakesRoom: a disk without room for two checkpoints of a sandbox has room
// for the next in place of the last.
func TestLastMakesRoom(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.GoBack = true
		var asked []int64
		full := false
		o.SleepRoom = func(n int64) (release func(), err error) {
			h.set(func() {
				if asked = append(asked, n); full && len(asked) == 1 {
					err = doze.Errorf(doze.Exhausted, "the disk of this host has no room")
				}
			})
			return func() {}, err
		}
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		p.sleep("disk")
		p.hello("a")
		h.set(func() { asked, full = nil, true })
		p.sleep("disk")
		h.set(func() {
			if len(asked) != 2 || asked[1] >= asked[0] {
				t.Errorf("it asked for %v", asked)
			}
		})
	})
}

// TestExitWithCheckpoint ends machines of which a complete checkpoint is left:
// their memory was still being loaded.
func TestExitWithCheckpoint(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.sleep("disk")
		image := filepath.Join(h.dir, "sandboxes", "a", "machine", "image")
		copied := filepath.Join(h.dir, "image")
		if err := os.CopyFS(copied, os.DirFS(image)); err != nil {
			t.Fatal(err)
		}
		release, err := p.Hold(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(image, os.DirFS(copied)); err != nil {
			t.Fatal(err)
		}
		h.Kill("a")
		synctest.Wait()
		if st, _ := p.Status("a"); st.Phase != doze.Standby || st.Tier != "disk" {
			t.Fatalf("it is %s, %s", st.Phase, st.Tier)
		}
		if last := h.last("a"); last.Phase != doze.Standby || !strings.Contains(last.Message, "sleeps on from its checkpoint") {
			t.Errorf("reported %+v", last)
		}
		release() // of the earlier life
		p.hello("a")
		p.sleep("disk")
	})
}

func TestOutOfMemoryNote(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		h.OutOfMemory("a", false)
		h.OutOfMemory("unknown", false)
		if last := h.last("a"); !last.Note || last.Phase != doze.Running || last.Message != "the memory limit was reached" {
			t.Errorf("reported %+v", last)
		}
		p.hello("a")
	})
}

func TestKeepAlive(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		h.set(func() { h.holds["a"] = 1 })
		time.Sleep(3 * time.Hour)
		st, _ := p.Status("a")
		if st.Phase != doze.Running || !st.InUse || time.Since(st.LastUsed) > pauseAfter {
			t.Errorf("kept awake, it is %+v", st)
		}
		h.set(func() { h.holds["a"] = 0 })
		p.sleep("paused")
		p.hello("a")
		h.set(func() { h.deaf = true })
		p.hello("a")
		time.Sleep(pauseAfter + time.Second) // it is being asked
		p.hello("a")                         // which counts as use
		time.Sleep(pauseAfter - time.Second)
		p.in("a", doze.Running, "awake")
		time.Sleep(time.Minute) // it may be very busy
		if st, _ := p.Status("a"); st.Phase != doze.Running {
			t.Errorf("busy, it is %s", st.Phase)
		}
		time.Sleep(time.Hour) // the agent has lost its say
		p.in("a", doze.Standby, "disk")
	})
}

// TestDelete deletes in every phase.
func TestDelete(t *testing.T) {
	tests := map[string]func(*host, *process){
		"running":    func(*host, *process) {},
		"held":       func(h *host, p *process) { _, _ = p.Hold(h.t.Context(), "a") },
		"suspending": func(h *host, _ *process) { h.Delay(machinetest.OpPause, time.Second); time.Sleep(pauseAfter + 1) },
		"paused":     func(_ *host, p *process) { p.sleep("paused") },
		"saving": func(h *host, _ *process) {
			h.Delay(machinetest.OpSave, time.Second)
			time.Sleep(pauseAfter + saveAfter + 1)
		},
		"saved":   func(_ *host, p *process) { p.sleep("saved") },
		"on disk": func(_ *host, p *process) { p.sleep("disk") },
		"waking": func(h *host, p *process) {
			p.sleep("disk")
			h.Delay(machinetest.OpRestore, time.Second)
			for range 10 {
				go func() {
					_, err := p.Hold(h.t.Context(), "a")
					h.kind(err, doze.Unavailable, "deleted")
				}()
			}
			synctest.Wait()
		},
		"disabling": func(h *host, p *process) {
			h.Delay(machinetest.OpSave, time.Second)
			go func() {
				if p.Disable(h.t.Context(), "a") == nil {
					h.t.Error("a deleted sandbox was disabled")
				}
			}()
			synctest.Wait()
		},
		"disabled": func(h *host, p *process) {
			if err := p.Disable(h.t.Context(), "a"); err != nil {
				h.t.Fatal(err)
			}
		},
		"failed": func(h *host, _ *process) { h.Kill("a"); synctest.Wait() },
		"deleting": func(h *host, p *process) {
			h.Delay(machinetest.OpClose, time.Second)
			go func() {
				if err := p.Delete(h.t.Context(), "a"); err != nil {
					h.t.Error(err)
				}
			}()
			synctest.Wait()
		},
		"close failed": func(h *host, p *process) {
			h.FailNext(machinetest.OpClose, errBroken)
			if err := p.Delete(h.t.Context(), "a"); !errors.Is(err, errBroken) {
				h.t.Error(err)
			}
			_, err := p.call(h.t.Context(), "a", appPort)
			h.kind(err, doze.Unavailable, "the sandbox is being deleted")
		},
		"release failed": func(h *host, p *process) {
			h.set(func() { h.failing["release"] = errBroken })
			if err := p.Delete(h.t.Context(), "a"); !errors.Is(err, errBroken) {
				h.t.Error(err)
			}
		},
		"caller gone": func(h *host, p *process) {
			h.Delay(machinetest.OpSave, time.Hour)
			time.Sleep(pauseAfter + saveAfter + 1)
			ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			if err := p.Delete(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				h.t.Errorf("delete with a second of time: %v after %v", err, time.Since(began))
			}
		},
	}
	for name, before := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a", "b")
				before(h, p)
				if err := p.Delete(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				p.empty("a")
				time.Sleep(time.Hour)
				p.empty("a")
				last, gone := h.last("a"), 0
				for _, r := range h.told("a") {
					if r.Phase == doze.Terminated {
						gone++
					}
				}
				if last.Phase != doze.Terminated || gone != 1 {
					t.Errorf("reported %+v, %d times", last, gone)
				}
				if err := p.Delete(t.Context(), "a"); err != nil {
					t.Error("again:", err)
				}
				_, err := p.call(t.Context(), "a", appPort)
				h.kind(err, doze.NotFound, "no such sandbox")
				p.hello("b")
			})
		})
	}
}

func TestDisable(t *testing.T) {
	tests := map[string]func(*host, *process){
		"running":    func(*host, *process) {},
		"suspending": func(h *host, _ *process) { h.Delay(machinetest.OpPause, time.Second); time.Sleep(pauseAfter + 1) },
		"paused":     func(_ *host, p *process) { p.sleep("paused") },
		"saving": func(h *host, _ *process) {
			h.Delay(machinetest.OpSave, time.Second)
			time.Sleep(pauseAfter + saveAfter + 1)
		},
		"on disk": func(_ *host, p *process) { p.sleep("disk") },
		"waking": func(h *host, p *process) {
			p.sleep("disk")
			h.Delay(machinetest.OpRestore, time.Second)
			go func() { _, _ = p.call(h.t.Context(), "a", appPort) }()
			synctest.Wait()
		},
		"disabling": func(h *host, p *process) {
			h.Delay(machinetest.OpPause, time.Second)
			go func() {
				if err := p.Disable(h.t.Context(), "a"); err != nil {
					h.t.Error(err)
				}
			}()
			synctest.Wait()
		},
		"pause failed": func(h *host, p *process) {
			h.FailNext(machinetest.OpPause, errBroken)
			if err := p.Disable(h.t.Context(), "a"); !errors.Is(err, errBroken) {
				h.t.Error(err)
			}
			h.kind(p.Enable(h.t.Context(), "a"), doze.Conflict, "the sandbox is disabling")
		},
	}
	for name, before := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				before(h, p)
				for range 2 {
					if err := p.Disable(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Second) // who was about to connect gives up
					p.in("a", doze.Disabled, "disk")
				}
				for range 2 {
					_, err := p.call(t.Context(), "a", appPort)
					h.kind(err, doze.Conflict, "the sandbox is disabled")
					p.stop()
					p = h.start()
					p.in("a", doze.Disabled, "disk")
				}
				for range 2 {
					if err := p.Enable(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
				}
				p.in("a", doze.Standby, "disk")
				p.stop()
				p = h.start()
				p.hello("a")
				p.sleep("disk")
			})
		})
	}
}

// TestDisableHeld cuts off the requests in flight.
func TestDisableHeld(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.app = streaming
		p := h.has("a")
		ended := make(chan error, 1)
		go func() {
			_, err := p.call(t.Context(), "a", appPort)
			ended <- err
		}()
		synctest.Wait()
		if err := p.Disable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Error("a stream of a disabled sandbox ended well")
		}
		p.in("a", doze.Disabled, "disk")
	})
}

// TestDisableWhileConnecting: who is about to connect is told at once that there
// is nobody.
func TestDisableWhileConnecting(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		const slow = 10 * time.Millisecond
		h.Delay(machinetest.OpDial, slow)
		ended := make(chan error, 1)
		began := time.Now()
		go func() {
			_, err := p.call(t.Context(), "a", appPort)
			ended <- err
		}()
		synctest.Wait() // it is let in, and waits for the machine
		h.set(func() { h.deaf = true })
		go func() {
			if err := p.Disable(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		}()
		h.kind(<-ended, doze.Conflict, "the sandbox is disabling")
		if took := time.Since(began); took > slow {
			t.Errorf("it was told after %v", took)
		}
		h.set(func() { h.deaf = false })
		synctest.Wait()
		time.Sleep(time.Minute)
		p.in("a", doze.Disabled, "disk")
	})
}

// TestDisabledSinks: a disabled sandbox gets to disk, if late.
func TestDisabledSinks(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		h.FailNext(machinetest.OpSave, errBroken)
		if err := p.Disable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.in("a", doze.Disabled, "paused")
		time.Sleep(time.Minute + time.Second)
		p.in("a", doze.Disabled, "disk")
	})
}

func TestUnknown(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.start()
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		h.kind(p.Disable(t.Context(), "a"), doze.NotFound, "no such sandbox")
		h.kind(p.Enable(t.Context(), "a"), doze.NotFound, "no such sandbox")
		_, err := p.Cost(t.Context(), "a")
		h.kind(err, doze.NotFound, "no such sandbox")
	})
}

// TestWakeStorm: while processors have room, nobody waits for the wake of another.
func TestWakeStorm(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		var uids []string
		for i := range 200 {
			uids = append(uids, fmt.Sprintf("s%d", i))
		}
		p := h.has(uids...)
		time.Sleep(pauseAfter + diskAfter + time.Minute)
		h.Delay(machinetest.OpRestore, time.Second)
		began := time.Now()
		var all sync.WaitGroup
		for _, uid := range uids {
			all.Go(func() { p.hello(uid) })
		}
		all.Wait()
		if took := time.Since(began); took != time.Second {
			t.Errorf("200 wakes of a second each took %v", took)
		}
	})
}

// TestCrowdedWakes: while the processors are all in use, some wake at a time. Each of
// them has its turn until it has answered, but not for ever. Nobody goes to disk meanwhile,
// and who is not on disk wakes at once.
func TestCrowdedWakes(t *testing.T) {
	const most = 3
	for name, tt := range map[string]struct {
		held  bool          // the requests do not end
		fails bool          // the first wake does
		took  time.Duration // of each turn
	}{
		"answered": {took: time.Second},
		"held":     {held: true, took: node.WakeTurn},
		"failed":   {fails: true, took: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t, busy := h.t, atomic.Bool{}
				o := h.options()
				o.Crowded = busy.Load
				p := h.startWith(o)
				p.WakeAtATime(most)
				var uids []string
				for i := range 2*most + 2 {
					uids = append(uids, fmt.Sprintf("s%d", i))
					p.create(uids[i])
				}
				time.Sleep(pauseAfter + diskAfter + time.Minute)
				p.create("paused")
				time.Sleep(pauseAfter + saveAfter + time.Second)
				p.in("paused", doze.Standby, "saved")
				busy.Store(true)
				h.Delay(machinetest.OpRestore, time.Second)
				if tt.fails {
					h.FailNext(machinetest.OpRestore, errBroken)
				}
				began := time.Now()
				var all sync.WaitGroup
				came := make([]time.Duration, len(uids))
				for i, uid := range uids {
					all.Go(func() {
						release, err := p.Hold(t.Context(), uid)
						came[i] = time.Since(began)
						if err == nil && !tt.held {
							release()
						}
					})
				}
				synctest.Wait()
				p.hello("paused")
				if took := time.Since(began); took != 0 {
					t.Errorf("one that is not on disk waited %v", took)
				}
				all.Wait()
				if took, want := slices.Max(came), 2*tt.took+time.Second; took != want {
					t.Errorf("the last one came after %v, want %v", took, want)
				}
			})
		})
	}
}

// TestCrowdedCallersLeave: a wake whose callers are all gone has no turn any more when it
// ends.
func TestCrowdedCallersLeave(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		o := h.options()
		o.Crowded = func() bool { return true }
		p := h.startWith(o)
		p.WakeAtATime(1)
		p.create("a")
		p.create("b")
		time.Sleep(pauseAfter + diskAfter + time.Minute)
		h.Delay(machinetest.OpRestore, time.Second)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		go func() {
			if _, err := p.Hold(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it entered: %v", err)
			}
		}()
		synctest.Wait()
		p.hello("b")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the next one came after %v", took)
		}
	})
}

// TestCrowdedStays: one that is due on disk stays while wakes wait for each other, but not
// for ever.
func TestCrowdedStays(t *testing.T) {
	virtual(t, func(h *host) {
		t, busy := h.t, atomic.Bool{}
		o := h.options()
		o.Crowded = busy.Load
		p := h.startWith(o)
		p.WakeAtATime(1)
		p.create("early")
		var uids []string
		for i := range 1 + int(2*time.Minute/node.WakeTurn) {
			uids = append(uids, fmt.Sprintf("s%d", i))
			p.create(uids[i])
		}
		time.Sleep(pauseAfter + diskAfter + time.Minute)
		p.hello("early")
		time.Sleep(pauseAfter + diskAfter - 10*time.Second)
		busy.Store(true)
		for _, uid := range uids {
			go func() { _, _ = p.Hold(t.Context(), uid) }()
		}
		time.Sleep(20 * time.Second)
		p.in("early", doze.Standby, "saved")
		time.Sleep(time.Minute)
		p.in("early", doze.Standby, "disk")
	})
}

func TestRelieve(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a", "b", "c", "d")
		for _, uid := range []string{"c", "a", "d", "b"} {
			p.hello(uid)
			time.Sleep(time.Second)
		}
		time.Sleep(pauseAfter + 1)
		h.Delay(machinetest.OpSave, 10*time.Second)
		h.FailNext(machinetest.OpSave, errBroken) // of c: it is a's turn then
		h.set(func() { h.free = 1 })
		tiers := func() (got []string) {
			synctest.Wait()
			for _, uid := range []string{"c", "a", "d", "b"} {
				st, _ := p.Status(uid)
				got = append(got, st.Tier)
			}
			return got
		}
		time.Sleep(15 * time.Second)
		if diff := cmp.Diff([]string{"paused", "paused", "paused", "paused"}, tiers()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff([]string{"paused", "disk", "paused", "paused"}, tiers()); diff != "" {
			t.Error(diff)
		}
		h.set(func() { h.free = 1 << 30 }) // d is on its way
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff([]string{"paused", "disk", "disk", "paused"}, tiers()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff([]string{"paused", "disk", "disk", "paused"}, tiers()); diff != "" {
			t.Error(diff)
		}
		p.hello("a")
	})
}

// TestBudget: sandboxes over the budget go down, the longest unused first: to
// swap as long as that helps, then to disk, and last without the processes of
// their wakes.
func TestBudget(t *testing.T) {
	const each = 1 << 20 // that a machine of the fake takes in memory
	for name, tc := range map[string]struct {
		budget   int64
		swap     bool
		want     []string
		releases int
	}{
		"no limit":           {0, true, []string{"paused", "paused", "awake"}, 0},
		"enough":             {3 * each, true, []string{"paused", "paused", "awake"}, 0},
		"one into swap":      {3*each - 1, true, []string{"swapped", "paused", "awake"}, 0},
		"without swap":       {3*each - 1, false, []string{"disk", "paused", "awake"}, 0},
		"more than they can": {1, true, []string{"disk", "disk", "awake"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				h.Ready = true
				h.set(func() { h.holds["c"] = 1 })
				o := h.options()
				if tc.swap {
					o = h.swapping()
				}
				o.Budget = tc.budget
				p := h.startWith(o)
				for _, uid := range []string{"a", "b", "c"} {
					if err := p.Create(h.t.Context(), order(uid)); err != nil {
						h.t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				time.Sleep(pauseAfter + 10*time.Second)
				synctest.Wait()
				var got []string
				for _, uid := range []string{"a", "b", "c"} {
					st, _ := p.Status(uid)
					got = append(got, st.Tier)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					h.t.Errorf("tiers (-want +got):\n%s", diff)
				}
				if n := h.Count("", machinetest.OpRelease); n != tc.releases {
					h.t.Errorf("%d processes were given back, want %d", n, tc.releases)
				}
				for _, uid := range []string{"a", "b", "c"} {
					p.hello(uid)
				}
			})
		})
	}
}

// TestStop stops a node in the middle of everything.
func TestStop(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("waking", "sinking", "held")
		time.Sleep(pauseAfter + diskAfter + time.Second)
		p.hello("sinking")
		time.Sleep(pauseAfter + 1)
		for _, op := range []machinetest.Op{machinetest.OpSave, machinetest.OpRestore} {
			h.Delay(op, 10*time.Minute)
		}
		h.app = streaming
		ended := make(chan error, 2)
		go func() { _, err := p.call(t.Context(), "waking", appPort); ended <- err }()
		time.Sleep(saveAfter)
		h.Delay(machinetest.OpRestore, 0)
		go func() { _, err := p.call(t.Context(), "held", appPort); ended <- err }()
		time.Sleep(time.Second)
		p.stop()
		for range 2 {
			if err := <-ended; err == nil {
				t.Error("a request survived its node")
			}
		}
		_, err := p.call(t.Context(), "sinking", appPort)
		h.kind(err, doze.Unavailable, "the node is shutting down")
		if err := p.Create(t.Context(), order("late")); err == nil {
			t.Error("a node that has stopped creates")
		}
		h.empty("late")
		p = h.start()
		for _, uid := range []string{"waking", "sinking", "held"} {
			h.app = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }
			p.hello(uid)
		}
	})
}
