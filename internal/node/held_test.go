package node_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
)

// TestHeld: a node knows since which epochs it has sandboxes and volumes, also after a start, and before
// one.
func TestHeld(t *testing.T) {
	virtual(t, func(h *host) {
		t, p := h.t, h.start()
		o := order("a")
		o.Epoch = 7
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if err := p.MakeVolume(t.Context(), "v", doze.Megabytes(64), ""); err != nil {
			t.Fatal(err)
		}
		epoch, err := h.shelf.Epoch("v")
		if err != nil {
			t.Fatal(err)
		}
		sandbox := fleet.Held{Epoch: 7, Workspace: o.Workspace, Name: o.Name}
		want := map[string]fleet.Held{"a": sandbox, fleet.VolumeObject("v"): {Epoch: epoch}}
		if diff := cmp.Diff(want, p.Held()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		p.stop()
		_, saved, err := node.Saved(filepath.Join(h.dir, "sandboxes"))
		if diff := cmp.Diff(map[string]fleet.Held{"a": sandbox}, saved); diff != "" || err != nil {
			t.Errorf("%v, before a start (-want +got):\n%s", err, diff)
		}
		p = h.start()
		if diff := cmp.Diff(want, p.Held()); diff != "" {
			t.Errorf("after a start (-want +got):\n%s", diff)
		}
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	})
}
