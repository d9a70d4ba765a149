package node_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

// TestCreateUndoes fails each step of a Create.
func TestCreateUndoes(t *testing.T) {
	tests := map[string]struct {
		before func(*host)
		after  func(*host, *process) // while Create waits
		give   time.Duration
		text   string
		left   bool // for Delete
	}{
		"image":     {before: func(h *host) { h.failing["image"] = errBroken }, text: "image base: broken"},
		"record":    {before: func(h *host) { _ = os.WriteFile(filepath.Join(h.dir, "sandboxes", "a"), nil, 0o600) }, text: "write the record"},
		"lease":     {before: func(h *host) { h.failing["lease"] = errBroken }, text: "lease an address: broken"},
		"boot":      {before: func(h *host) { h.FailNext(machinetest.OpBoot, errBroken) }, text: "boot: broken"},
		"no agent":  {before: func(h *host) { h.Handler = func(machine.Config, uint16) http.Handler { return nil } }, text: "its agent did not answer within 1m0s"},
		"deaf":      {before: func(h *host) { h.deaf = true }, text: "its agent did not answer within 1m0s"},
		"caller":    {before: func(h *host) { h.deaf = true }, give: time.Second, text: "deadline"},
		"deleted":   {before: func(h *host) { h.deaf = true }, after: func(h *host, p *process) { _ = p.Delete(h.t.Context(), "a") }, text: "the sandbox is being deleted"},
		"stopped":   {before: func(h *host) { h.deaf = true }, after: func(_ *host, p *process) { p.stop() }, text: "the node is shutting down"},
		"exits":     {before: func(h *host) { h.deaf = true }, after: func(h *host, _ *process) { h.Kill("a") }, text: "ended while it started: its machine ended by itself"},
		"slow boot": {before: func(h *host) { h.Delay(machinetest.OpBoot, time.Minute) }, after: func(h *host, p *process) { _ = p.Delete(h.t.Context(), "a") }, text: "the sandbox is being deleted"},
		"undo": {
			before: func(h *host) { h.deaf = true; h.FailNext(machinetest.OpClose, errBroken) },
			text:   "did not answer", left: true,
		},
		"undo of the lease": {
			before: func(h *host) { h.FailNext(machinetest.OpBoot, errBroken); h.failing["release"] = errBroken },
			text:   "boot: broken", left: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.start()
				test.before(h)
				ctx := t.Context()
				if test.give > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.give)
					defer cancel()
				}
				failed := make(chan error, 1)
				go func() { failed <- p.Create(ctx, order("a")) }()
				if test.after != nil {
					time.Sleep(time.Second)
					test.after(h, p)
				}
				err := <-failed
				if err == nil || !strings.Contains(err.Error(), test.text) {
					t.Errorf("create: %v, want %q", err, test.text)
				}
				if name == "record" {
					return // the file in its place was not made by us
				}
				if test.left {
					_, err := p.Hold(t.Context(), "a")
					h.kind(err, doze.Unavailable, "the sandbox could not be started")
					if err := p.Delete(t.Context(), "a"); err != nil {
						t.Error(err)
					}
				}
				p.empty("a")
				for _, r := range h.told("a") {
					if r.Phase == doze.Running {
						t.Errorf("reported %+v", r)
					}
				}
				if name == "stopped" {
					return
				}
				h.set(func() { h.deaf = false })
				h.Delay(machinetest.OpBoot, 0)
				if name != "no agent" {
					if err := p.Create(t.Context(), order("a")); err != nil {
						t.Error("again:", err)
					}
					p.hello("a")
				}
			})
		})
	}
}

func TestCreateTwice(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.Delay(machinetest.OpBoot, time.Second)
		p := h.start()
		var all sync.WaitGroup
		var mu sync.Mutex
		var failed []error
		for range 5 {
			all.Go(func() {
				if err := p.Create(t.Context(), order("a")); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = append(failed, err)
				}
			})
		}
		all.Wait()
		if len(failed) != 4 {
			t.Fatalf("of five creates %d failed", len(failed))
		}
		for _, err := range failed {
			h.kind(err, doze.Conflict, "the node has this sandbox already")
		}
		p.hello("a")
	})
}

// TestRestart adopts sandboxes in every tier.
func TestRestart(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("disk", "saved", "paused", "awake")
		time.Sleep(pauseAfter + diskAfter + time.Second)
		p.hello("saved")
		time.Sleep(pauseAfter + saveAfter + time.Second)
		p.hello("paused")
		time.Sleep(pauseAfter + time.Second)
		p.hello("awake")
		p.stop()
		seqs := map[string]uint64{}
		want := map[string]string{"disk": "disk", "saved": "saved", "paused": "paused", "awake": "awake"}
		for uid := range want {
			seqs[uid] = h.last(uid).Seq
		}
		p = h.start()
		got := map[string]string{}
		for uid := range want {
			st, _ := p.Status(uid)
			got[uid] = st.Tier
			last := h.last(uid)
			if last.Phase != st.Phase || last.Seq <= seqs[uid] {
				t.Errorf("%s: reported %+v after %d", uid, last, seqs[uid])
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		for uid := range want {
			p.hello(uid)
			p.in(uid, doze.Running, "awake")
		}
		time.Sleep(pauseAfter + diskAfter + time.Second)
		p.hello("disk")
		p.stop()
		h.Reboot()
		p = h.start()
		for uid := range want {
			if uid == "disk" { // which was awake
				p.in(uid, doze.Failed, "")
				if last := h.last(uid); !strings.Contains(last.Message, "there was no complete checkpoint: it was awake") {
					t.Errorf("reported %+v", last)
				}
				continue
			}
			p.in(uid, doze.Standby, "disk")
			p.hello(uid)
		}
	})
}

// TestAgents: an agent is needed as long as a sandbox that was born with it is
// known, in whatever phase, and by whatever may come of a damaged record.
func TestAgents(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		agents := func(p *process, want ...string) {
			t.Helper()
			got, all := p.Agents()
			if diff := cmp.Diff(want, got); diff != "" || !all {
				t.Error(all, diff)
			}
		}
		next := func(agent string) *process {
			o := h.options()
			o.Agent = agent
			return h.startWith(o)
		}
		p := next("one")
		for _, uid := range []string{"a", "b"} {
			if err := p.Create(t.Context(), order(uid)); err != nil {
				t.Fatal(err)
			}
		}
		p.stop()
		p = next("two")
		agents(p, "one")
		if err := p.Create(t.Context(), order("c")); err != nil {
			t.Fatal(err)
		}
		agents(p, "one", "two")
		p.stop()
		h.Reboot() // all are failed now
		p = next("three")
		agents(p, "one", "two")
		for _, uid := range []string{"a", "c"} {
			if err := p.Delete(t.Context(), uid); err != nil {
				t.Fatal(err)
			}
		}
		agents(p, "one")
		p.stop()
		if err := os.WriteFile(filepath.Join(h.dir, "sandboxes", "b", "record.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, all := next("four").Agents(); all {
			t.Errorf("with a damaged record: %q", got)
		}
	})
}

// TestAdoptLater: a driver that cannot tell costs nobody a sandbox.
func TestAdoptLater(t *testing.T) {
	for _, tier := range []string{"awake", "paused", "disk"} {
		t.Run(tier, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				if tier != "awake" {
					p.sleep(tier)
				}
				p.stop()
				h.FailNext(machinetest.OpAdopt, errBroken)
				p = h.start()
				p.in("a", doze.Standby, "")
				h.FailNext(machinetest.OpAdopt, errBroken)
				_, err := p.call(t.Context(), "a", appPort)
				h.kind(err, doze.Unavailable, "could not be woken")
				p.hello("a")
				p.sleep("disk")
				p.stop()
				h.FailNext(machinetest.OpAdopt, errBroken)
				p = h.start()
				if err := p.Delete(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				p.empty("a")
			})
		})
	}
}

func TestDamagedRecord(t *testing.T) {
	tests := map[string]func([]byte) []byte{
		"truncated": func(raw []byte) []byte { return raw[:len(raw)/2] },
		"empty":     func([]byte) []byte { return nil },
		"garbage":   func([]byte) []byte { return []byte("\x00\xff{}") },
		"no record": func([]byte) []byte { return []byte("{}") },
		"another's": func(raw []byte) []byte { return []byte(strings.ReplaceAll(string(raw), `"a"`, `"b"`)) },
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a", "b")
				p.sleep("disk")
				p.stop()
				record := filepath.Join(h.dir, "sandboxes", "a", "record.json")
				sound, err := os.ReadFile(record)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(record, damage(sound), 0o600); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					p = h.start()
					p.in("a", doze.Failed, "")
					if last := h.last("a"); last.Phase != doze.Failed || last.Message != "its record on the node is damaged" {
						t.Errorf("reported %+v", last)
					}
					_, err := p.call(t.Context(), "a", appPort)
					h.kind(err, doze.Conflict, "its record on the node is damaged")
					p.hello("b")
					p.stop()
				}
				if err := os.WriteFile(record, sound, 0o600); err != nil { // repaired by hand
					t.Fatal(err)
				}
				p = h.start()
				p.hello("a")
				if err := p.Delete(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				p.empty("a")
			})
		})
	}
}

// TestOddDirectory: what is no sandbox is none of our business.
func TestOddDirectory(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.stop()
		odd := filepath.Join(h.dir, "sandboxes", "lost+found")
		unfinished := filepath.Join(h.dir, "sandboxes", "unfinished")
		for _, name := range []string{odd, unfinished} {
			if err := os.Mkdir(name, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"file", "era", "era.new", "a/record.json.new"} {
			if err := os.WriteFile(filepath.Join(h.dir, "sandboxes", name), []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p = h.start()
		p.hello("a")
		if _, err := os.Stat(odd); err != nil {
			t.Error(err)
		}
		p.empty("unfinished")
	})
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"order":{"UID":"a"},"config":{"ID":"a"},"booted":true}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if node.ParseRecord(raw, "a") && !strings.Contains(string(raw), "a") && !strings.Contains(string(raw), `\u`) {
			t.Errorf("%q is a record of a", raw)
		}
	})
}

// TestReportsAtTheEnd: what happens while a node stops is reported.
func TestReportsAtTheEnd(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t)
			o := h.options()
			report := o.Report
			o.Report = func(r fleet.Report) { time.Sleep(time.Second); report(r) } // control is slow
			p := h.startWith(o)
			for _, uid := range []string{"a", "b", "c"} {
				if err := p.Create(t.Context(), order(uid)); err != nil {
					t.Fatal(err)
				}
			}
			h.Delay(machinetest.OpPause, time.Minute)
			time.Sleep(pauseAfter + time.Second)
			p.stop()
			for _, uid := range []string{"a", "b", "c"} {
				if last, got := h.last(uid), p.phase(uid); last.Phase != got {
					t.Errorf("%s is %s, last reported %+v", uid, got, last)
				}
			}
		})
	}
}

// mortal is the driver and the host of a process that dies at a step: from then
// on nothing that the process does has an effect, and it hangs.
type mortal struct {
	machine.Driver

	h    *host
	mu   sync.Mutex
	left int           // guarded by mu; steps until the end
	dead bool          // guarded by mu
	end  chan struct{} // closed at the end of the test
	died chan struct{} // closed at the step
}

func (h *host) mortal(steps int) *mortal {
	return &mortal{Driver: h.Fake, h: h, left: steps, end: make(chan struct{}), died: make(chan struct{})}
}

// gone reports whether the process has died.
func (m *mortal) gone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// step is called before and after each effect.
func (m *mortal) step() {
	m.mu.Lock()
	m.left--
	over := m.left < 0
	m.mu.Unlock()
	if over {
		m.die()
	}
	if m.gone() {
		<-m.end
		runtime.Goexit()
	}
}

// die ends the process.
func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dead {
		m.dead = true
		close(m.died)
	}
}

func (m *mortal) wrap(x machine.Machine, err error) (machine.Machine, error) {
	if err != nil {
		return nil, err
	}
	return &mortalMachine{x, m}, nil
}

func (m *mortal) Boot(ctx context.Context, c machine.Config) (machine.Machine, error) {
	m.step()
	defer m.step()
	return m.wrap(m.Driver.Boot(ctx, c))
}

func (m *mortal) Adopt(ctx context.Context, c machine.Config) (machine.Machine, error) {
	m.step()
	defer m.step()
	return m.wrap(m.Driver.Adopt(ctx, c))
}

func (m *mortal) Discard(dir string) error {
	m.step()
	defer m.step()
	return m.Driver.Discard(dir)
}

type mortalMachine struct {
	machine.Machine

	m *mortal
}

func (x *mortalMachine) Suspend(ctx context.Context, to machine.Tier) error {
	for x.Tier() < to {
		x.m.step()
		if err := x.Machine.Suspend(ctx, x.Tier().Next(to)); err != nil {
			return err
		}
	}
	x.m.step()
	return x.Machine.Suspend(ctx, to) // it is there: a process may wait for its wake
}

func (x *mortalMachine) Resume(ctx context.Context) error {
	x.m.step()
	defer x.m.step()
	return x.Machine.Resume(ctx)
}

func (x *mortalMachine) Snapshot(ctx context.Context, dir string, freeze machine.Freeze) error {
	x.m.step()
	defer x.m.step()
	return x.Machine.Snapshot(ctx, dir, freeze)
}

func (x *mortalMachine) Archive(ctx context.Context, file string) error {
	x.m.step()
	defer x.m.step()
	return x.Machine.Archive(ctx, file)
}

func (x *mortalMachine) Close(ctx context.Context) error {
	x.m.step()
	defer x.m.step()
	return x.Machine.Close(ctx)
}

// options returns those of a process that dies.
func (m *mortal) options() node.Options {
	o := m.h.options()
	o.Driver = m
	image, lease, release, report := o.Image, o.Lease, o.Release, o.Report
	o.Image = func(ctx context.Context, ref string, login *fleet.Login) (node.Image, error) {
		m.step()
		return image(ctx, ref, login)
	}
	o.Lease = func(ctx context.Context, id string) (machine.Link, error) {
		m.step()
		defer m.step()
		return lease(ctx, id)
	}
	o.Release = func(id string) error { m.step(); defer m.step(); return release(id) }
	o.Report = func(r fleet.Report) {
		if !m.gone() {
			report(r)
		}
	}
	return o
}

// TestCrash lets a node die at every step of a life.
func TestCrash(t *testing.T) {
	phases := []doze.Phase{doze.Running, doze.Standby, doze.Disabled, doze.Failed}
	for steps := 0; ; steps++ {
		complete := false
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t)
			m := h.mortal(steps)
			p := h.startWith(m.options())
			t.Cleanup(func() { close(m.end); synctest.Wait() })
			lived := make(chan struct{})
			var created, disabled, deleting bool
			go func() {
				defer close(lived)
				ctx := t.Context()
				must := func(err error) {
					select {
					case <-m.died:
						runtime.Goexit()
					default:
					}
					if err != nil {
						t.Errorf("step %d: %v", steps, err)
					}
				}
				must(p.Create(ctx, order("a")))
				created = true
				time.Sleep(pauseAfter + saveAfter + time.Second)
				must(nil)
				_, err := p.call(ctx, "a", appPort)
				must(err)
				time.Sleep(pauseAfter + diskAfter + time.Second)
				must(nil)
				_, err = p.call(ctx, "a", appPort)
				must(err)
				must(p.Disable(ctx, "a"))
				disabled = true
				must(p.Enable(ctx, "a"))
				disabled = false
				_, err = p.call(ctx, "a", appPort)
				must(err)
				deleting = true
				must(p.Delete(ctx, "a"))
				complete = true
			}()
			select {
			case <-lived:
				if complete {
					h.empty("a")
					return
				}
			case <-m.died:
			}
			synctest.Wait()
			next := h.start()
			synctest.Wait()
			st, known := next.Status("a")
			switch {
			case !known:
				if created && !deleting {
					t.Errorf("step %d: the sandbox is gone", steps)
				}
				next.empty("a")
			case !slices.Contains(phases, st.Phase) || h.last("a").Phase != st.Phase:
				t.Errorf("step %d: it is %+v, reported %+v", steps, st, h.last("a"))
			case disabled && st.Phase != doze.Disabled:
				t.Errorf("step %d: disabled before, it is %+v", steps, st)
			case st.Phase == doze.Failed:
				t.Errorf("step %d: reported %+v", steps, h.last("a"))
			case st.Phase == doze.Disabled:
				if err := next.Enable(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				fallthrough
			default:
				next.hello("a")
				next.sleep("disk")
				next.hello("a")
			}
			if err := next.Delete(t.Context(), "a"); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("step %d: %v", steps, err)
			}
			next.empty("a")
		})
		if complete || t.Failed() {
			t.Logf("%d steps", steps)
			return
		}
	}
}
