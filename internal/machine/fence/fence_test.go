package fence_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/fence"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// TestGate: behind a closed gate nothing begins, and what was begun is waited for.
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake, gate := machinetest.NewFake(), fence.NewGate()
		d := fence.New(fake, gate)
		dir := t.TempDir()
		config := func(id string) machine.Config {
			return machine.Config{ID: id, Dir: filepath.Join(dir, id), Root: dir, Memory: 64 << 20}
		}
		m, err := d.Boot(t.Context(), config("a"))
		if err != nil {
			t.Fatal(err)
		}
		fake.Delay(machinetest.OpPause, 3*time.Second)
		slow := make(chan error, 1)
		go func() { slow <- m.Suspend(t.Context(), machine.Paused) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := gate.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it closed while something was under way: %v", err)
		}
		cancel()
		began := time.Now()
		if err := gate.Close(t.Context()); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("it closed after %s: %v", time.Since(began), err)
		}
		if err := <-slow; err != nil {
			t.Errorf("what was under way failed: %v", err)
		}
		late := make(chan error, 2)
		go func() { late <- m.Resume(t.Context()) }()
		go func() { _, err := d.Boot(t.Context(), config("b")); late <- err }()
		synctest.Wait()
		if m.Tier() != machine.Paused || len(fake.Processes()) != 1 {
			t.Errorf("behind the closed gate it is %s, with %d processes", m.Tier(), len(fake.Processes()))
		}
		if _, err := m.Dial(t.Context(), 80); !errors.Is(err, fence.ErrClosed) {
			t.Errorf("a connection: %v", err)
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := m.Suspend(impatient, machine.OnDisk); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an operation with an end: %v", err)
		}
		cancel()
		gate.Open()
		for range 2 {
			if err := <-late; err != nil {
				t.Errorf("what waited failed: %v", err)
			}
		}
		if m.Tier() != machine.Awake || len(fake.Processes()) != 2 {
			t.Errorf("it is %s, with %d processes", m.Tier(), len(fake.Processes()))
		}
	})
}

// TestGateEnds: when nobody is there any more who would open a closed gate, what has no end of
// its own does not wait for it. An open gate stays open.
func TestGateEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		boot := func(ctx context.Context, g *fence.Gate) error {
			_, err := fence.New(machinetest.NewFake(), g).Boot(ctx, machine.Config{ID: "a", Dir: filepath.Join(dir, "a"), Root: dir, Memory: 64 << 20})
			return err
		}
		endless := context.WithoutCancel(t.Context())
		gate := fence.NewGate()
		if err := gate.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- boot(endless, gate) }()
		synctest.Wait()
		gate.End()
		gate.End()
		if err := <-waiting; !errors.Is(err, fence.ErrClosed) {
			t.Errorf("what waited: %v", err)
		}
		if err := boot(endless, gate); !errors.Is(err, fence.ErrClosed) {
			t.Errorf("what comes later: %v", err)
		}
		why := errors.New("the reason")
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		if err := boot(ended, gate); !errors.Is(err, why) {
			t.Errorf("what had an end: %v", err)
		}
		gate.Open()
		if !gate.Closed() {
			t.Error("it opened after its end")
		}
		open := fence.NewGate()
		open.End()
		if err := boot(endless, open); err != nil {
			t.Errorf("at an open gate: %v", err)
		}
	})
}
