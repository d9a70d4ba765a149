package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
)

// TestTraits: what a driver can do decides, and not which driver it is.
func TestTraits(t *testing.T) {
	for name, use := range map[string]func(h *host){
		"a checkpoint with the network has no blockers": func(h *host) {
			h.Can.Network = true
			o := h.options()
			o.GoBack, o.CheckpointEvery = true, time.Minute
			p := h.startWith(o)
			if err := p.Create(h.t.Context(), order("a")); err != nil {
				h.t.Fatal(err)
			}
			h.set(func() { h.changed["a"] = `"namespaces":true,"rules":true` })
			notes := h.notes("a")
			p.sleep("disk")
			p.hello("a")
			p.snap("a", "n")
			saves := h.Count("a", machinetest.OpSave)
			for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(3 * time.Second) {
				p.hello("a")
			}
			if h.Count("a", machinetest.OpSave) == saves {
				h.t.Error("its checkpoint was not renewed")
			}
			if n := h.notes("a"); n != notes {
				h.t.Errorf("%d notes say what it would leave out", n-notes)
			}
		},
		"without swap nobody is moved there": func(h *host) {
			o := h.options()
			o.SwapAfter = swapAfter
			h.Can.Swap = false
			p := h.startWith(o)
			if err := p.Create(h.t.Context(), order("a")); err != nil {
				h.t.Fatal(err)
			}
			p.sleep("disk")
			if n := h.Count("a", machinetest.OpSwap); n != 0 {
				h.t.Errorf("it was moved to swap %d times", n)
			}
		},
		"without copies there is no snapshot": func(h *host) {
			h.Can.Copies = false
			_, err := h.has("a").Snapshot(h.t.Context(), "a", "n")
			h.kind(err, doze.Unsupported, "the driver fake makes no snapshots")
		},
		"without directories there is no volume": func(h *host) {
			h.Can.Directories = false
			h.kind(h.start().Create(h.t.Context(), withVolumes("a")), doze.Unsupported, "the driver fake has no volumes")
		},
	} {
		t.Run(name, func(t *testing.T) { virtual(t, use) })
	}
}

// TestOtherDriver: a sandbox or a snapshot stays with the driver that made it. A node
// with another driver says so instead of losing it.
func TestOtherDriver(t *testing.T) {
	const advice = "start the node with --driver fake"
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.snap("a", "n")
		p.sleep("disk")
		p.stop()
		h.Can.Name = "other"
		_, err := node.Open(t.Context(), h.options())
		if err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("a node with another driver: %v", err)
		}
		h.Can.Name = "fake"
		p = h.start()
		p.hello("a")
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.stop()

		h.Can.Name = "other"
		p = h.start()
		boots := h.Count("f", machinetest.OpBoot)
		h.kind(p.fork("f", "n"), doze.Unavailable, "the snapshot was made by the driver fake, and this node has other: "+advice)
		if n := h.Count("f", machinetest.OpBoot) - boots; n != 0 {
			t.Errorf("another driver booted the snapshot %d times", n)
		}
		p.empty("f")
		p.stop()
		h.Can.Name = "fake"
		p = h.start()
		if err := p.fork("f", "n"); err != nil {
			t.Fatal("fork:", err)
		}
		p.hello("f")

		h.unnamed("n")
		if err := p.fork("g", "n"); err != nil {
			t.Error("a snapshot from before there were two drivers:", err)
		}
	})
}

// unnamed makes the record of a snapshot one that names no driver.
func (h *host) unnamed(id string) {
	h.t.Helper()
	file := filepath.Join(h.dir, "snapshots", id, "record.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		h.t.Fatal(err)
	}
	old := strings.Replace(string(raw), `"driver":"fake",`, "", 1)
	if old == string(raw) {
		h.t.Fatalf("the record has no driver: %s", raw)
	}
	if err := os.WriteFile(file, []byte(old), 0o600); err != nil {
		h.t.Fatal(err)
	}
}
