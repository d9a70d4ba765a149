package lease_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/lease"
)

const ttl = 30 * time.Second

// watched is a holder whose actions are counted.
type watched struct {
	*lease.Holder

	runs   atomic.Bool // what it guards
	checks atomic.Int32
	until  atomic.Pointer[time.Time]
}

func hold(t *testing.T) *watched {
	t.Helper()
	w := &watched{}
	w.runs.Store(true)
	w.Holder = lease.NewHolder(lease.Actions{
		Fence: func(context.Context) { w.runs.Store(false) }, Unfence: func(context.Context) { w.runs.Store(true) },
		Check: func(context.Context) { w.checks.Add(1); w.runs.Store(true) },
		Tell:  func(until time.Time) { w.until.Store(&until) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *watched) want(t *testing.T, runs bool, when string) {
	t.Helper()
	synctest.Wait()
	if w.runs.Load() != runs || w.Fenced() == runs {
		t.Errorf("%s: it runs %t, fenced %t", when, w.runs.Load(), w.Fenced())
	}
}

func TestHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := hold(t)
		time.Sleep(time.Hour)
		w.want(t, true, "without a lease it needs none")
		w.Extend(time.Now(), ttl)
		time.Sleep(23 * time.Second)
		w.want(t, true, "before the end")
		time.Sleep(2 * time.Second)
		w.want(t, false, "it stops before the end")
		time.Sleep(time.Hour)
		w.Extend(time.Now(), ttl)
		w.want(t, true, "it is renewed")
		if _, ok := w.Left(); !ok {
			t.Error("it has no lease")
		}
		asked := time.Now()
		time.Sleep(20 * time.Second)
		w.Extend(asked, ttl) // the answer was slow
		time.Sleep(5 * time.Second)
		w.want(t, false, "the lease counts from when it was asked for")
		w.Extend(time.Now(), ttl)
		w.Extend(asked, ttl)
		w.want(t, true, "a late answer shortens nothing")
		w.Extend(time.Now(), 0)
		time.Sleep(time.Hour)
		w.want(t, true, "no lease is needed any more")
		if until := w.until.Load(); !until.IsZero() {
			t.Errorf("guards are told %s", until)
		}
	})
}

// TestLateGuard: what a guard stopped after the end of a lease goes on with the next one, also if the
// holder did not notice the end.
func TestLateGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := hold(t)
		w.Extend(time.Now(), ttl)
		w.want(t, true, "it has a lease")
		w.runs.Store(false)
		w.Extend(time.Now(), ttl)
		w.want(t, true, "it has the next one")
		time.Sleep(25 * time.Second)
		w.want(t, false, "the lease is about to end")
		checks := w.checks.Load()
		time.Sleep(time.Hour)
		w.want(t, false, "the lease is over")
		if n := w.checks.Load(); n != checks {
			t.Errorf("it looked %d times while all has to stand still", n-checks)
		}
	})
}

func TestBook(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	b := lease.NewBook(ttl, 0, now)
	tick := func(from, to time.Duration) (lapsed []lease.Lapse) {
		for d := from; d <= to; d += time.Second {
			lapsed = b.Tick(at(d))
		}
		return lapsed
	}
	b.Expect("old", 7)
	b.Grant("new", 1, at(10*time.Second))
	if got := tick(0, 31*time.Second); got != nil {
		t.Errorf("what another granter granted has lapsed after 31 s: %v", got)
	}
	if got := tick(32*time.Second, 32*time.Second); len(got) != 1 || got[0].Node != "old" || got[0].Epoch != 7 {
		t.Errorf("after 32 s %v", got)
	}
	b.Release("old")
	if b.Good("old", at(0)) || !b.Good("new", at(39*time.Second)) || b.Good("new", at(41*time.Second)) {
		t.Error("what is good is wrong")
	}
	if got := tick(33*time.Second, 42*time.Second); len(got) != 1 || got[0].Node != "new" {
		t.Errorf("after 42 s %v", got)
	}
	if b.Grant("new", 1, at(42*time.Second)) || !b.Over("new", 1) {
		t.Error("what is over is granted again")
	}
	if !b.Grant("new", 2, at(42*time.Second)) || b.Over("new", 1) {
		t.Error("nothing is granted in a new epoch")
	}
	if got := b.Tick(at(100 * time.Second)); got != nil {
		t.Errorf("the granter stood still, and takes %v", got)
	}
	if got := tick(101*time.Second, 131*time.Second); got != nil {
		t.Errorf("the granter stood still, and takes %v too soon", got)
	}
	if got := tick(132*time.Second, 132*time.Second); len(got) != 1 {
		t.Errorf("after that it takes %v", got)
	}
}

// TestNeverBoth: over random delays, losses and pauses of both ends, nothing runs at the
// holder when its lease has lapsed at the granter.
func TestNeverBoth(t *testing.T) {
	t.Parallel()
	first := rand.Uint64()
	t.Logf("the first seed is %d", first)
	for i := range uint64(200) {
		seed := first + i
		synctest.Test(t, func(t *testing.T) { neverBoth(t, seed) })
		if t.Failed() {
			t.Fatalf("the seed is %d", seed)
		}
	}
}

func neverBoth(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	w := hold(t)
	b := lease.NewBook(ttl, 0, time.Now())
	taken := false
	w.Extend(time.Now(), ttl)
	b.Grant("n", 1, time.Now())
	for range 400 {
		asked := time.Now()
		switch r.IntN(10) {
		case 0: // it stands still, or is cut off
			time.Sleep(time.Duration(r.IntN(60)) * time.Second)
		case 1: // the request is lost
			time.Sleep(time.Second)
		default:
			time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond) // the way there
			if !taken {
				b.Grant("n", 1, time.Now())
				time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond) // the way back
				if r.IntN(10) > 0 {
					w.Extend(asked, ttl)
				}
			}
		}
		synctest.Wait()
		if r.IntN(5) > 0 {
			taken = taken || len(b.Tick(time.Now())) > 0
		}
		if taken && w.runs.Load() {
			t.Fatal("others may have it, and it runs")
		}
	}
}
