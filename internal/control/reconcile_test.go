package control_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// TestMendLooksAgain: between the moment when the loop finds something to do and
// the one when it has the turn for it, somebody may have made it needless, and
// worse.
func TestMendLooksAgain(t *testing.T) {
	t.Parallel()
	p := start(t, false)
	p.create(named("a"))
	want[any](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)

	// The machine that a sandbox is about to get is a leftover until it has it.
	release, restored := p.node.hold(), make(chan int, 1)
	go func() { restored <- p.do("POST", "/sandboxes/a/snapshots/n/restore", "").Code }()
	for p.node.ordered() < 2 { // until the machine is being made
		time.Sleep(time.Millisecond)
	}
	found, err := p.ctl.Unfinished(t.Context())
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
	if n := p.node.count(); n != 2 { // with the one before
		t.Errorf("there are %d machines", n)
	}

	// A sandbox that was being disabled is enabled again.
	p.node.set("disable", errors.New("no"))
	want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
	if found, err = p.ctl.Unfinished(t.Context()); err != nil || len(found) != 2 { // and that machine
		t.Fatalf("to do: %v, %v", found, err)
	}
	p.node.set("disable", nil)
	want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":true}}`)
	for turn, do := range found {
		if err := do(t.Context()); err != nil {
			t.Errorf("%s: %v", turn, err)
		}
	}
	p.node.with("a", func(_ string, m *machine) {
		if m.phase == doze.Disabled {
			t.Error("it is disabled")
		}
	})
}
