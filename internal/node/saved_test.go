package node

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
)

// TestSavedOrder: a record has every field of an order, but for those that must not
// be on disk. Who adds a field decides which it is.
func TestSavedOrder(t *testing.T) {
	t.Parallel()
	unsaved := []string{"Env", "Login", "Network", "Archived"}
	o := fleettest.Full[fleet.Order](t)
	raw, err := json.Marshal(orderToSave(o))
	if err != nil {
		t.Fatal(err)
	}
	var s savedOrder
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	diff := cmp.Diff(o, s.order(), cmp.FilterPath(func(p cmp.Path) bool {
		return len(p) == 2 && slices.Contains(unsaved, p.Last().String()[1:])
	}, cmp.Ignore()))
	if diff != "" {
		t.Error(diff)
	}
	for _, name := range unsaved {
		var members map[string]any
		if err := json.Unmarshal(raw, &members); err != nil || members[name] != nil {
			t.Errorf("%s is on disk: %v, %v", name, members[name], err)
		}
	}
}

// TestSavedMounts: the same of mounts, of which nothing is left out.
func TestSavedMounts(t *testing.T) {
	t.Parallel()
	all := []fleet.DriveMount{fleettest.Full[fleet.DriveMount](t)}
	raw, err := json.Marshal(mountsToSave(all))
	if err != nil {
		t.Fatal(err)
	}
	var s []savedMount
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, savedMounts(s)); diff != "" {
		t.Error(diff)
	}
}
