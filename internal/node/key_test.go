package node

import (
	"reflect"
	"slices"
	"testing"

	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/machine"
)

// TestKey: a spare machine becomes no sandbox that wants another one. Every field of
// a configuration makes a machine different, but for those that a sandbox brings.
func TestKey(t *testing.T) {
	t.Parallel()
	brought := []string{"ID", "Dir", "Hostname", "Link", "Volumes", "GoBack", "From"}
	full := reflect.ValueOf(fleettest.Full[machine.Config](t))
	for i := range full.NumField() {
		name := full.Type().Field(i).Name
		var c machine.Config
		reflect.ValueOf(&c).Elem().Field(i).Set(full.Field(i))
		if same := key(c) == key(machine.Config{}); same != slices.Contains(brought, name) {
			t.Errorf("with another %s a spare machine is the same: %t", name, same)
		}
	}
}
