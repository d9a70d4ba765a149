package clock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/clock"
)

// TestWatch sets the clock of the host forward by a nanosecond, which nobody
// else notices.
func TestWatch(t *testing.T) {
	t.Parallel()
	set := func() error {
		_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_SETOFFSET | unix.ADJ_NANO, Time: unix.Timeval{Usec: 1}})
		return err
	}
	if err := set(); err != nil {
		t.Skip("SKIPPED: setting the clock needs CAP_SYS_TIME:", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	steps := make(chan struct{}, 100)
	var watch sync.WaitGroup
	watch.Go(func() {
		if err := clock.Watch(ctx, func() { steps <- struct{}{} }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	late := time.NewTimer(10 * time.Second)
	defer late.Stop()
	for seen := 0; seen < 2; {
		if err := set(); err != nil { // again until Watch is there
			t.Fatal(err)
		}
		again := time.NewTimer(10 * time.Millisecond)
		select {
		case <-steps:
			seen++
		case <-again.C:
		case <-late.C:
			t.Fatal("the step was not noticed")
		}
		again.Stop()
	}
	cancel()
	watch.Wait()
}
