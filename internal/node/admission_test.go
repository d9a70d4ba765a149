package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestBirths: so many are made at a time, and a workspace that orders many delays
// another one by one of them.
func TestBirths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const room, took = 2, time.Second
		b := newBirths(room)
		var mu sync.Mutex
		var order []string
		now, most := 0, 0
		var all sync.WaitGroup
		for _, who := range []string{"a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1"} {
			all.Go(func() {
				leave, err := b.enter(t.Context(), who[:1])
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
		if b.room != room || len(b.waiting) != 0 || len(b.order) != 0 {
			t.Errorf("something is left: %+v", b)
		}
	})
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// TestBirthsAbandoned: a caller that gives up takes no room, whenever it does.
func TestBirthsAbandoned(t *testing.T) {
	t.Parallel()
	b := newBirths(1)
	gone := errors.New("gone")
	var all sync.WaitGroup
	for i := range 200 {
		ctx, cancel := context.WithCancelCause(t.Context())
		all.Go(func() {
			leave, err := b.enter(ctx, fmt.Sprint(i%3))
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
	if b.room != 1 || len(b.waiting) != 0 || len(b.order) != 0 {
		t.Errorf("something is left: %+v", b)
	}
}
