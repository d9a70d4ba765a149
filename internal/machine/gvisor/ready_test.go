package gvisor

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestReadyChoose(t *testing.T) {
	t.Parallel()
	now := time.Now()
	lain := func(ago, sleep time.Duration) *sandbox { return &sandbox{lain: now.Add(-ago), sleep: sleep} }
	old, older := lain(time.Minute, 0), lain(2*time.Minute, 0)
	often, seldom, first := lain(time.Second, 90*time.Second), lain(time.Second, time.Hour), lain(time.Second, 0)
	late := lain(3*time.Second, 0)
	for name, tc := range map[string]struct {
		most         int
		list, queue  []*sandbox
		next, leaves *sandbox
		ok           bool
	}{
		"nobody wants one":            {most: 2, list: []*sandbox{old}},
		"there is a place":            {2, []*sandbox{old}, []*sandbox{seldom}, seldom, nil, true},
		"who went last comes first":   {2, []*sandbox{old}, []*sandbox{late, first}, first, nil, true},
		"the longest asleep leaves":   {2, []*sandbox{old, older}, []*sandbox{often}, often, older, true},
		"one that wakes later waits":  {2, []*sandbox{old, older}, []*sandbox{seldom}, seldom, older, false},
		"the first sleep may be long": {2, []*sandbox{old, older}, []*sandbox{first}, first, older, false},
	} {
		r := ready{most: tc.most, list: tc.list, queue: tc.queue}
		next, leaves, ok := r.choose(now)
		if ok != tc.ok || next != tc.next || leaves != tc.leaves {
			t.Errorf("%s: %v for %v, %v; want %v for %v, %v", name, next, leaves, ok, tc.next, tc.leaves, tc.ok)
		}
	}
}

// Of sandboxes that wake in turn, those that have a process keep it: to give each
// to the one that fell asleep last would create them all in vain.
func TestReadyInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all, most = 10, 3
		r := ready{most: most, works: true} // nobody works
		sandboxes := make([]*sandbox, all)
		for i := range sandboxes {
			sandboxes[i] = &sandbox{}
		}
		created, used := 0, 0
		for round := range 5 {
			for _, s := range sandboxes {
				time.Sleep(time.Second)
				if r.has(s) {
					used++
				}
				if round > 0 {
					r.woke(s)
				}
				r.remove(s)
				r.want(s)
				for {
					next, _, ok := r.take()
					if r.works = true; !ok {
						break
					}
					next.tasks.Done()
					created++
				}
			}
		}
		if used == 0 || created > used+most {
			t.Errorf("%d processes were created, and %d of them used", created, used)
		}
	})
}

func TestRushSettles(t *testing.T) {
	t.Parallel()
	if idled() == 0 {
		t.Fatal("this host does not tell how long its processors were idle")
	}
	for name, tc := range map[string]struct {
		idle  float64 // processors
		wakes func(*rush)
		want  time.Duration
	}{
		"nobody waits":              {0, func(*rush) {}, readyLook},
		"somebody waited just now":  {0, func(r *rush) { r.enter()() }, time.Second},
		"there is room":             {0.8, func(r *rush) { r.enter()() }, readyLook},
		"there is room for one":     {1, func(r *rush) { r.enter() }, readyPatience + readyLook},
		"there is room for another": {2, func(r *rush) { r.enter() }, readyLook},
		"it never ends":             {0, func(r *rush) { r.enter() }, readyPatience + readyLook},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				r := rush{idled: func() time.Duration { return time.Duration(float64(time.Since(began)) * tc.idle) }}
				tc.wakes(&r)
				r.settle(readyCalm)
				if took := time.Since(began); took != tc.want {
					t.Errorf("it took %v, want %v", took, tc.want)
				}
			})
		})
	}
}

func TestIdleTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"cpu  1 2 3 400 50 6 7 8 9 10\ncpu0 1 2 3 4 5\n": 4500 * time.Millisecond,
		"cpu  1 2 3 400\n":       0,
		"cpu  1 2 3 x 50 6\n":    0,
		"intr 1 2 3 400 50 60\n": 0,
		"":                       0,
	} {
		if got := idleTime([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// One process is created at a time, and each sandbox that leaves while it waits
// for one gets none.
func TestReadyLeaves(t *testing.T) {
	t.Parallel()
	r := ready{most: 4, works: true}
	var sandboxes [3]*sandbox
	for i := range sandboxes {
		sandboxes[i] = &sandbox{}
		r.want(sandboxes[i])
	}
	r.remove(sandboxes[2])
	next, _, ok := r.take()
	if !ok || next != sandboxes[1] {
		t.Fatal("the last one that waits is not the next")
	}
	r.shrink(sandboxes[1])
	if r.has(sandboxes[1]) {
		t.Error("one whose memory is needed has a place")
	}
	if _, _, ok := r.take(); ok {
		t.Error("while memory is needed, another one is given some")
	}
	sandboxes[1].tasks.Done() // or this panics: who closes it waits for the process
}
