package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestAdmission: so many are in at a time, and a workspace with many delays
// another one by one of them.
func TestAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const room, took = 2, time.Second
		a := newAdmission(room, nil)
		var mu sync.Mutex
		var order []string
		now, most := 0, 0
		var all sync.WaitGroup
		for _, who := range []string{"a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1"} {
			all.Go(func() {
				leave, err := a.enter(t.Context(), who[:1])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, who)
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(took)
				mu.Lock()
				now--
				mu.Unlock()
				leave()
			})
			synctest.Wait()
		}
		began := time.Now()
		all.Wait()
		if want := []string{"a1", "a2", "a3", "b1", "c1", "a4", "b2", "a5"}; !slices.Equal(sorted(order), sorted(want)) || most != room || time.Since(began) != 4*took {
			t.Errorf("%v, %d at a time, after %v", order, most, time.Since(began))
		}
		if slices.Index(order, "b1") > 4 || slices.Index(order, "c1") > 5 {
			t.Errorf("others wait for all of a: %v", order)
		}
		if a.in != 0 || len(a.waiting) != 0 || len(a.order) != 0 {
			t.Errorf("something is left: %+v", a)
		}
	})
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// TestAdmissionAbandoned: a caller that gives up takes no room, whenever it does.
func TestAdmissionAbandoned(t *testing.T) {
	t.Parallel()
	a := newAdmission(1, nil)
	gone := errors.New("gone")
	var all sync.WaitGroup
	for i := range 200 {
		ctx, cancel := context.WithCancelCause(t.Context())
		all.Go(func() {
			leave, err := a.enter(ctx, fmt.Sprint(i%3))
			if err == nil {
				leave()
			} else if !errors.Is(err, gone) {
				t.Error(err)
			}
		})
		if i%2 == 0 {
			all.Go(func() { cancel(gone) })
		} else {
			defer cancel(nil)
		}
	}
	all.Wait()
	if a.in != 0 || len(a.waiting) != 0 || len(a.order) != 0 {
		t.Errorf("something is left: %+v", a)
	}
}

// TestAdmissionCrowded: while the processors have room, nobody waits. When they have room
// again, one more comes in at each look.
func TestAdmissionCrowded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var crowded atomic.Bool
		a := newAdmission(2, crowded.Load)
		var in atomic.Int64
		come := func(n int) {
			for range n {
				go func() {
					if _, err := a.enter(t.Context(), "w"); err == nil {
						in.Add(1)
					}
				}()
			}
			synctest.Wait()
		}
		are := func(want int64) {
			t.Helper()
			if synctest.Wait(); in.Load() != want {
				t.Errorf("%d are in, want %d", in.Load(), want)
			}
		}
		come(5)
		are(5)
		crowded.Store(true)
		come(3)
		time.Sleep(time.Minute)
		are(5)
		if d := a.queuedFor(time.Now()); d != time.Minute {
			t.Errorf("somebody has waited for %v", d)
		}
		crowded.Store(false)
		time.Sleep(2*crowdLook + crowdLook/2)
		are(7)
		crowded.Store(true)
		for range 6 {
			a.leave()
		}
		are(8) // there is room without a look
		if d := a.queuedFor(time.Now()); d != 0 {
			t.Errorf("somebody has waited for %v", d)
		}
	})
}
