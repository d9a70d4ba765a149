package node

import (
	"reflect"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// configFields says of each field of a configuration where it comes from.
var configFields = map[string]struct {
	later    bool // not the order says it, but what the node does afterwards
	snapshot bool // a machine that goes on from a snapshot has that of the snapshot
}{
	"Driver":   {},
	"ID":       {},
	"Dir":      {},
	"Root":     {later: true}, // of the image, which a snapshot names
	"Agent":    {snapshot: true},
	"Hostname": {},
	"Env":      {later: true}, // of the image
	"Args":     {later: true}, // of tests
	"Memory":   {snapshot: true},
	"CPUs":     {snapshot: true},
	"Link":     {later: true}, // of a lease
	"Volumes":  {later: true}, // as they are mounted
	"IPTables": {},            // of the order, which has them from the same sandbox or from its heir
	"Tun":      {},            // likewise
	"GoBack":   {},
	"From":     {later: true},
}

// TestConfigIsComplete: nobody adds a field to a configuration that no order sets, or
// that a snapshot forgets.
func TestConfigIsComplete(t *testing.T) {
	t.Parallel()
	n := &Node{Options: Options{Driver: machinetest.NewFake(), Agent: "agent", Dir: "dir", GoBack: true}}
	ordered := reflect.ValueOf(n.configOf(fleettest.Full[fleet.Order](t)))
	full := fleettest.Full[machine.Config](t)
	var fixed machine.Config
	f := fixedOf(&full)
	f.fix(&fixed)
	for i := range ordered.NumField() {
		name := ordered.Type().Field(i).Name
		is, known := configFields[name]
		if !known {
			t.Errorf("configFields does not say where %s comes from", name)
			continue
		}
		if ordered.Field(i).IsZero() != is.later {
			t.Errorf("the order of a machine sets %s: %t, want %t", name, is.later, !is.later)
		}
		want := reflect.Zero(ordered.Field(i).Type())
		if is.snapshot {
			want = reflect.ValueOf(full).Field(i)
		}
		if got := reflect.ValueOf(fixed).Field(i); !reflect.DeepEqual(got.Interface(), want.Interface()) {
			t.Errorf("of a snapshot, %s is %v, want %v", name, got, want)
		}
	}
}
