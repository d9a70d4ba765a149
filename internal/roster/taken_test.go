package roster_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// TestTaken: a control whose records another one has ends, and soon. Until then nodes ask it, and it
// grants them nothing.
func TestTaken(t *testing.T) {
	t.Parallel()
	address := postgres.Database(t)
	cipher, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	open := func() *store.Store {
		s, err := store.Open(t.Context(), address, cipher)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := open()
	c, err := crew.Open(t.Context(), plane.Ledger{Store: s}, "", fleet.NewAtlas())
	if err != nil {
		t.Fatal(err)
	}
	r := roster.New(roster.Config{Store: s, Crew: c, TTL: ttl, Copies: copies{planetest.NewShelf()}})
	postgres.Break(t, address)
	open() // another control
	ended := make(chan error, 1)
	go func() { ended <- r.Run(t.Context()) }()
	select {
	case err := <-ended:
		if !errors.Is(err, store.ErrTaken) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}
