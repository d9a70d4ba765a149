package control_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// runtimeMembers says of each member of a runtime what becomes of it.
var runtimeMembers = map[string]struct {
	replaces bool // a change of it needs a fresh machine
	snapshot bool // a snapshot has it, and a fork and a restore get it from there
}{
	"Envs":      {replaces: true}, // a fork inherits them from the record
	"Expires":   {},
	"ExtraArgs": {}, // fixed at the start
	"Image":     {replaces: true, snapshot: true},
	"Memory":    {replaces: true, snapshot: true},
	"Ports":     {replaces: true, snapshot: true},
	"Grace":     {},
	"TTL":       {},
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
		"From",  // of forks, TestForks
		"Login", // of images in private registries, TestLogin
	}
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("v"))
	p.Create(`{"metadata":{"name":"a"},"spec":{"network":{"allowedDomains":["a.example"]},"volumes":[{"name":"v","mountPath":"/v"}],` +
		`"runtime":{"memory":2048,"envs":[{"name":"A","value":"b"}],"terminationGracePeriodSeconds":5,"extraArgs":{"iptables":"enabled","tun":"enabled"}}}}`)
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
