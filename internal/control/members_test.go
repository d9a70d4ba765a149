package control_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// runtimeMembers says of each member of a runtime what becomes of it.
var runtimeMembers = map[string]struct {
	body     string   // a value in the body of a create that is not the default
	orders   []string // the fields of an order that it becomes, in their order
	without  string   // why it becomes none
	replaces bool     // a change of it needs a fresh machine
	snapshot bool     // a snapshot has it, and a fork and a restore get it from there
}{
	"Envs":      {body: `"envs":[{"name":"A","value":"b"}]`, orders: []string{"Env"}, replaces: true}, // a fork inherits them from the record
	"Expires":   {body: `"expires":"2199-01-01T00:00:00Z"`, without: "control ends the sandbox"},
	"ExtraArgs": {body: `"extraArgs":{"containers":"enabled","entrypoint":"disabled","iptables":"enabled","tun":"enabled"}`, orders: []string{"IPTables", "Tun", "Containers", "NoEntrypoint"}}, // fixed at the start
	"Image":     {body: `"image":"hub.test/app:1"`, orders: []string{"Image"}, replaces: true, snapshot: true},
	"Memory":    {body: `"memory":2048`, orders: []string{"Memory"}, replaces: true, snapshot: true},
	"Ports":     {body: `"ports":[{"target":8080}]`, without: "a caller reaches every port", snapshot: true},
	"Grace":     {body: `"terminationGracePeriodSeconds":5`, orders: []string{"Grace"}},
	"Storage":   {body: `"storage":1024`, orders: []string{"Storage"}, snapshot: true}, // fixed at the start
	"TTL":       {body: `"ttl":"24h"`, without: "control ends the sandbox"},
}

// TestRuntimeReachesOrder: nobody adds a member to a runtime that no order has, or says
// why none needs it.
func TestRuntimeReachesOrder(t *testing.T) {
	t.Parallel()
	own := []string{"UID", "Name", "Authority"} // each sandbox has others
	p := planetest.Start(t, false)
	create := func(name, runtime string) reflect.Value {
		p.Create(`{"metadata":{"name":"` + name + `"},"spec":{"runtime":{` + runtime + `}}}`)
		all := p.Node.Orders()
		return reflect.ValueOf(all[len(all)-1])
	}
	plain := create("plain", "")
	for m := range reflect.TypeFor[doze.Runtime]().Fields() {
		is, known := runtimeMembers[m.Name]
		if !known || is.body == "" || (len(is.orders) > 0) == (is.without != "") {
			t.Errorf("runtimeMembers does not say which fields of an order %s becomes, or why none", m.Name)
			continue
		}
		var changed []string
		order := create(strings.ToLower(m.Name), is.body)
		for f := range reflect.TypeFor[fleet.Order]().Fields() {
			same := reflect.DeepEqual(order.FieldByIndex(f.Index).Interface(), plain.FieldByIndex(f.Index).Interface())
			if !same && !slices.Contains(own, f.Name) {
				changed = append(changed, f.Name)
			}
		}
		if !slices.Equal(changed, is.orders) {
			t.Errorf("with %s an order has other %q, want %q: have control/check.go set them", m.Name, changed, is.orders)
		}
	}
}

// TestRuntimeMembers: nobody adds a member to a runtime without saying whether a
// change of it replaces the machine, and whether a snapshot has it.
func TestRuntimeMembers(t *testing.T) {
	t.Parallel()
	full := reflect.ValueOf(fleettest.Full[doze.Runtime](t))
	for i := range full.NumField() {
		name := full.Type().Field(i).Name
		is, known := runtimeMembers[name]
		if !known {
			t.Errorf("runtimeMembers does not say what a change and a snapshot do with %s", name)
			continue
		}
		var r doze.Runtime
		reflect.ValueOf(&r).Elem().Field(i).Set(full.Field(i))
		if control.NeedsMachine(doze.Runtime{}, r) != is.replaces {
			t.Errorf("a change of %s replaces the machine: %t, want %t", name, !is.replaces, is.replaces)
		}
		restored := reflect.ValueOf(control.Restored(r)).Field(i)
		if got := reflect.DeepEqual(restored.Interface(), full.Field(i).Interface()); got != is.snapshot {
			t.Errorf("a restore gets %s from the snapshot: %t, want %t", name, got, is.snapshot)
		}
	}
}

// TestOrderIsComplete: all that a sandbox can have reaches its node.
func TestOrderIsComplete(t *testing.T) {
	t.Parallel()
	other := []string{
		"From",     // of forks, TestForks
		"Login",    // of images in private registries, TestLogin
		"Archived", // of those whose node is lost, TestArchivesOfLostNode
		"Epoch",    // of a fleet, TestRestoredEpochs
	}
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("v"))
	p.Create(`{"metadata":{"name":"a"},"spec":{"network":{"allowedDomains":["a.example"]},"volumes":[{"name":"v","mountPath":"/v"}],` +
		`"runtime":{"memory":2048,"storage":1024,"envs":[{"name":"A","value":"b"}],"terminationGracePeriodSeconds":5,"extraArgs":{"containers":"enabled","entrypoint":"disabled","iptables":"enabled","tun":"enabled"}}}}`)
	p.Node.Mu.Lock()
	defer p.Node.Mu.Unlock()
	order := reflect.ValueOf(p.Node.Creates[0])
	for i := range order.NumField() {
		name := reflect.TypeFor[fleet.Order]().Field(i).Name
		if order.Field(i).IsZero() && !slices.Contains(other, name) {
			t.Errorf("the order has no %s: have control/check.go set it, and ask for it here", name)
		}
	}
}
