package gvisor

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

const (
	// freezes is how often TestFrozen stops the machine in each of its parts.
	freezes = 40
	// frozenFor is how long the machine stands still, and thawedFor how long it runs between.
	frozenFor, thawedFor = 10 * time.Millisecond, 30 * time.Millisecond
)

// TestFrozen stops a machine with the freezer, as the guard of a lease does: while it changes its
// memory in all ways, and while it wakes. It fails unless each change is there. A freezer
// interrupts system calls at any point, those between the engine and its stubs among them.
func TestFrozen(t *testing.T) {
	const until = "/tmp/churned"
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "m")
	c.Memory, c.CPUs = 1<<30, 2
	c.Args = append(c.Args, "churn", until)
	m := boot(t, d, c)
	var none any
	ask(t, m, "/count", &none) // it listens
	h.freezing(t, func(done <-chan struct{}) { <-done })
	for range 3 {
		if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
		h.freezing(t, func(done <-chan struct{}) {
			if err := m.Resume(t.Context()); err != nil {
				t.Error(err)
			}
			<-done
		})
	}
	churned(t, m, until)
}

// freezing has the machines of a host stop again and again while do runs. When they have stopped
// often enough, done is closed. After do they run.
func (h *host) freezing(t *testing.T, do func(done <-chan struct{})) {
	t.Helper()
	var stopping sync.WaitGroup
	done := make(chan struct{})
	ctx := context.WithoutCancel(t.Context())
	stopping.Go(func() {
		defer close(done)
		for range freezes {
			for _, now := range []struct {
				stop  bool
				pause time.Duration
			}{{true, frozenFor}, {false, thawedFor}} {
				if err := hostproc.Freeze(ctx, h.Cgroup, now.stop); err != nil {
					t.Error(err)
				}
				time.Sleep(now.pause)
			}
		}
	})
	do(done)
	stopping.Wait()
}
