package fleet_test

import (
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
)

// local are types of the contract whose values stay in a process, or are a stream.
var local = []reflect.Type{
	reflect.TypeFor[context.Context](), reflect.TypeFor[error](),
	reflect.TypeFor[io.Reader](), reflect.TypeFor[io.ReadCloser](), reflect.TypeFor[func(fleet.BuildEvent)](),
}

// facts are the types of what the feed says, by topic.
var facts = map[string]reflect.Type{
	fleet.TopicUpstreams:  reflect.TypeFor[fleet.Upstream](),
	fleet.TopicPreviews:   reflect.TypeFor[fleet.Preview](),
	fleet.TopicDomains:    reflect.TypeFor[fleet.Domain](),
	fleet.TopicPrincipals: reflect.TypeFor[access.Principal](),
	fleet.TopicKeys:       reflect.TypeFor[access.Key](),
	fleet.TopicRevoked:    reflect.TypeFor[time.Time](),
	fleet.TopicVerifier:   nil, // keys in a format of their own: TestReplica (internal/access)
	fleet.TopicLimits:     reflect.TypeFor[doze.Limits](),
	fleet.TopicNodes:      reflect.TypeFor[string](),
	fleet.TopicPlaces:     reflect.TypeFor[string](),
}

// over returns what a value is after a way through JSON. A network goes in another
// shape.
func over(t *testing.T, sent any) any {
	t.Helper()
	if n, ok := sent.(*doze.Network); ok {
		w, _ := over(t, fleet.NetworkOf(n)).(*fleet.Network)
		return w.Network()
	}
	raw, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	got := reflect.New(reflect.TypeOf(sent))
	if err := json.Unmarshal(raw, got.Interface()); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return got.Elem().Interface()
}

// TestWire: every type in a call of the contract, and every value of the feed, has the
// same fields after a way through JSON. The methods say which types there are.
func TestWire(t *testing.T) {
	t.Parallel()
	types := map[reflect.Type]bool{}
	for _, contract := range []reflect.Type{reflect.TypeFor[fleet.Node](), reflect.TypeFor[fleet.Control]()} {
		for m := range contract.Methods() {
			for in := range m.Type.Ins() {
				types[in] = true
			}
			for out := range m.Type.Outs() {
				types[out] = true
			}
		}
	}
	types[reflect.TypeFor[fleet.BuildEvent]()] = true // Build hands them to a function
	for _, value := range facts {
		if value != nil {
			types[value] = true
		}
	}
	for _, stays := range local {
		delete(types, stays)
	}
	for kind := range types {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			sent := reflect.New(kind).Elem()
			fleettest.FillFull(t, sent)
			secrets := cmpopts.IgnoreFields(doze.ProxyTarget{}, "Secrets") // the plain ones: they are sealed before
			addresses := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			if diff := cmp.Diff(sent.Interface(), over(t, sent.Interface()), secrets, addresses); diff != "" {
				t.Errorf("%s loses something on the way:\n%s", kind, diff)
			}
		})
	}
}

// TestFactsAreComplete: the values of every topic of the feed are known.
func TestFactsAreComplete(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "feed.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	topics := 0
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Topic") {
			return true
		}
		topics++
		text, ok := v.Values[0].(*ast.BasicLit)
		if !ok {
			t.Fatalf("%s is no text", v.Names[0].Name)
		}
		if _, known := facts[strings.Trim(text.Value, `"`)]; !known {
			t.Errorf("facts does not say what %s tells", v.Names[0].Name)
		}
		return true
	})
	if topics != len(facts) {
		t.Errorf("the feed has %d topics, and facts has %d", topics, len(facts))
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
