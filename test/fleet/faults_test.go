package main

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// planned are the rounds that a seed decides, without a fleet that suffers them.
func planned(seed uint64, faults int, each bool) (rounds [][]fault, kinds map[string]int) {
	f := &fleet{wire: &wire{hosts: map[string]string{controlHost: "127.0.0.1", standbyHost: "127.0.0.1"}}}
	t := &trial{
		options: options{seed: seed, faults: faults, each: each}, f: f,
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

// TestChoice: a fault during which sandboxes must answer is alone in its round, and happens. Others
// come together, on several hosts.
func TestChoice(t *testing.T) {
	t.Parallel()
	for _, each := range []bool{false, true} {
		for seed := range uint64(50) {
			const faults = 300
			rounds, kinds := planned(seed, faults, each)
			sum, together := 0, 0
			for _, chosen := range rounds {
				sum += len(chosen)
				var on []string
				for _, one := range chosen {
					on = append(on, one.on)
					if one.meanwhile != anything && len(chosen) > 1 {
						t.Fatalf("seed %d: %s is one of %d", seed, one.name, len(chosen))
					}
				}
				slices.Sort(on)
				if len(slices.Compact(on)) != len(chosen) {
					t.Fatalf("seed %d: two faults are on one host: %v", seed, on)
				}
				if len(chosen) > 1 {
					together++
				}
			}
			if sum != faults || together == 0 {
				t.Fatalf("seed %d: %d of %d faults, %d times together", seed, sum, faults, together)
			}
			if !each {
				continue
			}
			for _, k := range harm {
				if n := kinds[k.name]; n < faults/len(harm) || n > faults/len(harm)+1 {
					t.Errorf("seed %d: %d times %s", seed, n, k.name)
				}
			}
		}
	}
}

// TestAskedKinds: sandboxes are asked while PostgreSQL, the bucket, control or an edge fails.
func TestAskedKinds(t *testing.T) {
	t.Parallel()
	rounds, _ := planned(1, len(harm), true)
	asked := map[string]bool{}
	for _, chosen := range rounds {
		if chosen[0].meanwhile != anything {
			asked[chosen[0].on] = true
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
