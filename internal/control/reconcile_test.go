package control_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestReconcileLooksAgain: between the moment when the loop finds something to do and
// the one when it has the turn for it, somebody may have made it needless, and
// worse.
func TestReconcileLooksAgain(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)

	// The machine that a sandbox is about to get is a leftover until it has it.
	release, restored := p.Node.Hold(), make(chan int, 1)
	go func() { restored <- p.Do("POST", "/sandboxes/a/snapshots/n/restore", "").Code }()
	for p.Node.Ordered() < 2 { // until the machine is being made
		time.Sleep(time.Millisecond)
	}
	found, err := p.Ctl.Unfinished(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatalf("to do: %v, %v", found, err)
	}
	release()
	if code := <-restored; code != 200 {
		t.Fatalf("the restore: %d", code)
	}
	for turn, do := range found {
		if err := do(t.Context()); err != nil {
			t.Errorf("%s: %v", turn, err)
		}
	}
	if n := p.Node.Count(); n != 2 { // with the one before
		t.Errorf("there are %d machines", n)
	}

	// A sandbox that was being disabled is enabled again.
	p.Node.Set("disable", errors.New("no"))
	planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
	if found, err = p.Ctl.Unfinished(t.Context()); err != nil || len(found) != 2 { // and that machine
		t.Fatalf("to do: %v, %v", found, err)
	}
	p.Node.Set("disable", nil)
	planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":true}}`)
	for turn, do := range found {
		if err := do(t.Context()); err != nil {
			t.Errorf("%s: %v", turn, err)
		}
	}
	p.Node.With("a", func(_ string, m *planetest.Machine) {
		if m.Phase == doze.Disabled {
			t.Error("it is disabled")
		}
	})
}
