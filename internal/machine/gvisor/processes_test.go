package gvisor

import (
	"fmt"
	"testing"

	"github.com/dozehq/doze/internal/machine"
)

// TestProcesses has a guest start more processes than it may have: the first of them is
// refused, the guest goes on, and there is room again when some have ended. So it is
// after a sleep on disk.
func TestProcesses(t *testing.T) {
	t.Parallel()
	const most = 30
	h := newHost(t)
	h.processes = most
	d := h.open(t)
	m := boot(t, d, h.Config(t, "m"))
	spawn := func(n int) (said any) {
		t.Helper()
		ask(t, m, "/spawn", &said, "n", fmt.Sprint(n))
		return said
	}
	refused := func(after string) {
		t.Helper()
		const eagain = "fork/exec /proc/self/exe: resource temporarily unavailable"
		if said := spawn(1); said != eagain {
			t.Errorf("%s, a process too many is answered with %v, want %s", after, said, eagain)
		}
		var n int64
		if ask(t, m, "/count", &n); n == 0 {
			t.Error("the guest stands still")
		}
	}
	if said := spawn(most - 1); said != nil { // and its first one
		t.Fatalf("as many as it may have: %v", said)
	}
	refused("with all that it may have")
	if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("after a sleep")
	var none any
	ask(t, m, "/reap", &none)
	if said := spawn(most - 1); said != nil {
		t.Errorf("after all children have ended: %v", said)
	}
	refused("again")
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
