package main

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestDestroyed: the host of a node is gone for good. Its sandbox goes on from the bucket with its
// memory. A volume that the bucket has not is lost by force alone, and by name.
func TestDestroyed(t *testing.T) {
	ctx, f := t.Context(), begin(t, "--pause-after", pauseAfter, "--disk-after", diskAfter, "--remote-after", copyAfter)
	must := fatal(t)
	w, err := f.witness(ctx, "origin", rareWrites)
	must(err)
	must(f.born(ctx, readyTime, []*witness{w}))
	had := f.holder("origin")
	must(f.cordon(ctx, had, "cordon"))
	f.gate.does.Store(gateRefuses) // until the node is gone, nothing of it is copied
	must(f.post(ctx, http.MethodPost, "/volumes", `{"metadata":{"name":"fresh"},"spec":{"size":64}}`, nil))
	must(f.killNode(had))
	f.gate.does.Store(gatePasses)
	must(f.cordon(ctx, had, "uncordon"))

	node := "/platform/nodes/" + f.ids[had]
	must(until(ctx, lossTime, func() error {
		all, err := f.list(ctx)
		if err == nil && all[had].State != doze.NodeLost {
			err = errors.New("the node is not lost")
		}
		return err
	}))
	if err := f.ask(ctx, http.MethodDelete, node, nil); err == nil || !strings.Contains(err.Error(), "fresh") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("a removal that loses a volume: %v", err)
	}
	var gone doze.RemovedNode
	must(until(ctx, lossTime, func() error { return f.ask(ctx, http.MethodDelete, node+"?force=true", &gone) }))
	if gone.Total != 1 || len(gone.Lost) != 1 || gone.Lost[0].Kind != doze.LostVolume || gone.Lost[0].Name != "fresh" {
		t.Errorf("what is lost: %+v", gone)
	}
	must(until(ctx, lossTime, func() error { return f.same(ctx, "origin", w.born) }))
	if err := f.ask(ctx, http.MethodGet, "/volumes/fresh", nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("the volume that was lost: %v", err)
	}
	all, err := f.list(ctx)
	if must(err); all[had].ID != "" {
		t.Errorf("the node is on record: %+v", all[had])
	}
}
