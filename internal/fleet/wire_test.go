package fleet_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
)

// survives fails unless a value with every field set is the same after a way
// through JSON.
func survives[T any](t *testing.T) {
	t.Helper()
	sent := fleettest.Full[T](t)
	raw, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got T
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	secrets := cmpopts.IgnoreFields(doze.ProxyTarget{}, "Secrets") // the plain ones: they are sealed before
	if diff := cmp.Diff(sent, got, secrets, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("%T loses something on the way:\n%s", sent, diff)
	}
}

// TestWire: every type of the contract keeps every field on the way.
func TestWire(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"Order":      survives[fleet.Order],
		"Status":     survives[fleet.Status],
		"Report":     survives[fleet.Report],
		"Pinned":     survives[fleet.Pinned],
		"Login":      survives[fleet.Login],
		"DriveMount": survives[fleet.DriveMount],
		"Awake":      survives[fleet.Awake],
		"Usage":      survives[fleet.Usage],
		"Route":      survives[fleet.Upstream],
		"Domain":     survives[fleet.Domain],
	} {
		t.Run(name, test)
	}
}

// TestNetworkWithoutSecrets: the plain secrets of rules do not leave a process.
func TestNetworkWithoutSecrets(t *testing.T) {
	t.Parallel()
	n := &doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{
		Destinations: []string{"a.example.com"}, Secrets: doze.Hide(map[string]string{"KEY": "hunter2"}),
	}}}}
	raw, err := json.Marshal(fleet.Order{UID: "a", Network: n})
	if err != nil {
		t.Fatal(err)
	}
	var o fleet.Order
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	if o.Network == nil || o.Network.Proxy.Routing[0].Has("KEY") {
		t.Errorf("%s", raw)
	}
}

// FuzzOrder: an order that can be read can be sent on, and is the same there.
func FuzzOrder(f *testing.F) {
	raw, err := json.Marshal(fleettest.Full[fleet.Order](f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"UID":"a","Network":{"Rules":{"proxy":{"routing":[{}]}},"Sealed":[{"a":"eA=="},{}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var first, second fleet.Order
		if json.Unmarshal(raw, &first) != nil {
			return
		}
		sent, err := json.Marshal(first)
		if err == nil {
			err = json.Unmarshal(sent, &second)
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(second)
		if err != nil || string(again) != string(sent) {
			t.Errorf("%s became %s, %v", sent, again, err)
		}
	})
}
