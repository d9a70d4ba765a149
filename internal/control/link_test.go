package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestInTurnSaysUsed: a sandbox that runs is used until its node is lost, whatever its record
// says of the time before. One that sleeps was used last when its node said so.
func TestInTurnSaysUsed(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	link := control.Link{Server: p.Ctl}
	used := func() (at time.Time, machine string) {
		t.Helper()
		l, err := link.LodgerNamed(t.Context(), "main", "a")
		if err != nil {
			t.Fatal(err)
		}
		err = link.InTurn(t.Context(), l, func(_ context.Context, _ fleet.Order, used time.Time) error {
			at = used
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return at, l.Machine
	}
	before := time.Now()
	at, machine := used()
	if at.Before(before) {
		t.Errorf("it runs, and was used at %s, before %s", at, before)
	}
	slept := time.Now().Add(time.Second).UTC().Truncate(time.Millisecond)
	for i, phase := range []doze.Phase{doze.Suspending, doze.Standby} {
		report := fleet.Report{UID: machine, Seq: uint64(1000 + i), Phase: phase, At: slept, LastUsed: slept}
		if err := link.Accept(t.Context(), []fleet.Report{report}); err != nil {
			t.Fatal(err)
		}
	}
	if at, _ := used(); !at.Equal(slept) {
		t.Errorf("it sleeps, and was used at %s, want %s", at, slept)
	}
}
