package fleet

import (
	"encoding/json"
	"net/netip"

	"github.com/dozehq/doze"
)

// Network is a [doze.Network] on the way between two roles, with what the public
// API never shows: where the platform put it. The plain secrets of routing rules
// are not in it. Rules in force have sealed ones.
type Network struct {
	Rules   doze.Network
	Segment string              `json:",omitempty"`
	Source  netip.Addr          `json:",omitzero"`
	Sealed  []map[string][]byte `json:",omitempty"` // of each routing rule
}

// NetworkOf returns n for the way, and nil for nil.
func NetworkOf(n *doze.Network) *Network {
	if n == nil {
		return nil
	}
	w := &Network{Rules: *n, Segment: n.Segment}
	if n.Egress != nil {
		w.Source = n.Egress.Source
	}
	if n.Proxy != nil {
		for _, t := range n.Proxy.Routing {
			w.Sealed = append(w.Sealed, t.Sealed)
		}
	}
	return w
}

// Network returns what came over the way, and nil for nil. It changes w.
func (w *Network) Network() *doze.Network {
	if w == nil {
		return nil
	}
	n := w.Rules
	n.Segment = w.Segment
	if n.Egress != nil {
		n.Egress.Source = w.Source
	}
	if n.Proxy != nil && len(n.Proxy.Routing) == len(w.Sealed) {
		for i, sealed := range w.Sealed {
			n.Proxy.Routing[i].Sealed = sealed
		}
	}
	return &n
}

// orderOnWire is an [Order] whose network is complete. The member shadows that of
// the order.
type (
	plainOrder  Order
	orderOnWire struct {
		plainOrder

		Network *Network `json:",omitempty"`
	}
)

// MarshalJSON implements [json.Marshaler].
func (o Order) MarshalJSON() ([]byte, error) {
	return json.Marshal(orderOnWire{plainOrder(o), NetworkOf(o.Network)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *Order) UnmarshalJSON(raw []byte) error {
	var w orderOnWire
	if err := json.Unmarshal(raw, &w); err != nil {
		return err
	}
	*o = Order(w.plainOrder)
	o.Network = w.Network.Network()
	return nil
}
