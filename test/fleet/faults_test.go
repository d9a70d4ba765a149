package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// planned are the rounds that a seed decides, without a fleet that suffers them.
func planned(seed uint64, faults int, each bool) (rounds [][]fault, kinds map[string]int) {
	t := &trial{
		options: options{seed: seed, faults: faults, each: each}, f: &fleet{},
		dice:   rand.New(rand.NewPCG(seed, 0)),
		counts: counts{kinds: map[string]int{}},
	}
	for t.counts.faults < faults {
		chosen := t.choose()
		if len(chosen) == 0 {
			return rounds, t.counts.kinds
		}
		rounds = append(rounds, chosen)
		t.counts.faults += len(chosen)
	}
	return rounds, t.counts.kinds
}

// TestChoice: all faults of a round have the same asked of sandboxes meanwhile. They come together,
// and none lasts longer than a round whose longest one began first.
func TestChoice(t *testing.T) {
	t.Parallel()
	for _, each := range []bool{false, true} {
		for seed := range uint64(50) {
			const faults = 300
			rounds, kinds := planned(seed, faults, each)
			sum, together, follow := 0, 0, 0
			for _, chosen := range rounds {
				sum += len(chosen)
				queues := map[string]int{}
				for _, one := range chosen {
					queues[one.queue()]++
					if one.meanwhile != chosen[0].meanwhile {
						t.Fatalf("seed %d: %s comes with %s", seed, one.name, chosen[0].name)
					}
				}
				for _, n := range queues {
					if n > 1 {
						follow++
					}
				}
				if len(queues) > 1 {
					together++
				}
				if len(chosen) > roundMost {
					t.Fatalf("seed %d: a round has %d faults", seed, len(chosen))
				}
			}
			if sum != faults || together == 0 || follow == 0 {
				t.Fatalf("seed %d: %d of %d faults, %d times together, %d times one after the other", seed, sum, faults, together, follow)
			}
			if !each {
				continue
			}
			for _, k := range harm {
				all := len(harm) - 1 // without the clock
				if n := kinds[k.name]; k.name != clockKind && (n < faults/all-eachAhead || n > faults/all+1+eachAhead) || k.name == clockKind && n > 0 {
					t.Errorf("seed %d: %d times %s", seed, n, k.name)
				}
			}
		}
	}
}

// TestQueues: what sandboxes must not notice does not come together if they would have to.
func TestQueues(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rounds, _ := planned(seed, 300, true)
		for _, chosen := range rounds {
			others := map[string]bool{}
			for _, one := range chosen {
				if one.meanwhile != anything && one.on != bucketHost {
					others[one.queue()] = true
				}
			}
			if len(others) > 1 {
				t.Fatalf("seed %d: faults of control, the records or edges are in %d queues", seed, len(others))
			}
		}
	}
}

// TestClock: how far the clock is ahead is told by the one that never jumps.
func TestClock(t *testing.T) {
	t.Parallel()
	was := clocks{real: 100 * time.Hour, monotonic: time.Hour}
	for name, c := range map[string]struct {
		now  clocks
		want time.Duration
	}{
		"it jumped ahead":     {clocks{real: 100*time.Hour + 10*time.Minute + 3*time.Second, monotonic: time.Hour + 3*time.Second}, 10 * time.Minute},
		"it jumped back":      {clocks{real: 100*time.Hour - 10*time.Minute + 3*time.Second, monotonic: time.Hour + 3*time.Second}, -10 * time.Minute},
		"somebody set it":     {clocks{real: 100*time.Hour + 3*time.Second, monotonic: time.Hour + 3*time.Second}, 0},
		"it did both by some": {clocks{real: 100*time.Hour + 2*time.Second, monotonic: time.Hour + 3*time.Second}, -time.Second},
	} {
		if got := c.now.ahead(was); got != c.want {
			t.Errorf("%s: %s ahead, want %s", name, got, c.want)
		}
	}
}

// TestAskedKinds: sandboxes are asked while PostgreSQL, the bucket, control or an edge fails.
func TestAskedKinds(t *testing.T) {
	t.Parallel()
	rounds, _ := planned(1, 4*len(harm), true)
	asked := map[string]bool{}
	for _, chosen := range rounds {
		for _, one := range chosen {
			asked[one.on] = asked[one.on] || one.meanwhile != anything
		}
	}
	for _, host := range []string{recordsHost, bucketHost, controlHost} {
		if !asked[host] {
			t.Errorf("nothing is asked while %s fails", host)
		}
	}
	if !slices.ContainsFunc(edgeNames(), func(name string) bool { return asked[name] }) {
		t.Error("nothing is asked while an edge fails")
	}
}

// TestChoiceOfSeed: a seed decides the same faults each time.
func TestChoiceOfSeed(t *testing.T) {
	t.Parallel()
	names := func(seed uint64) (all []string) {
		rounds, _ := planned(seed, 100, true)
		for _, chosen := range rounds {
			for _, one := range chosen {
				all = append(all, one.name)
			}
			all = append(all, "")
		}
		return all
	}
	if one, again := names(7), names(7); !slices.Equal(one, again) {
		t.Errorf("a seed decides %v, then %v", one, again)
	}
	if slices.Equal(names(7), names(8)) {
		t.Error("two seeds decide the same")
	}
}
