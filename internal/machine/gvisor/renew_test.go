package gvisor

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// TestStandsStill asks a large machine all the time while it is copied, and while its
// checkpoint is renewed. It prints the longest answer, next to the time that a copy takes
// for which the machine stands still.
func TestStandsStill(t *testing.T) {
	megabytes := *sleeperMemory
	if testing.Short() {
		megabytes = 128
	}
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "large")
	c.Memory, c.GoBack, c.CPUs = int64(megabytes+512)<<20, true, 2
	m := boot(t, d, c)
	var none any
	ask(t, m, "/alloc", &none, "mb", strconv.Itoa(megabytes))
	var want uint32
	ask(t, m, "/sum", &want)

	// One connection for all: each that is closed is an object of the engine's state.
	var conns http.Transport
	conns.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return m.Dial(ctx, machinetest.Port) }
	defer conns.CloseIdleConnections()
	counting := &http.Client{Transport: &conns, Timeout: rig.Patience}
	// longest is the longest answer while do runs.
	longest := func(do func() error) (worst time.Duration) {
		t.Helper()
		var asking sync.WaitGroup
		done := make(chan struct{})
		asking.Go(func() {
			for {
				start := time.Now()
				resp, err := counting.Get("http://guest/count")
				if err != nil {
					t.Error("ask the guest:", err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				worst = max(worst, time.Since(start))
				select {
				case <-done:
					return
				default:
				}
			}
		})
		err := do()
		close(done)
		if asking.Wait(); err != nil {
			t.Fatal(err)
		}
		return worst
	}
	copies := 0
	snapshot := func() error {
		copies++
		return m.Snapshot(t.Context(), filepath.Join(t.TempDir(), strconv.Itoa(copies)), nil)
	}
	precopy := func() error { return m.Precopy(t.Context()) }
	renew := func() error { return m.Renew(t.Context(), time.Minute, nil) }
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

	without := longest(snapshot)
	if err := m.Suspend(t.Context(), machine.Paused); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := snapshot(); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(start)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MB: a copy for which it stands still takes %v; without a copy before it, an answer takes up to %v", megabytes, ms(whole), ms(without))
	var worst time.Duration
	for _, step := range []struct {
		name string
		do   func() error
	}{{"a snapshot", snapshot}, {"the first renewal", renew}, {"the second renewal", renew}} {
		before := longest(precopy)
		still := longest(step.do)
		worst = max(worst, still)
		t.Logf("%s: while it runs up to %v, while it stands still %v: 1/%.1f", step.name, ms(before), ms(still), float64(whole)/float64(still))
	}
	if worst > whole {
		t.Errorf("an answer takes up to %v, and a copy for which the machine stands still %v", worst, whole)
	}
	var sum uint32
	if ask(t, m, "/sum", &sum); sum != want {
		t.Errorf("the sum of its memory is %d and was %d", sum, want)
	}
	if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ask(t, m, "/sum", &sum); sum != want {
		t.Errorf("after a sleep the sum of its memory is %d and was %d", sum, want)
	}
}
