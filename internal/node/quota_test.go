package node_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// awakenings are the ways of a sandbox to run, of those that the machinetest fake has.
var awakenings = map[string]struct {
	prepare func(p *process, uid string) // leaves it asleep, or not there
	wake    func(p *process, uid string) error
}{
	"create": {
		func(*process, string) {},
		func(p *process, uid string) error { return p.Create(p.h.t.Context(), order(uid)) },
	},
	"wake": {
		func(p *process, uid string) { create(p, uid) },
		func(p *process, uid string) error {
			_, err := p.call(p.h.t.Context(), uid, appPort)
			return err
		},
	},
	"unarchive": {
		func(p *process, uid string) {
			create(p, uid)
			if _, err := p.Archive(p.h.t.Context(), uid); err != nil {
				p.h.t.Fatal(err)
			}
		},
		func(p *process, uid string) error { return p.Unarchive(p.h.t.Context(), order(uid)) },
	},
	"claim": {
		func(*process, string) {},
		func(p *process, uid string) error { return p.Claim(order(uid), "") },
	},
}

func create(p *process, uid string) {
	p.h.t.Helper()
	if err := p.Create(p.h.t.Context(), order(uid)); err != nil {
		p.h.t.Fatal(err)
	}
}

// TestNoMoreAreAwake has many sandboxes come for the last place among those of a
// workspace that are awake: one gets it, and of the others none has moved.
func TestNoMoreAreAwake(t *testing.T) {
	const limit, callers = 3, 20
	for _, quota := range []string{doze.QuotaSandboxesAwake, doze.QuotaMemoryAwake} {
		for name, wakeup := range awakenings {
			t.Run(quota+"/"+name, func(t *testing.T) {
				virtual(t, func(h *host) {
					t := h.t
					refused := map[string]int{}
					var mu sync.Mutex
					o := h.options()
					o.Refused = func(quota string) { mu.Lock(); refused[quota]++; mu.Unlock() }
					p := h.startWith(o)
					var uids []string
					for i := range callers {
						uids = append(uids, fmt.Sprint("s", i))
						wakeup.prepare(p, uids[i])
					}
					time.Sleep(pauseAfter + time.Second)
					if n, memory := p.Awake("main"); n != 0 || memory != 0 {
						t.Fatalf("%d are awake, with %d MB, when all sleep", n, memory)
					}
					limits := doze.Limits{quota: limit}
					if quota == doze.QuotaMemoryAwake {
						limits[quota] = int64(limit * order("").Memory)
					}
					p.SetLimits("main", limits)
					for i := range limit - 1 {
						create(p, fmt.Sprint("other", i))
					}
					phases := map[string]doze.Phase{}
					for _, uid := range uids {
						phases[uid] = p.phase(uid)
					}
					errs := make([]error, callers)
					var calls sync.WaitGroup
					for i, uid := range uids {
						calls.Go(func() { errs[i] = wakeup.wake(p, uid) })
					}
					calls.Wait()
					synctest.Wait()
					won := 0
					for i, err := range errs {
						if err == nil {
							won++
							continue
						}
						want := map[string]any{"quota": quota, "used": limits[quota], "limit": limits[quota]}
						if e := doze.Public(err); e.Name != doze.NameQuotaExceeded || !cmp.Equal(e.Fields, want) {
							t.Errorf("refused with %v, %v", err, e.Fields)
						}
						if now := p.phase(uids[i]); now != phases[uids[i]] {
							t.Errorf("%s was %s, and was refused; now it is %s", uids[i], phases[uids[i]], now)
						}
					}
					if n, memory := p.Awake("main"); won != 1 || n != limit || int(memory) != limit*int(order("").Memory) {
						t.Errorf("%d got the last place, and %d are awake with %d MB", won, n, memory)
					}
					if diff := cmp.Diff(map[string]int{quota: callers - 1}, refused); diff != "" {
						t.Errorf("refusals are counted: %s", diff)
					}
					elsewhere := order("elsewhere")
					elsewhere.Workspace = "second"
					if err := p.Create(t.Context(), elsewhere); err != nil {
						t.Errorf("in another workspace: %v", err)
					}
				})
			})
		}
	}
}

// TestWhoSleepsDoesNotCount: a place is free when a sandbox is paused, has
// failed, is archived or is gone; and a process that comes counts what it finds.
func TestWhoSleepsDoesNotCount(t *testing.T) {
	for name, end := range map[string]func(p *process) error{
		"paused":   func(*process) error { time.Sleep(pauseAfter + time.Second); return nil },
		"deleted":  func(p *process) error { return p.Delete(p.h.t.Context(), "a") },
		"disabled": func(p *process) error { return p.Disable(p.h.t.Context(), "a") },
		"failed":   func(p *process) error { p.h.Kill("a"); synctest.Wait(); return nil },
		"archived": func(p *process) error { _, err := p.Archive(p.h.t.Context(), "a"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				p := h.has("a")
				p.SetLimits("", doze.Limits{doze.QuotaSandboxesAwake: 1}) // for all workspaces
				h.kind(p.Create(t.Context(), order("b")), doze.Exhausted, "1 of 1")
				p.empty("b")
				p.stop()
				p = h.start()
				p.SetLimits("", doze.Limits{doze.QuotaSandboxesAwake: 1})
				h.kind(p.Create(t.Context(), order("b")), doze.Exhausted, "1 of 1")
				if err := end(p); err != nil {
					t.Fatal(err)
				}
				if n, _ := p.Awake("main"); n != 0 {
					t.Errorf("%d are awake", n)
				}
				create(p, "b")
			})
		})
	}
}

// TestAClaim counts until its machine is deleted, or is made, and does not count
// what it takes the place of.
func TestAClaim(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.SetLimits("main", doze.Limits{doze.QuotaSandboxesAwake: 1})
		h.kind(p.Claim(order("b"), ""), doze.Exhausted, "1 of 1")
		h.kind(p.Claim(order("b"), "c"), doze.Exhausted, "1 of 1")
		if err := p.Claim(order("b"), "a"); err != nil {
			t.Fatal(err)
		}
		if err := p.Delete(t.Context(), "b"); err != nil { // which is not there
			t.Fatal(err)
		}
		h.kind(p.Create(t.Context(), order("c")), doze.Exhausted, "1 of 1")
		if err := p.Claim(order("b"), "a"); err != nil {
			t.Fatal(err)
		}
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		h.kind(p.Create(t.Context(), order("c")), doze.Exhausted, "1 of 1")
		create(p, "b")
		p.SetLimits("main", nil)
		create(p, "c")
		if n, memory := p.Awake("main"); n != 2 || memory != 2*order("").Memory {
			t.Errorf("%d are awake, with %d MB", n, memory)
		}
	})
}
