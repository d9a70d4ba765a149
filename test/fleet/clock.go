package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	clockKind = "the clock jumps, and back"
	// clockHost is where a fault of the clock has its turn.
	clockHost = "clock"
	// clockTime is for how long the clock is wrong. Leases are renewed several times meanwhile.
	clockTime = 3 * time.Second
	// clockMost is by how much it may be wrong. Certificates are good from an hour before they were
	// made, and a bucket may refuse requests that are 15 minutes old.
	clockMost = 10 * time.Minute
)

// wrongClock is a time in which the clock of this host is wrong. Leases count by another clock, so
// nothing may come of it.
//
// Linux has no such clock for a part of the processes: its namespaces of time move the monotonic
// clocks alone. So everything on the host sees the jump, and happens only with the flag -clock. The
// clock is set right also when the run is told to end. After a SIGKILL it stays wrong.
func (f *fleet) wrongClock(dice *rand.Rand) fault {
	by := f.clock
	if dice.IntN(2) == 0 {
		by = -by
	}
	restore := func() error { return nil }
	return fault{
		name: fmt.Sprintf("the clock is wrong by %s for %s", by, clockTime), on: clockHost, last: clockTime,
		do: func(context.Context) (err error) {
			restore, err = shift(by)
			return err
		},
		end: func(context.Context) error { return restore() },
	}
}

// clocks are two clocks of the host at one moment.
type clocks struct{ real, monotonic time.Duration }

func readClocks() (c clocks, err error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &t); err != nil {
		return c, err
	}
	c.real = time.Duration(t.Nano())
	err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	c.monotonic = time.Duration(t.Nano())
	return c, err
}

// ahead is by how much the clock is ahead of what it should say, which it said at an earlier
// moment. The monotonic clock tells how much time passed. It never jumps.
func (c clocks) ahead(of clocks) time.Duration {
	return (c.real - of.real) - (c.monotonic - of.monotonic)
}

// shift has the clock of this host jump. restore undoes it, once. Another program may have set the clock
// right before.
func shift(by time.Duration) (restore func() error, err error) {
	was, err := readClocks()
	if err != nil {
		return func() error { return nil }, err
	}
	if err := jump(by); err != nil {
		return func() error { return nil }, err
	}
	return sync.OnceValue(func() error {
		now, err := readClocks()
		if err != nil {
			return err
		}
		return jump(-now.ahead(was))
	}), nil
}

// jump moves the clock of this host.
func jump(by time.Duration) error {
	seconds := by.Truncate(time.Second)
	if seconds > by { // the rest is never negative
		seconds -= time.Second
	}
	_, err := unix.Adjtimex(&unix.Timex{
		Modes: unix.ADJ_SETOFFSET | unix.ADJ_NANO,
		Time:  unix.Timeval{Sec: int64(seconds / time.Second), Usec: int64(by - seconds)}, // nanoseconds, with ADJ_NANO
	})
	if err != nil {
		return fmt.Errorf("set the clock of this host: %w", err)
	}
	return nil
}
