package crew

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// TestClaims: the sums are those of the claims, whatever happens to these.
func TestClaims(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := newClaims()
	for range 5000 {
		machine, node := fmt.Sprint("m", r.IntN(30)), fmt.Sprint("n", r.IntN(4))
		switch r.IntN(6) {
		case 0, 1:
			c.put(machine, node, claim{
				memory: doze.Megabytes(r.IntN(9)), workspace: []string{"", "a", "b"}[r.IntN(3)],
				counted: r.IntN(2) == 0, arrives: r.IntN(2) == 0, words: r.IntN(wordsMost),
			})
		case 2:
			c.drop(machine)
		case 3:
			c.move(machine, node)
		case 4:
			c.hear(node)
		case 5:
			if p := c.all[machine]; p != nil {
				p.counted = true
			}
		}
		memory, of := map[string]doze.Megabytes{}, map[string]fleet.Awake{}
		for machine, p := range c.all {
			if c.on[p.node].machines[machine] != p || p.words >= wordsMost {
				t.Fatalf("%s is not on its node, or stays: %+v", machine, p)
			}
			if p.words == 0 {
				memory[p.node] += p.memory
			}
			if p.workspace != "" {
				a := of[p.workspace]
				of[p.workspace] = fleet.Awake{Sandboxes: a.Sandboxes + 1, Memory: a.Memory + p.memory}
			}
		}
		if diff := cmp.Diff(of, c.of); diff != "" {
			t.Fatal(diff)
		}
		machines := 0
		for node, s := range c.on {
			busy := 0.0
			for _, p := range s.machines {
				if p.arrives && p.words == 0 {
					busy += arrivalBusy
				}
			}
			if machines += len(s.machines); s.memory != memory[node] || math.Abs(s.busy-busy) > 1e-6 || len(s.machines) == 0 {
				t.Fatalf("%s has %d MB and %f processors claimed, of %d MB and %f", node, s.memory, s.busy, memory[node], busy)
			}
		}
		if machines != len(c.all) {
			t.Fatalf("%d machines are on nodes, of %d", machines, len(c.all))
		}
	}
}
