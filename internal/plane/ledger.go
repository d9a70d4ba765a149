package plane

import (
	"context"

	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/store"
)

// Ledger records the places of a crew.
type Ledger struct{ Store *store.Store }

var _ crew.Ledger = Ledger{}

// Places implements [crew.Ledger].
func (l Ledger) Places(ctx context.Context) (all []crew.Place, err error) {
	records, err := l.Store.Places(ctx)
	for _, p := range records {
		all = append(all, crew.Place{Kind: crew.Kind(p.Kind), ID: p.ID, Node: p.Node, Epoch: p.Epoch})
	}
	return all, err
}

// Put implements [crew.Ledger].
func (l Ledger) Put(ctx context.Context, p crew.Place) error {
	return l.Store.PutPlace(ctx, store.Place{Kind: string(p.Kind), ID: p.ID, Node: p.Node, Epoch: p.Epoch})
}

// Remove implements [crew.Ledger].
func (l Ledger) Remove(ctx context.Context, k crew.Kind, id string) error {
	return l.Store.RemovePlace(ctx, string(k), id)
}
