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
	used := func() (last control.Use, machine string) {
		t.Helper()
		l, err := link.LodgerNamed(t.Context(), "main", "a")
		if err != nil {
			t.Fatal(err)
		}
		err = link.InTurn(t.Context(), l, func(_ context.Context, _ fleet.Order, use control.Use) error {
			last = use
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return last, l.Machine
	}
	before := time.Now()
	last, machine := used()
	if last.At.Before(before) || !last.Ran {
		t.Errorf("it runs, and its last use was %+v, before %s", last, before)
	}
	slept := time.Now().Add(time.Second).UTC().Truncate(time.Millisecond)
	for i, phase := range []doze.Phase{doze.Suspending, doze.Standby} {
		report := fleet.Report{UID: machine, Seq: uint64(1000 + i), Phase: phase, At: slept, LastUsed: slept}
		if err := link.Accept(t.Context(), []fleet.Report{report}); err != nil {
			t.Fatal(err)
		}
	}
	if last, _ := used(); !last.At.Equal(slept) || last.Ran {
		t.Errorf("it sleeps, and its last use was %+v, want %s", last, slept)
	}
}
