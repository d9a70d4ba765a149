package node

import (
	"reflect"
	"slices"
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
	"Driver":     {},
	"ID":         {},
	"Dir":        {},
	"Root":       {later: true}, // of the image, which a snapshot names
	"Agent":      {snapshot: true},
	"Hostname":   {},
	"Env":        {later: true}, // of the image
	"Args":       {later: true}, // of tests
	"Memory":     {snapshot: true},
	"CPUs":       {snapshot: true},
	"Disk":       {snapshot: true},
	"Link":       {later: true}, // of a lease
	"Volumes":    {later: true}, // as they are mounted
	"IPTables":   {},            // of the order, which has them from the same sandbox or from its heir
	"Tun":        {},            // likewise
	"Containers": {},            // likewise
	"GoBack":     {},
	"From":       {later: true},
}

// orderFields says of each field of an order what it becomes in a configuration.
var orderFields = map[string]struct {
	config  []string // fields that the order alone sets, in their order
	later   []string // fields that follow from it, see configFields
	without string   // why it becomes none
}{
	"UID":          {config: []string{"ID", "Dir"}},
	"Name":         {config: []string{"Hostname"}},
	"Workspace":    {without: "the node counts by it"},
	"Region":       {without: "a process inside reads it in a variable"},
	"Image":        {later: []string{"Root", "Env"}},
	"Login":        {without: "the node pulls the image with it"},
	"Memory":       {config: []string{"Memory", "CPUs"}},
	"Storage":      {config: []string{"Disk"}},
	"Env":          {without: "the agent gets it when it is identified"},
	"Grace":        {without: "the node waits for it when a sandbox ends"},
	"IPTables":     {config: []string{"IPTables"}},
	"Tun":          {config: []string{"Tun"}, later: []string{"Env"}},
	"Containers":   {config: []string{"Containers"}, later: []string{"Env"}},
	"NoEntrypoint": {without: "the node then does not tell the agent of the program of the image"},
	"Volumes":      {later: []string{"Volumes"}},
	"Network":      {without: "the host obeys it outside of the machine"},
	"Authority":    {without: "the agent gets its certificate when it is identified"},
	"From":         {later: []string{"From"}},
	"Archived":     {without: "it says what control knows, and Revive alone reads it"},
	"Epoch":        {without: "it says since when the node has the sandbox"},
}

// TestOrderReachesConfig: nobody adds a field to an order that no configuration has, or
// says why none needs it.
func TestOrderReachesConfig(t *testing.T) {
	t.Parallel()
	n := &Node{Options: Options{Driver: machinetest.NewFake(), Agent: "agent", Dir: "dir", GoBack: true}}
	full, plain := reflect.ValueOf(fleettest.Full[fleet.Order](t)), reflect.ValueOf(n.configOf(fleet.Order{}))
	for f := range full.Type().Fields() {
		is, known := orderFields[f.Name]
		if !known || (len(is.config)+len(is.later) > 0) == (is.without != "") {
			t.Errorf("orderFields does not say which fields of a configuration %s becomes, or why none", f.Name)
			continue
		}
		var o fleet.Order
		reflect.ValueOf(&o).Elem().FieldByIndex(f.Index).Set(full.FieldByIndex(f.Index))
		var changed []string
		config := reflect.ValueOf(n.configOf(o))
		for c := range config.Type().Fields() {
			if !reflect.DeepEqual(config.FieldByIndex(c.Index).Interface(), plain.FieldByIndex(c.Index).Interface()) {
				changed = append(changed, c.Name)
			}
		}
		if !slices.Equal(changed, is.config) {
			t.Errorf("with %s a configuration has other %q, want %q: have configOf set them", f.Name, changed, is.config)
		}
		for _, name := range is.later {
			if !configFields[name].later {
				t.Errorf("%s is said to become %s later, and configFields does not say so", f.Name, name)
			}
		}
	}
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
