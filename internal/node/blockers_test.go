package node_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// may returns a process with a running sandbox "a" that may change its network.
func (h *host) may(change func(*fleet.Order)) *process {
	h.t.Helper()
	p, o := h.start(), order("a")
	change(&o)
	if err := p.Create(h.t.Context(), o); err != nil {
		h.t.Fatal("create:", err)
	}
	return p
}

// TestBlockers: what a checkpoint would leave out keeps a sandbox in memory,
// until it is gone.
func TestBlockers(t *testing.T) {
	for name, tt := range map[string]struct {
		may  func(*fleet.Order)
		says string // the agent
		what string // of that, in public
	}{
		"rules":                          {func(o *fleet.Order) { o.IPTables = true }, `"rules":true`, "its filter rules"},
		"links":                          {func(o *fleet.Order) { o.Tun = true }, `"links":true`, "its network links, addresses and routes"},
		"rules of containers":            {func(o *fleet.Order) { o.Containers = true }, `"rules":true`, "its filter rules"},
		"both":                           {func(o *fleet.Order) { o.IPTables = true }, `"links":true,"rules":true`, "routes and its filter rules"},
		"namespaces, which all may make": {func(*fleet.Order) {}, `"namespaces":true`, "network namespaces"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.may(tt.may)
				p.sleep("disk")
				p.hello("a")
				h.set(func() { h.changed["a"] = tt.says })
				notes := h.notes("a")
				for range 2 {
					_, err := p.Snapshot(t.Context(), "a", "n")
					h.kind(err, doze.Conflict, tt.what)
					p.in("a", doze.Running, "awake")
					time.Sleep(pauseAfter + 10*diskAfter)
					p.in("a", doze.Standby, "paused")
					_, err = p.Snapshot(t.Context(), "a", "n")
					h.kind(err, doze.Conflict, tt.what)
					p.hello("a")
				}
				if got := h.notes("a"); got != notes+1 {
					t.Errorf("it was said %d times", got-notes)
				}
				h.set(func() { h.free = 0 }) // the host is short of memory
				p.sleep("paused")
				p.hello("a")

				if err := p.Disable(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * diskAfter)
				p.in("a", doze.Disabled, "paused")
				p.stop()
				p = h.start() // which cannot ask
				time.Sleep(10 * diskAfter)
				p.in("a", doze.Disabled, "paused")
				if err := p.Enable(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				p.hello("a")

				h.set(func() { h.free = 1 << 30; delete(h.changed, "a") })
				p.snap("a", "n")
				p.sleep("disk")
				p.hello("a")
			})
		})
	}
}

// TestBlockersLost: who had only memory to sleep in, and lost it, is told why.
func TestBlockersLost(t *testing.T) {
	const rules, unknown, other = "its filter rules", "what it may have changed", "had slept for less than"
	for name, tt := range map[string]struct {
		asleep func(*host, *process)
		why    string
	}{
		"rules":   {func(h *host, p *process) { h.set(func() { h.changed["a"] = `"rules":true` }); p.sleep("paused") }, rules},
		"unasked": {func(h *host, p *process) { h.set(func() { h.deaf = true }); time.Sleep(2 * time.Hour) }, unknown},
		"disabled": {func(h *host, p *process) {
			h.set(func() { h.changed["a"] = `"rules":true` })
			if err := p.Disable(h.t.Context(), "a"); err != nil {
				h.t.Fatal(err)
			}
		}, rules},
		"no more": {func(h *host, p *process) {
			h.set(func() { h.changed["a"] = `"rules":true` })
			p.sleep("paused")
			p.hello("a")
			h.set(func() { delete(h.changed, "a") })
			p.sleep("paused")
		}, other},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				p := h.may(func(o *fleet.Order) { o.IPTables = true })
				tt.asleep(h, p)
				p.stop()
				p = h.start() // which passes on what it was told
				p.stop()
				h.Reboot()
				p = h.start()
				p.in("a", doze.Failed, "")
				last := h.last("a").Message
				for _, part := range []string{tt.why, "its memory and its files are lost", "restore one of its snapshots"} {
					if !strings.Contains(last, part) {
						h.t.Errorf("reported %q, want %q in it", last, part)
					}
				}
			})
		})
	}
}

// TestBlockersUnknown: where the agent does not answer, nothing is given up.
func TestBlockersUnknown(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.may(func(o *fleet.Order) { o.IPTables = true })
		h.set(func() { h.deaf = true })
		time.Sleep(2 * time.Hour)
		p.in("a", doze.Standby, "paused")
		said := func(r fleet.Report) bool { return strings.Contains(r.Message, "what it may have changed") }
		if all := h.told("a"); !slices.ContainsFunc(all, said) {
			t.Errorf("told %+v", all)
		}
		h.set(func() { h.deaf = false })
		p.hello("a")
		p.sleep("disk")
	})
}

// TestBlockersElsewhere: what one sandbox has blocks no other.
func TestBlockersElsewhere(t *testing.T) {
	virtual(t, func(h *host) {
		p := h.has("a", "b")
		h.set(func() { h.changed["a"] = `"namespaces":true` })
		p.snap("b", "n")
		time.Sleep(2 * time.Hour)
		p.in("a", doze.Standby, "paused")
		p.in("b", doze.Standby, "disk")
		if n := h.notes("b"); n != 0 {
			h.t.Errorf("%d notes", n)
		}
	})
}
